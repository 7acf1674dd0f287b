"""One clip from an engine: frames are granted from one scripted input to the next, so a script plays the same each time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ithaka.server.control_script import ScriptEntry
from ithaka.server.engine_client import (
    Engine,
    EngineEvent,
    EngineSessionEnded,
    EngineSessionStarted,
    ModelChanged,
    ModelState,
    PacketArrived,
    SessionRequest,
)
from ithaka.workers.contract import ApplyControl, ModelDescription


class GenerationError(Exception):
    """The clip could not be made; the text says why."""


@dataclass(frozen=True, slots=True)
class Clip:
    num_frames: int
    description: ModelDescription


class Generation:
    """Runs one request to its last frame.

    ``on_ready`` sees the model before anything is made, and what it raises ends the run; ``on_packet`` gets each access unit in
    order.

    Frames wait in the engine until they are granted; a grant reaches to the next scripted input, at a chunk's border.
    """

    def __init__(
        self,
        engine: Engine,
        request: SessionRequest,
        *,
        num_frames: int,
        script: Mapping[int, tuple[ScriptEntry, ...]],
        on_ready: Callable[[ModelDescription], None],
        on_packet: Callable[[ModelDescription, PacketArrived], None],
    ) -> None:
        self._engine = engine
        self._request = request
        self._num_frames = num_frames
        self._script = dict(script)
        self._on_ready = on_ready
        self._on_packet = on_packet
        self._description: ModelDescription | None = None
        self._received = 0
        self._granted = 0
        self._control_id = 0
        self._ending = False
        self._done: asyncio.Future[Clip] = asyncio.get_running_loop().create_future()

    async def run(self) -> Clip:
        """Start the engine, make the clip. The caller stops the engine. Raises GenerationError, EngineError, ``on_ready``'s."""
        await self._engine.start(self._on_event)
        return await self._done

    def _on_event(self, event: EngineEvent) -> None:
        if self._done.done():
            return
        try:
            self._handle(event)
        except Exception as error:
            self._done.set_exception(error)

    def _handle(self, event: EngineEvent) -> None:
        match event:
            case ModelChanged(status) if status.name == self._request.model:
                if status.state is ModelState.READY and self._description is None:
                    assert status.description is not None
                    self._on_ready(status.description)
                    self._description = status.description
                    self._engine.start_session(self._request)
                elif status.state is ModelState.FAILED:
                    raise GenerationError(f"model {status.name!r} did not start: {status.message}")
            case EngineSessionStarted():
                self._advance()
            case PacketArrived():
                self._received = event.header.seq
                if self._received <= self._num_frames and self._description is not None:
                    self._on_packet(self._description, event)
                self._advance()
            case EngineSessionEnded(code=code, message=message, last_seq=last_seq):
                if code not in ("ended", "finished"):
                    raise GenerationError(f"{code}: {message or 'the session ended early'}")
                assert self._description is not None
                self._done.set_result(Clip(min(last_seq, self._num_frames), self._description))

    def _advance(self) -> None:
        if self._received < self._granted or self._ending:
            return
        if self._received >= self._num_frames:
            self._ending = True
            self._engine.end_session(self._request.session_id)
            return
        for frame in sorted(frame for frame in self._script if frame <= self._received):
            for entry in self._script.pop(frame):
                self._apply(entry)
        assert self._description is not None
        chunk = self._description.chunk_frames
        target = min([self._num_frames, *self._script])
        self._granted = self._received + max(1, -(-(target - self._received) // chunk)) * chunk
        self._engine.grant(self._request.session_id, self._granted)

    def _apply(self, entry: ScriptEntry) -> None:
        self._control_id += 1
        self._engine.apply_control(
            ApplyControl(
                self._request.session_id,
                self._control_id,
                pressed=entry.press,
                released=entry.release,
                pointer_dx=entry.pointer_dx,
                pointer_dy=entry.pointer_dy,
                prompt=entry.prompt,
            )
        )
