"""A session as one that only looks sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self

from ithaka_client.api import Api, Role, SessionInfo
from ithaka_client.decoder import Decoder, Frame
from ithaka_client.errors import UsageError
from ithaka_client.inbox import ReceivedFrame
from ithaka_client.protocol import Hello
from ithaka_client.recorder import Recorder
from ithaka_client.stream import Outcome, Stream


class Viewer:
    """Made by ``Client.watch``. An async context manager: leaving it changes nothing for the session.

    ``connect_timeout_s`` bounds queueing and start before the first connection, ``resume_timeout_s`` each outage.
    """

    _role: Role = "viewer"

    def __init__(self, api: Api, info: SessionInfo, *, connect_timeout_s: float, resume_timeout_s: float) -> None:
        self.info = info
        self._api = api
        self._stream = Stream(
            api,
            info,
            self._role,
            connect_timeout_s=connect_timeout_s,
            resume_timeout_s=resume_timeout_s,
            repeat=self._repeat_wishes,
        )
        self._recorder: Recorder | None = None
        self._is_iterated = False

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def state(self) -> str:
        """As the server last told on the stream."""
        return self._stream.state

    @property
    def outcome(self) -> Outcome | None:
        """None until the end. ``delivered`` is the verdict on the controller's frames."""
        return self._stream.outcome

    @property
    def decoded_through(self) -> int:
        """The last frame that was decoded."""
        return self._stream.position.decoded_through

    @property
    def num_connections(self) -> int:
        """1 plus the number of resumes."""
        return self._stream.num_connections

    async def connect(self) -> Hello:
        """Open the stream and wait for hello: the model and the encoder are there. Raises TransportError, StreamError."""
        return await self._stream.connect()

    async def frames(self) -> AsyncIterator[Frame]:
        """Frames in order, from the next key frame on. A viewer that falls behind, or comes back, misses some.

        After the last one ``outcome`` stands. Raises StreamFailedError when the session failed (after its last frame),
        ConnectionLostError when an outage outlasts ``resume_timeout_s``, DecodeError, ProtocolError.
        """
        if self._is_iterated:
            raise UsageError("frames() of this session is already in use.")
        self._is_iterated = True
        decoder, connection = Decoder(), 0
        try:
            while (received := await self._stream.take()) is not None:
                if received.connection != connection:
                    decoder, connection = Decoder(), received.connection
                frame = await asyncio.to_thread(self._decode, decoder, received)
                if await self._stream.confirm(frame.seq):
                    self._used(frame.control_id)
                    yield frame
        finally:
            self._close_recorder()
        await self._stream.result()

    def record(self, path: str | Path) -> Recorder:
        """Write the frames that ``frames`` yields from now on to an MP4 file, as they were received.

        The file is complete when ``frames`` ends, the session closes, or the recorder is closed.
        """
        fps = self.info.fps if self._stream.hello is None else self._stream.hello.fps
        if fps is None:
            raise UsageError("The model's rate is not known yet: record after connect().")
        self._close_recorder()
        self._recorder = Recorder(path, fps=fps)
        return self._recorder

    async def aclose(self) -> None:
        """Leave. Idempotent, bounded."""
        await self._stream.close()
        self._close_recorder()
        if self._stream.outcome is None:
            position = self._stream.position
            self._stream.outcome = Outcome(None, self.state, "client_left", position.received_through, position.decoded_count)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _decode(self, decoder: Decoder, received: ReceivedFrame) -> Frame:
        encoded = received.frame
        frame = decoder.decode(encoded, received.at_s)
        recorder = self._recorder
        if recorder is not None and not recorder.is_closed and encoded.seq > self.decoded_through:
            recorder.write(encoded)
        return frame

    def _close_recorder(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None

    def _used(self, control_id: int) -> None:
        """A frame came that used this control, somebody's."""

    def _repeat_wishes(self) -> list[str]:
        """What a lost connection may have swallowed."""
        return []
