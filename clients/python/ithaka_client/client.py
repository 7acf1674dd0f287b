"""The way in: models and sessions of one daemon."""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import httpx

from ithaka_client.api import Api, Delivery, ModelInfo, Pacing, Pixels, SessionInfo
from ithaka_client.session import Session
from ithaka_client.viewer import Viewer


class Client:
    """An async context manager.

    ``base_url`` like ``http://127.0.0.1:8765``; ``api_key`` where the daemon asks for one; ``timeout_s`` for each HTTP call;
    ``transport`` carries those calls (httpx's seam, for proxies and tests).
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        timeout_s: float = 10.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._api = Api(base_url, api_key, timeout_s=timeout_s, transport=transport)

    async def models(self) -> list[ModelInfo]:
        """What the daemon serves."""
        return await self._api.models()

    async def sessions(self) -> list[SessionInfo]:
        return await self._api.sessions()

    async def session(self, session_id: str) -> SessionInfo:
        """A session as it is now. Raises NotFoundError."""
        return await self._api.session(session_id)

    async def delete_session(self, session_id: str, *, force: bool = False) -> None:
        """Let a session drain, or close it at once with ``force``. Raises NotFoundError."""
        await self._api.delete_session(session_id, force=force)

    async def create_session(
        self,
        model: str,
        *,
        seed: int | None = None,
        prompt: str = "",
        pixels: Pixels = "lossy",
        pacing: Pacing = "media",
        window_frames: int | None = None,
        max_frames: int | None = None,
        delivery: Delivery = "lossless",
        record: bool = False,
        options: dict[str, Any] | None = None,
        connect_timeout_s: float = 60.0,
        resume_timeout_s: float = 90.0,
    ) -> Session:
        """A new session, admitted or queued; ``Session.connect`` waits for its turn.

        ``pixels``: "lossy" (H.264 close to the source) or "exact" (the model's I420 samples bit for bit). ``pacing``: "media"
        runs at the model's rate, "unpaced" as fast as the window allows. ``window_frames``: how far generation may run ahead
        of what was decoded. ``delivery``: "live" prefers the newest frame, and others may be missing. ``record``: the server
        keeps an MP4. Raises RequestInvalidError, NotFoundError, CapacityError (queue full), AccessError.
        """
        wanted = {
            "model": model,
            "seed": seed,
            "prompt": prompt,
            "pixels": pixels,
            "pacing": pacing,
            "window_frames": window_frames,
            "max_frames": max_frames,
            "delivery": None if delivery == "lossless" else delivery,
            "record": record or None,
            "options": options,
        }
        info = await self._api.create_session({name: value for name, value in wanted.items() if value is not None})
        return Session(self._api, info, connect_timeout_s=connect_timeout_s, resume_timeout_s=resume_timeout_s)

    async def viewer_token(self, session_id: str) -> str:
        """For one that is to look at this session and no more. Raises NotFoundError, ConflictError (it is over)."""
        return await self._api.mint_token(session_id, "viewer")

    async def watch(
        self, session_id: str, token: str | None = None, *, connect_timeout_s: float = 60.0, resume_timeout_s: float = 90.0
    ) -> Viewer:
        """Look at a session that somebody else steers. ``token``: a viewer's; without one, it is asked for with the API key.

        Raises NotFoundError, AccessError, ConflictError (it is over).
        """
        token = token or await self.viewer_token(session_id)
        info = replace(await self._api.session(session_id, token=token), token=token)
        return Viewer(self._api, info, connect_timeout_s=connect_timeout_s, resume_timeout_s=resume_timeout_s)

    async def aclose(self) -> None:
        await self._api.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
