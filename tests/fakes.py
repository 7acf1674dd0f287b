"""Stand-ins for the borders of the server: an engine that does what it is told, and time that tests move."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ithaka.server.engine_client import (
    EngineError,
    EngineEvent,
    EngineListener,
    EngineSessionEnded,
    EngineSessionStarted,
    ModelChanged,
    ModelState,
    ModelStatus,
    PacketArrived,
    SessionRequest,
)
from ithaka.workers.contract import ApplyControl, Codec, ModelDescription, PacketHeader

MODEL = "fake"
DESCRIPTION = ModelDescription(
    model=MODEL,
    family="fake",
    width=64,
    height=48,
    fps=16,
    chunk_frames=2,
    controls=("KeyW", "KeyA"),
    takes_prompt=True,
    takes_pointer=True,
    weights="none",
)
READY = ModelStatus(MODEL, ModelState.READY, max_sessions=2, num_ranks=1, description=DESCRIPTION)
CODEC = "avc1.42E01E"


class FakeTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeTimers:
    """Time stands still until ``advance``."""

    def __init__(self) -> None:
        self._now_s = 1000.0
        self._order = itertools.count()
        self._heap: list[tuple[float, int, FakeTimer]] = []

    def now_s(self) -> float:
        return self._now_s

    def now_ns(self) -> int:
        return int(self._now_s * 1e9)

    def call_at(self, when_s: float, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(callback)
        heapq.heappush(self._heap, (when_s, next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Move on, and call what falls due, in order, each at its time."""
        end_s = self._now_s + seconds
        while self._heap and self._heap[0][0] <= end_s:
            when_s, _, timer = heapq.heappop(self._heap)
            self._now_s = max(self._now_s, when_s)
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()
        self._now_s = end_s

    @property
    def num_pending(self) -> int:
        return sum(timer.callback is not None for _, _, timer in self._heap)


@dataclass
class FakeEngineSession:
    request: SessionRequest
    granted_through: int = 0
    generated_through: int = 0
    control_id: int = 0
    wants_key: bool = True
    is_ended: bool = False
    grants: list[int] = field(default_factory=list)


