"""What a session is asked for, and what its frames say, in AIPerf's words."""

from __future__ import annotations

from typing import Any

from aiperf.common.models import InferenceServerResponse, ParsedResponse, RequestInfo, VideoResponseData
from aiperf.endpoints.base_endpoint import BaseEndpoint

from ithaka_aiperf.frame_chunk import COMPLETED, IN_PROGRESS


class SessionEndpoint(BaseEndpoint):
    def format_payload(self, request_info: RequestInfo) -> dict[str, Any]:
        """Keyword arguments of ``ithaka_client.Client.create_session``. Raises ValueError without a turn."""
        if not request_info.turns:
            raise ValueError("a session needs a turn; its text is the prompt")
        turn = request_info.turns[-1]
        texts = [content for text in turn.texts for content in text.contents]
        return {
            "model": turn.model or self.model_endpoint.primary_model_name,
            "prompt": texts[0] if texts else "",
            **dict(self.model_endpoint.endpoint.extra or ()),
            **(turn.extra_body or {}),
        }

    def parse_response(self, response: InferenceServerResponse) -> ParsedResponse | None:
        """Each chunk is one frame; the last one is the verdict."""
        told = response.get_json()
        if not told:
            return None
        status = COMPLETED if "delivered" in told else IN_PROGRESS
        data = VideoResponseData(video_id=told["session"], object="video", status=status)
        return ParsedResponse(perf_ns=response.perf_ns, data=data)
