"""What can happen to a session, and what has to be done about it: frozen values and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    QUEUED = "queued"
    """Waits for a place."""
    ADMITTED = "admitted"
    """Has a place; the model's memory and the encoder are being opened."""
    CONNECTING = "connecting"
    """Could stream; no controller has said ``resume`` yet."""
    STREAMING = "streaming"
    PAUSED = "paused"
    """As streaming, but the controller wants no new frames."""
    DETACHED = "detached"
    """The controller was lost; the model's memory is kept for its return."""
    DRAINING = "draining"
    """No new chunks; what was generated goes out, then ``eos``, then ``fin`` is awaited."""
    CLOSED = "closed"
    FAILED = "failed"
    """Ended by a fault on our side."""


class EnginePhase(StrEnum):
    ABSENT = "absent"
    STARTING = "starting"
    STARTED = "started"
    ENDED = "ended"


class ControllerPhase(StrEnum):
    ABSENT = "absent"
    ATTACHED = "attached"
    """Connected, ``resume`` not yet seen."""
    RESUMED = "resumed"


class Timeout(StrEnum):
    QUEUE = "queue"
    CONNECT = "connect"
    DETACH = "detach"
    DRAIN = "drain"
    DURATION = "duration"
    ACK = "ack"
    """The connected controller owes an acknowledgement for too long. Kept by the data path, not by the table."""


class FinVerdict(StrEnum):
    EARLY = "early"
    """Said before ``eos`` was sent."""
    MATCH = "match"
    MISMATCH = "mismatch"


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admitted:
    """A place is the session's."""


@dataclass(frozen=True, slots=True)
class AdmissionFailed:
    """It will never get a place."""

    code: str
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class EngineStarted:
    pass


@dataclass(frozen=True, slots=True)
class EngineEnded:
    """No frame follows. ``is_failure`` is False when the end was asked for or the model had no more."""

    code: str
    is_failure: bool
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class ControllerAttached:
    pass


@dataclass(frozen=True, slots=True)
class ControllerResumed:
    pass


@dataclass(frozen=True, slots=True)
class ControllerLost:
    """Its connection ended without ``fin``, by whosever fault."""


@dataclass(frozen=True, slots=True)
class PauseRequested:
    pass


@dataclass(frozen=True, slots=True)
class PlayRequested:
    pass


@dataclass(frozen=True, slots=True)
class EndRequested:
    """Drain. ``reason`` is a code of ``errors.ERROR_CODES``."""

    reason: str = "ended"
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class ForceRequested:
    """Close now, whatever is under way. ``is_failure``: by a fault of ours."""

    reason: str = "forced"
    retryable: bool = False
    is_failure: bool = False


@dataclass(frozen=True, slots=True)
class FinReceived:
    verdict: FinVerdict


@dataclass(frozen=True, slots=True)
class TimedOut:
    timeout: Timeout


Event = (
    Admitted
    | AdmissionFailed
    | EngineStarted
    | EngineEnded
    | ControllerAttached
    | ControllerResumed
    | ControllerLost
    | PauseRequested
    | PlayRequested
    | EndRequested
    | ForceRequested
    | FinReceived
    | TimedOut
)


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ArmTimeout:
    """Start it, or start it anew when it runs."""

    timeout: Timeout


@dataclass(frozen=True, slots=True)
class CancelTimeout:
    timeout: Timeout


@dataclass(frozen=True, slots=True)
class StartEngine:
    pass


@dataclass(frozen=True, slots=True)
class EndEngine:
    """``discard``: the session is over, what was not decoded yet need not be."""

    discard: bool = False


@dataclass(frozen=True, slots=True)
class SendHello:
    """To the attached controller."""


@dataclass(frozen=True, slots=True)
class StartGeneration:
    """Once, at the first ``resume``."""


@dataclass(frozen=True, slots=True)
class HoldGeneration:
    pass


@dataclass(frozen=True, slots=True)
class ContinueGeneration:
    pass


@dataclass(frozen=True, slots=True)
class ReleaseKeys:
    """Nobody is there to let them go."""


@dataclass(frozen=True, slots=True)
class SendEos:
    """After the last frame, on this connection and on each that resumes."""


@dataclass(frozen=True, slots=True)
class DropController:
    code: str


@dataclass(frozen=True, slots=True)
class AnnounceState:
    pass


@dataclass(frozen=True, slots=True)
class CloseSession:
    """The last effect of every session, exactly once."""

    close_code: int


Effect = (
    ArmTimeout
    | CancelTimeout
    | StartEngine
    | EndEngine
    | SendHello
    | StartGeneration
    | HoldGeneration
    | ContinueGeneration
    | ReleaseKeys
    | SendEos
    | DropController
    | AnnounceState
    | CloseSession
)