class FakeEngine:
    """Generates whole chunks as soon as they are granted, unless ``is_held``; answers starts unless ``holds_starts``.

    Answers come on the next turn of the running loop; without one (pure tests) at once.
    """

    def __init__(self, *statuses: ModelStatus, payload_bytes: int = 100, key_interval: int = 8) -> None:
        self._statuses = {status.name: status for status in (statuses or (READY,))}
        self.payload_bytes = payload_bytes
        self._key_interval = key_interval
        self._listener: EngineListener | None = None
        self.sessions: dict[str, FakeEngineSession] = {}
        self.controls: list[ApplyControl] = []
        self.key_requests: list[str] = []
        self.vp8: set[str] = set()
        self.bitrates: list[tuple[str, int]] = []
        self.end_requests: list[str] = []
        self.calls: list[str] = []
        self.is_held = False
        self.holds_starts = False
        self.holds_ends = False
        self.obeys_key_requests = True
        self.refuses_starts: Exception | None = None
        self.refuses_to_run: EngineError | None = None
        self.stop_gate: asyncio.Event | None = None
        self.now_ns: Callable[[], int] = lambda: 0

    # -- Engine --------------------------------------------------------------------------------------------------------

    async def start(self, listener: EngineListener) -> None:
        self.calls.append("start")
        self._listener = listener
        if self.refuses_to_run is not None:
            raise self.refuses_to_run

    def models(self) -> tuple[ModelStatus, ...]:
        return tuple(self._statuses.values())

    def start_session(self, request: SessionRequest) -> None:
        if self.refuses_starts is not None:
            raise self.refuses_starts
        self.sessions[request.session_id] = FakeEngineSession(request)
        if not self.holds_starts:
            self._later(lambda: self.emit_started(request.session_id))

    def apply_control(self, control: ApplyControl) -> None:
        self.controls.append(control)
        self.sessions[control.session_id].control_id = control.control_id

    def grant(self, session_id: str, through_seq: int) -> None:
        session = self.sessions[session_id]
        assert through_seq > session.granted_through, "a grant that does not grow"
        session.granted_through = through_seq
        session.grants.append(through_seq)
        if not self.is_held:
            self._later(lambda: self.generate(session_id))

    def open_vp8(self, session_id: str) -> None:
        self.vp8.add(session_id)

    def close_vp8(self, session_id: str) -> None:
        self.vp8.discard(session_id)

    def request_key_frame(self, session_id: str, codec: Codec = "h264") -> None:
        self.key_requests.append(session_id)
        self.sessions[session_id].wants_key = self.obeys_key_requests

    def estimate_bitrate(self, session_id: str, bits_per_s: int) -> None:
        self.bitrates.append((session_id, bits_per_s))

    def end_session(self, session_id: str, *, discard: bool = False) -> None:
        self.end_requests.append(session_id)
        if not self.holds_ends:
            self._later(lambda: self.emit_ended(session_id, "ended"))

    async def stop(self, *, deadline_s: float) -> None:
        self.calls.append("stop")
        if self.stop_gate is not None:
            await self.stop_gate.wait()

    def kill(self) -> None:
        self.calls.append("kill")
        if self.stop_gate is not None:
            self.stop_gate.set()

    # -- what tests tell it --------------------------------------------------------------------------------------------

    def emit(self, event: EngineEvent) -> None:
        assert self._listener is not None
        self._listener(event)

    def listen(self, listener: EngineListener) -> None:
        self._listener = listener
        for status in self.models():
            listener(ModelChanged(status))

    def set_model(self, state: ModelState, message: str = "", name: str = MODEL) -> None:
        self._statuses[name] = replace(self._statuses[name], state=state, message=message)
        self.emit(ModelChanged(self._statuses[name]))

    def set_description(self, *, takes_prompt: bool, name: str = MODEL) -> None:
        changed = replace(DESCRIPTION, takes_prompt=takes_prompt)
        self._statuses[name] = replace(self._statuses[name], description=changed)
        self.emit(ModelChanged(self._statuses[name]))

    def emit_started(self, session_id: str) -> None:
        self.emit(EngineSessionStarted(session_id, CODEC))

    def emit_ended(self, session_id: str, code: str, *, retryable: bool = False, message: str = "") -> None:
        session = self.sessions[session_id]
        if not session.is_ended:
            session.is_ended = True
            self.emit(EngineSessionEnded(session_id, session.generated_through, code, message, retryable))

    def generate(self, session_id: str) -> None:
        """Whole chunks through what is granted."""
        session = self.sessions[session_id]
        description = self._statuses[session.request.model].description
        assert description is not None
        while session.generated_through + description.chunk_frames <= session.granted_through and not session.is_ended:
            for _ in range(description.chunk_frames):
                self._emit_frame(session_id, session, description.chunk_frames)

    def _emit_frame(self, session_id: str, session: FakeEngineSession, chunk_frames: int) -> None:
        seq = session.generated_through + 1
        session.generated_through = seq
        is_key = session.wants_key or (seq - 1) % self._key_interval == 0
        session.wants_key = False
        header = PacketHeader(
            session_id=session_id,
            seq=seq,
            chunk=(seq - 1) // chunk_frames,
            control_id=session.control_id,
            pts=seq - 1,
            key=is_key,
            generated_ns=self.now_ns(),
            encoded_ns=self.now_ns(),
        )
        self.emit(PacketArrived(header, payload_of(seq, self.payload_bytes)))

    def _later(self, action: Callable[[], None]) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            action()
        else:
            loop.call_soon(action)


def payload_of(seq: int, num_bytes: int) -> bytes:
    """Bytes that name their frame."""
    return (seq.to_bytes(8, "big") * (num_bytes // 8 + 1))[:num_bytes]
