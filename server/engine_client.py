"""The engine as the session core sees it: commands down, events up. It knows nothing of processes.

``supervisor.LocalEngine`` stands behind it on one host; a distributed engine could.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from ithaka.workers.contract import ApplyControl, Codec, Delivery, ModelDescription, PacketHeader, Pixels


class ModelState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    """Given up: it failed at every start, so a restart won't help."""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """``description`` is None until the model was ready once; ``message`` says what is wrong, for a human."""

    name: str
    state: ModelState
    max_sessions: int
    num_ranks: int
    description: ModelDescription | None = None
    restarts: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class SessionRequest:
    session_id: str
    model: str
    seed: int
    prompt: str
    pixels: Pixels
    options: dict[str, Any] = field(default_factory=dict)
    delivery: Delivery = "lossless"


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelChanged:
    status: ModelStatus


@dataclass(frozen=True, slots=True)
class EngineSessionStarted:
    """Model memory and encoder are there; frames follow as soon as some are granted."""

    session_id: str
    codec: str


@dataclass(frozen=True, slots=True)
class PacketArrived:
    """One encoded access unit, or the word that a frame was dropped; in seq order, without a gap."""

    header: PacketHeader
    payload: bytes


@dataclass(frozen=True, slots=True)
class EngineSessionEnded:
    """Comes exactly once for each started session, after its last packet: none follows.

    ``last_seq`` is the last frame that was encoded. ``code``: "ended" (asked for), "finished" (the family had no more),
    "worker_lost", "encoder_lost", or a family's error code. ``retryable``: the same request may succeed soon.
    """

    session_id: str
    last_seq: int
    code: str
    message: str = ""
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class StepTimed:
    """For metrics and state pages: one chunk took ``step_ms``."""

    model: str
    session_id: str
    chunk: int
    control_id: int
    step_ms: float


@dataclass(frozen=True, slots=True)
class FramesCompared:
    """A chunk was decoded twice, on different devices: frames that were equal to the bit, and those that were not."""

    model: str
    session_id: str
    num_equal: int
    num_different: int


EngineEvent = ModelChanged | EngineSessionStarted | PacketArrived | EngineSessionEnded | StepTimed | FramesCompared
EngineListener = Callable[[EngineEvent], None]
"""Called on the event loop; must not block or raise."""


class EngineError(Exception):
    """A command that can't be taken now. ``code``: "model_unknown", "model_not_ready", "engine_stopping"."""

    def __init__(self, code: str, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable


class Engine(Protocol):
    """All methods belong to the event loop's thread. Commands for a session that ended are ignored."""

    async def start(self, listener: EngineListener) -> None:
        """Spawn what is needed and return; readiness comes as ModelChanged. Raises EngineError when it can't."""
        ...

    def models(self) -> tuple[ModelStatus, ...]: ...

    def start_session(self, request: SessionRequest) -> None:
        """Answered by EngineSessionStarted or EngineSessionEnded. Raises EngineError."""
        ...

    def apply_control(self, control: ApplyControl) -> None: ...

    def grant(self, session_id: str, through_seq: int) -> None:
        """Frames through this seq may be generated (cumulative)."""
        ...

    def request_key_frame(self, session_id: str, codec: Codec = "h264") -> None: ...

    def open_vp8(self, session_id: str) -> None:
        """Packets in VP8 come too, from the next frame on; where none comes, of the last one once a key frame is asked for."""
        ...

    def close_vp8(self, session_id: str) -> None: ...

    def estimate_bitrate(self, session_id: str, bits_per_s: int) -> None:
        """What the controller's connection carries. A live session's encoder follows, within its bounds."""
        ...

    def end_session(self, session_id: str, *, discard: bool = False) -> None:
        """Plan no more; answered by EngineSessionEnded once what was generated has been encoded, or at once (``discard``)."""
        ...

    async def stop(self, *, deadline_s: float) -> None:
        """Stop every child in order: cooperative, then terminate, then kill. Idempotent; nothing is left after it."""
        ...

    def kill(self) -> None:
        """SIGKILL every child, now; for a forced stop. ``stop`` still reaps."""
        ...
