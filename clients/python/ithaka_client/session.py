"""A session as a program uses it: frames in order, each once; controls back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from ithaka_client.api import Api, SessionInfo
from ithaka_client.decoder import Decoder, Frame
from ithaka_client.errors import IthakaError, UsageError
from ithaka_client.held_keys import HeldKeys
from ithaka_client.inbox import ReceivedFrame
from ithaka_client.protocol import (
    Control,
    Hello,
    build_control,
    build_end,
    build_pause,
    build_play,
)
from ithaka_client.recorder import Recorder
from ithaka_client.stream import Outcome, Stream

DISCARD_TIMEOUT_S = 5.0


class Session:
    """Made by ``Client.create_session``. Use it as an async context manager: leaving it early ends the session at once.

    ``connect_timeout_s`` bounds queueing and start before the first connection, ``resume_timeout_s`` each outage.
    """

    def __init__(self, api: Api, info: SessionInfo, *, connect_timeout_s: float, resume_timeout_s: float) -> None:
        self.info = info
        self._api = api
        self._stream = Stream(
            api,
            info,
            connect_timeout_s=connect_timeout_s,
            resume_timeout_s=resume_timeout_s,
            repeat=self._repeat_wishes,
        )
        self._keys = HeldKeys()
        self._last_control_id = 0
        self._wish: Literal["pause", "play", "end"] | None = None
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
        """None until the end."""
        return self._stream.outcome

    @property
    def decoded_through(self) -> int:
        """The last frame that was decoded, and so acknowledged."""
        return self._stream.position.decoded_through

    @property
    def num_connections(self) -> int:
        """1 plus the number of resumes."""
        return self._stream.num_connections

    async def connect(self) -> Hello:
        """Open the stream and wait for hello: the model and the encoder are there. Raises TransportError, StreamError."""
        return await self._stream.connect()

    async def frames(self) -> AsyncIterator[Frame]:
        """Every frame once, in order. A frame is acknowledged when it is handed over, so a slow loop slows the generator.

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
                    self._keys.confirm(frame.control_id)
                    yield frame
        finally:
            self._close_recorder()
        await self._stream.result()

    async def control(
        self,
        *,
        pressed: Iterable[str] = (),
        released: Iterable[str] = (),
        pointer: tuple[float, float] = (0.0, 0.0),
        prompt: str | None = None,
    ) -> int:
        """Keys by KeyboardEvent.code, pointer motion (dx, dy) in CSS pixels, right and down positive.

        Returns the control's id: the first frame whose ``control_id`` is at least this used it. During an outage it waits;
        what a lost connection swallowed is told again after the next resume (keys and prompt, not motion). Raises UsageError
        for what the model does not take.
        """
        hello = await self._stream.connect()
        if prompt is not None and not hello.takes_prompt:
            raise UsageError(f"The model {hello.model} takes no prompt.")
        if pointer != (0.0, 0.0) and not hello.takes_pointer:
            raise UsageError(f"The model {hello.model} takes no pointer.")
        control = Control(self._next_control_id(), tuple(pressed), tuple(released), pointer[0], pointer[1], prompt)
        self._keys.apply(control)
        await self._stream.send(build_control(control))
        return control.control_id

    async def pause(self) -> None:
        await self._want("pause")

    async def play(self) -> None:
        await self._want("play")

    async def end(self) -> None:
        """Generate no more. What was generated still arrives through ``frames``, and the delivery is confirmed."""
        await self._want("end")

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
        """Leave. A session that has not ended is discarded on the server. Idempotent, bounded."""
        await self._stream.close()
        self._close_recorder()
        if self._stream.outcome is None:
            self._stream.outcome = Outcome(
                False, "closed", "client_left", self._stream.position.received_through, self._stream.position.decoded_count
            )
            with contextlib.suppress(IthakaError, TimeoutError):
                async with asyncio.timeout(DISCARD_TIMEOUT_S):
                    await self._api.delete_session(self.id, force=True, token=self.info.token)

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

    def _next_control_id(self) -> int:
        self._last_control_id += 1
        return self._last_control_id

    async def _want(self, wish: Literal["pause", "play", "end"]) -> None:
        await self._stream.connect()
        self._wish = wish
        await self._stream.send(_WISHES[wish])

    def _repeat_wishes(self) -> list[str]:
        keys = self._keys.snapshot(self._last_control_id + 1)
        messages = []
        if keys is not None:
            messages.append(build_control(keys))
            self._last_control_id = keys.control_id
        if self._wish is not None:
            messages.append(_WISHES[self._wish])
        return messages


_WISHES = {"pause": build_pause(), "play": build_play(), "end": build_end()}
