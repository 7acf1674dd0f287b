"""Plays one session for each request and notes when each frame was there, decoded."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiperf.common.models import ErrorDetails, RequestInfo, RequestRecord, SSEMessage
from aiperf.common.types import RequestInputT
from aiperf.transports.base_transports import BaseTransport, FirstTokenCallback, TransportMetadata

from ithaka_aiperf.frame_chunk import frame_chunk, outcome_chunk
from ithaka_client import Client, IthakaError, Outcome, Session


class SessionTransport(BaseTransport):
    @classmethod
    def metadata(cls) -> TransportMetadata:
        return TransportMetadata(transport_type="ithaka", url_schemes=[])

    def get_url(self, request_info: RequestInfo) -> str:
        return str(self.model_endpoint.endpoint.get_url(request_info.url_index)).rstrip("/")

    async def send_request(
        self, request_info: RequestInfo, payload: RequestInputT, *, first_token_callback: FirstTokenCallback | None = None
    ) -> RequestRecord:
        """A lossless session that was not delivered is an error, and so is whatever the client raises."""
        # AIPerf hands payloads on as the JSON that it keeps.
        wishes: dict[str, Any] = json.loads(payload) if isinstance(payload, bytes | str) else dict(payload)
        record = RequestRecord(timestamp_ns=time.time_ns(), start_perf_ns=time.perf_counter_ns())
        try:
            async with self._played(request_info, wishes) as session:
                outcome = await _follow(session, record, first_token_callback)
            record.status = 200
            if wishes.get("delivery") != "live" and outcome.delivered is not True:
                record.error = ErrorDetails(type="NotDelivered", message=f"the session ended as {outcome}")
        except (IthakaError, TypeError) as error:
            record.error = ErrorDetails(
                code=getattr(error, "status", None), type=getattr(error, "code", type(error).__name__), message=str(error)
            )
        record.end_perf_ns = time.perf_counter_ns()
        return record

    @asynccontextmanager
    async def _played(self, request_info: RequestInfo, wishes: dict[str, Any]) -> AsyncIterator[Session]:
        key = self.model_endpoint.endpoint.api_key
        async with Client(self.get_url(request_info), key) as client, await client.create_session(**wishes) as session:
            yield session


async def _follow(session: Session, record: RequestRecord, on_first: FirstTokenCallback | None) -> Outcome:
    """Notes every frame, then the verdict. Raises IthakaError."""
    seqs: set[int] = set()
    async for frame in session.frames():
        chunk = SSEMessage.parse(frame_chunk(session.id, frame), time.perf_counter_ns())
        if not seqs:
            record.recv_start_perf_ns = chunk.perf_ns
            if on_first is not None:
                await on_first(chunk.perf_ns - record.start_perf_ns, chunk)
        seqs.add(frame.seq)
        record.responses.append(chunk)
    outcome = session.outcome
    assert outcome is not None
    lost = [seq for seq in range(1, outcome.last_seq + 1) if seq not in seqs]
    record.responses.append(SSEMessage.parse(outcome_chunk(session.id, outcome, lost), time.perf_counter_ns()))
    return outcome
