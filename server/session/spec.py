"""What a session is made of: the request, its surroundings, and how it sees a connection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ithaka.configs.schema import SessionSection
from ithaka.server.engine_client import Engine, SessionRequest
from ithaka.server.errors import ProtocolViolation
from ithaka.server.metrics import Metrics
from ithaka.server.session.events import Timeout
from ithaka.server.session.flow import Shape
from ithaka.server.session.messages import ErrorRaised, Role, StateChanged
from ithaka.server.session.timers import Timers
from ithaka.workers.contract import Delivery, ModelDescription, Pixels

Pacing = Literal["media", "unpaced"]


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """What a client asked for. ``stream`` names the session's one generation of seqs."""

    session_id: str
    stream: str
    model: str
    seed: int
    prompt: str
    pixels: Pixels
    pacing: Pacing
    window_frames: int
    max_frames: int | None = None
    delivery: Delivery = "lossless"
    options: dict[str, Any] = field(default_factory=dict)

    def request(self) -> SessionRequest:
        """As the engine takes it."""
        return SessionRequest(
            self.session_id, self.model, self.seed, self.prompt, self.pixels, options=self.options, delivery=self.delivery
        )


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every session needs and none owns."""

    engine: Engine
    timers: Timers
    settings: SessionSection
    metrics: Metrics


class Owner(Protocol):
    """Who keeps the session. Told with its id."""

    def session_closed(self, session_id: str) -> None:
        """Over; its place may still be taken."""
        ...

    def place_freed(self, session_id: str) -> None:
        """The engine holds nothing of it."""
        ...


class Connection(Protocol):
    """A peer as the session sees it."""

    role: Role

    def greet(self) -> None: ...

    def announce(self) -> None: ...

    def wake(self) -> None: ...

    def gives_way(self) -> bool:
        """Another one wants its place; True where nothing is heard of it."""
        ...

    def drop(self, violation: ProtocolViolation) -> None: ...

    def finish(self, last_state: StateChanged, error: ErrorRaised, close_code: int, *, is_fault: bool) -> None: ...


def duration_s(settings: SessionSection, timeout: Timeout) -> float:
    """How long the timeout is, by configuration."""
    return {
        Timeout.QUEUE: settings.queue_timeout_s,
        Timeout.CONNECT: settings.connect_timeout_s,
        Timeout.DETACH: settings.detach_timeout_s,
        Timeout.DRAIN: settings.drain_timeout_s,
        Timeout.DURATION: settings.max_duration_s,
        Timeout.ACK: settings.ack_timeout_s,
    }[timeout]


def shape_of(spec: SessionSpec, description: ModelDescription, settings: SessionSection) -> Shape:
    """What the data path has to know."""
    return Shape(
        fps=description.fps,
        chunk_frames=description.chunk_frames,
        window_frames=spec.window_frames,
        retained_bytes=settings.retained_bytes,
        is_unpaced=spec.pacing == "unpaced",
        max_frames=spec.max_frames,
        is_live=spec.delivery == "live",
    )
