"""All sessions: makes them, finds them, leads the engine's events to them, and sees them out."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from ithaka.server.engine_client import (
    EngineEvent,
    EngineSessionEnded,
    EngineSessionStarted,
    FramesCompared,
    ModelChanged,
    ModelState,
    ModelStatus,
    PacketArrived,
    StepTimed,
)
from ithaka.server.errors import ApiError
from ithaka.server.session.admission import Admission
from ithaka.server.session.events import State
from ithaka.server.session.life import FAULT
from ithaka.server.session.session import Session
from ithaka.server.session.spec import Pacing, SessionSpec, Surroundings
from ithaka.workers.contract import Delivery, Pixels

MAX_REMEMBERED = 256
"""Ended sessions that can still be asked about; they hold no frames."""
_REFUSALS = {"invalid_session_options": "body.options", FAULT: ""}
"""Why a session may end while it is created → the field to blame."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SessionWish:
    """What a client asks for; ``window_frames`` None takes the server's."""

    model: str
    seed: int = 0
    prompt: str = ""
    pixels: Pixels = "lossy"
    pacing: Pacing = "media"
    window_frames: int | None = None
    max_frames: int | None = None
    delivery: Delivery = "lossless"
    options: dict[str, Any] = field(default_factory=dict)


class SessionRegistry:
    """``wall_s`` gives seconds since 1970."""

    def __init__(self, surroundings: Surroundings, *, wall_s: Callable[[], float]) -> None:
        self._surroundings = surroundings
        self._wall_s = wall_s
        self._admission = Admission(surroundings.settings.max_queued)
        self._sessions: dict[str, Session] = {}
        self._over: dict[str, None] = {}
        self._admitted: deque[str] = deque()
        self._is_admitting = False
        self._is_stopping = False
        self._all_over = asyncio.Event()
        self._all_over.set()

    # -- facts ---------------------------------------------------------------------------------------------------------

    def get(self, session_id: str) -> Session:
        """Raises ApiError ``session_unknown``."""
        session = self._sessions.get(session_id)
        if session is None:
            raise ApiError("session_unknown", f"no session has the id {session_id!r}; it may have ended long ago")
        return session

    def all(self) -> tuple[Session, ...]:
        return tuple(self._sessions.values())

    def models(self) -> tuple[ModelStatus, ...]:
        return self._admission.statuses()

    def model(self, name: str) -> ModelStatus:
        """Raises ApiError ``model_unknown``."""
        return self._admission.status(name)

    def num_inside(self, model: str) -> int:
        """Places taken."""
        return self._admission.num_inside(model)

    def queue_position(self, session_id: str) -> int | None:
        """From 1; None when it does not wait."""
        return self._admission.position(session_id)

    def why_not_ready(self) -> str | None:
        """None while a group can take a session."""
        if self._is_stopping:
            return "the server stops"
        statuses = self._admission.statuses()
        if any(status.state is ModelState.READY for status in statuses):
            return None
        told = "; ".join(f"{status.name} is {status.state}: {status.message or 'not ready yet'}" for status in statuses)
        return told or "there is no model"

    @property
    def is_given_up(self) -> bool:
        """No model will be ready again without another start."""
        statuses = self._admission.statuses()
        return bool(statuses) and all(status.state is ModelState.FAILED for status in statuses)

    def measure(self) -> None:
        """Bring the gauges up to date, before they are read."""
        metrics = self._surroundings.metrics
        states = [session.data.state for session in self._sessions.values()]
        for state in State:
            metrics.sessions.labels(state).set(states.count(state))
        for status in self._admission.statuses():
            metrics.queued.labels(status.name).set(self._admission.num_waiting(status.name))
            metrics.places.labels(status.name).set(self._admission.num_inside(status.name))
            metrics.model_ready.labels(status.name).set(status.state is ModelState.READY)
            metrics.model_restarts.labels(status.name).set(status.restarts)

    # -- coming and going ----------------------------------------------------------------------------------------------

    def create(self, wish: SessionWish) -> Session:
        """A session that is admitted or queued. Raises ApiError when it is neither."""
        metrics = self._surroundings.metrics
        session_id = secrets.token_hex(12)
        try:
            if self._is_stopping:
                raise ApiError("server_stopping", "the server stops and takes no more sessions")
            description = self._admission.status(wish.model).description
            if wish.prompt and description is not None and not description.takes_prompt:
                raise ApiError("control_not_taken", f"model {wish.model!r} takes no prompt", field="body.prompt")
            has_place = self._admission.request(session_id, wish.model)
        except ApiError as error:
            metrics.refused.labels(error.code).inc()
            raise
        spec = SessionSpec(
            session_id=session_id,
            stream=secrets.token_hex(6),
            model=wish.model,
            seed=wish.seed,
            prompt=wish.prompt,
            pixels=wish.pixels,
            pacing=wish.pacing,
            window_frames=wish.window_frames or self._surroundings.settings.window_frames,
            max_frames=wish.max_frames,
            delivery=wish.delivery,
            options=wish.options,
        )
        session = Session(spec, self._surroundings, self, self._wall_s())
        self._sessions[session_id] = session
        self._all_over.clear()
        metrics.created.labels(wish.model).inc()
        session.open()
        if has_place:
            self._admit([session_id])
            self._refuse_what_never_began(session)
        return session

    def _refuse_what_never_began(self, session: Session) -> None:
        """Its request was at fault, or we are: nobody has to ask for it later. Raises ApiError."""
        if session.is_over and session.data.reason in _REFUSALS:
            del self._over[session.session_id]
            del self._sessions[session.session_id]
            self._surroundings.metrics.refused.labels(session.data.reason).inc()
            raise ApiError(session.data.reason, session.message, field=_REFUSALS[session.data.reason])

    def stop_admitting(self) -> None:
        self._is_stopping = True

    def drain_all(self) -> None:
        for session in self.all():
            session.end("server_stopping")

    def force_all(self) -> None:
        for session in self.all():
            session.force("server_stopping")

    async def wait_all_over(self) -> None:
        await self._all_over.wait()

    # -- what the engine tells -----------------------------------------------------------------------------------------

    def engine_event(self, event: EngineEvent) -> None:
        """Never raises: a fault in one session ends that session alone."""
        try:
            self._dispatch(event)
        except Exception:
            log.exception("engine_event.failed", event_type=type(event).__name__)
            session = self._sessions.get(_session_id(event))
            if session is not None:
                session.force(FAULT)

    def _dispatch(self, event: EngineEvent) -> None:
        match event:
            case ModelChanged(status):
                self._model_changed(status)
            case PacketArrived(header):
                if (session := self._sessions.get(header.session_id)) is not None:
                    session.packet_arrived(event)
            case EngineSessionStarted(session_id):
                if (session := self._sessions.get(session_id)) is not None:
                    session.engine_started(event)
            case EngineSessionEnded(session_id):
                try:
                    if (session := self._sessions.get(session_id)) is not None:
                        session.engine_ended(event)
                finally:
                    self.place_freed(session_id)
            case FramesCompared(model):
                self._surroundings.metrics.compared.labels(model, "equal").inc(event.num_equal)
                self._surroundings.metrics.compared.labels(model, "different").inc(event.num_different)
            case StepTimed(model, session_id):
                self._surroundings.metrics.step_s.labels(model).observe(event.step_ms / 1000)
                if (session := self._sessions.get(session_id)) is not None:
                    session.step_timed(event)

    def _model_changed(self, status: ModelStatus) -> None:
        admitted, hopeless = self._admission.update(status)
        for session_id in hopeless:
            message = f"model {status.name!r} can't be used: {status.message or status.state}"
            self._sessions[session_id].fail_admission("model_unavailable", message)
        self._admit(admitted)

    def _admit(self, session_ids: list[str]) -> None:
        """One after another, never one within another: a start that is refused frees the next one's place at once."""
        self._admitted.extend(session_ids)
        if self._is_admitting or not self._admitted:
            return
        self._is_admitting = True
        try:
            while self._admitted:
                self._admit_one(self._admitted.popleft())
        finally:
            self._is_admitting = False
        self._tell_waiting()

    def _admit_one(self, session_id: str) -> None:
        session = self._sessions.get(session_id)
        if session is None or session.is_over:
            self.place_freed(session_id)
            return
        try:
            description = self._admission.status(session.spec.model).description
            assert description is not None, "a ready model is described"
            session.admit(description)
        except Exception:
            log.exception("session.admission_failed", session=session_id)
            session.force(FAULT)
            self.place_freed(session_id)

    def _tell_waiting(self) -> None:
        """Positions have changed."""
        for session in self.all():
            if session.data.state is State.QUEUED:
                for watcher in tuple(session.watchers):
                    watcher()

    # -- what sessions tell --------------------------------------------------------------------------------------------

    def session_closed(self, session_id: str) -> None:
        has_waited = self._admission.leave_queue(session_id)
        self._over[session_id] = None
        while len(self._over) > MAX_REMEMBERED:
            oldest = next(iter(self._over))
            del self._over[oldest]
            del self._sessions[oldest]
        if len(self._over) == len(self._sessions):
            self._all_over.set()
        if has_waited:
            self._tell_waiting()

    def place_freed(self, session_id: str) -> None:
        self._admit(self._admission.release(session_id))


def _session_id(event: EngineEvent) -> str:
    match event:
        case PacketArrived(header):
            return header.session_id
        case ModelChanged():
            return ""
        case _:
            return event.session_id
