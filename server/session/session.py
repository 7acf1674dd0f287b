"""One live session: feeds ``advance`` with what happens and performs what it answers."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from ithaka.server.engine_client import (
    EngineError,
    EngineSessionEnded,
    EngineSessionStarted,
    PacketArrived,
    StepTimed,
)
from ithaka.server.errors import CLOSE_VIOLATION, ERROR_CODES, ApiError, ProtocolViolation
from ithaka.server.session import events
from ithaka.server.session.ack_watch import AckWatch
from ithaka.server.session.controls import ControlDesk
from ithaka.server.session.cursor import Cursor, Vp8Cursor, controller_cursor, viewer_cursor
from ithaka.server.session.events import Effect, EnginePhase, State, Timeout
from ithaka.server.session.flow import FrameFlow
from ithaka.server.session.greeting import hello_of
from ithaka.server.session.life import FAULT, Life
from ithaka.server.session.messages import ControlBody, Eos, ErrorRaised, Hello, Role, StateChanged
from ithaka.server.session.retention import EncodedFrame
from ithaka.server.session.seats import Seats
from ithaka.server.session.spec import Connection, Owner, SessionSpec, Surroundings, duration_s, shape_of
from ithaka.server.session.state import TERMINAL, SessionData
from ithaka.server.session.timers import NamedTimers
from ithaka.workers.contract import Codec, ModelDescription

_ORDERLY = frozenset({"ended", "finished"})
_PACER = "pacer"

log = structlog.get_logger()


class Session:
    def __init__(self, spec: SessionSpec, surroundings: Surroundings, owner: Owner, created_at_s: float) -> None:
        self.spec = spec
        self.created_at_s = created_at_s
        self.description: ModelDescription | None = None
        self.flow: FrameFlow | None = None
        self._reason_message = ""
        self.step_ms: float | None = None
        self.watchers: set[Callable[[], None]] = set()
        """Called after every change of state; must not raise."""
        self.taps: set[Callable[[EncodedFrame], None]] = set()
        """Called with every frame as it comes; must not raise or wait."""
        self._surroundings = surroundings
        self._owner = owner
        self._engine = surroundings.engine
        self._timers = surroundings.timers
        self._named_timers = NamedTimers(surroundings.timers)
        self._desk: ControlDesk | None = None
        self._seats = Seats(surroundings.settings.max_viewers)
        self._codec = ""
        self._ack_watch = AckWatch(
            self._timers,
            self._named_timers,
            duration_s(surroundings.settings, Timeout.ACK),
            lambda: self._life.advance(events.TimedOut(Timeout.ACK)),
        )
        self._log = log.bind(session=spec.session_id, model=spec.model)
        self._life = Life(self._perform, self._log)

    # -- facts ---------------------------------------------------------------------------------------------------------

    @property
    def session_id(self) -> str:
        return self.spec.session_id

    @property
    def data(self) -> SessionData:
        return self._life.data

    @property
    def message(self) -> str:
        """Why it ends, for a human; empty while it does not."""
        known = ERROR_CODES.get(self.data.reason)
        return self._reason_message or (known.meaning if known is not None else self.data.reason)

    @property
    def is_over(self) -> bool:
        return self.data.state in TERMINAL

    @property
    def is_draining(self) -> bool:
        return self.data.state is State.DRAINING

    @property
    def num_viewers(self) -> int:
        return len(self._seats.viewers)

    def state_message(self) -> StateChanged:
        data = self.data
        return StateChanged(state=data.state, reason=data.reason, delivered=data.delivered)

    def hello(self, role: Role) -> Hello:
        """Only once the engine has started."""
        assert self.description is not None, "the session was not admitted"
        return hello_of(self.spec, self.description, self._flowing().delivery, self._codec, role)

    def eos(self) -> Eos | None:
        """Once the engine has said which frame is the last."""
        last_seq = self._flowing().delivery.last_seq
        if last_seq is None:
            return None
        return Eos(last_seq=last_seq, count=last_seq, reason=self.data.reason, retryable=self.data.retryable)

    # -- life, led by the owner ----------------------------------------------------------------------------------------

    def open(self) -> None:
        self._life.begin()

    def admit(self, description: ModelDescription) -> None:
        """The session has a place in a model that is ready."""
        self.description = description
        self._desk = ControlDesk(self.session_id, description)
        self.flow = FrameFlow(self.spec.stream, shape_of(self.spec, description, self._surroundings.settings))
        self._life.advance(events.Admitted())

    def fail_admission(self, code: str, message: str) -> None:
        self._reason_message = message
        self._life.advance(events.AdmissionFailed(code))

    def end(self, reason: str) -> None:
        """Drain, then close. ``reason`` is a code of ``ERROR_CODES``."""
        self._life.advance(events.EndRequested(reason, ERROR_CODES[reason].retryable))

    def force(self, reason: str) -> None:
        """Close now."""
        self._life.advance(events.ForceRequested(reason, ERROR_CODES[reason].retryable, is_failure=reason == FAULT))

    # -- the engine's events -------------------------------------------------------------------------------------------

    def engine_started(self, event: EngineSessionStarted) -> None:
        self._codec = event.codec
        self._life.advance(events.EngineStarted())
        for viewer in () if self.is_over else tuple(self._seats.viewers):
            viewer.greet()

    def engine_ended(self, event: EngineSessionEnded) -> None:
        if self.is_over:
            return
        delivery = self._flowing().delivery
        delivery.ended(event.last_seq)
        if event.last_seq != delivery.generated_through:
            self._log.error("session.frames_missing", last_seq=event.last_seq, arrived=delivery.generated_through)
        is_failure = event.code not in _ORDERLY
        if is_failure:
            self._reason_message = event.message
        self._life.advance(events.EngineEnded(event.code, is_failure, event.retryable))

    def packet_arrived(self, packet: PacketArrived) -> None:
        if self.is_over:
            return
        flow, metrics = self._flowing(), self._surroundings.metrics
        if packet.header.codec == "vp8":
            if flow.vp8.add(EncodedFrame(packet.header, packet.payload)):
                self._engine.request_key_frame(self.session_id, "vp8")
            self._wake_peers()
            return
        (metrics.dropped if packet.header.dropped else metrics.generated).labels(self.spec.model).inc()
        frame = EncodedFrame(packet.header, packet.payload)
        if flow.add(frame):
            self._engine.request_key_frame(self.session_id)
        for tap in tuple(self.taps):
            tap(frame)
        if flow.is_live:
            self._pump()
        self._wake_peers()
        if flow.has_reached_limit and not self.is_draining:
            self.end("max_frames")

    def step_timed(self, event: StepTimed) -> None:
        self.step_ms = event.step_ms

    # -- connections ---------------------------------------------------------------------------------------------------

    def attach(self, peer: Connection) -> None:
        """Raises ProtocolViolation when there is no room for it."""
        if self.is_over:
            raise ProtocolViolation("session_ended", f"the session is over: {self.data.reason}")
        if peer.role == "viewer":
            self._seats.add_viewer(peer)
            if self.data.engine in (EnginePhase.STARTED, EnginePhase.ENDED):
                peer.greet()
            return
        silent = self._seats.silent_controller()
        if silent is not None:
            self.lose(silent)
            silent.drop(ProtocolViolation("controller_connected", "another controller came while this one was silent"))
        self._seats.controller = peer
        self._life.advance(events.ControllerAttached())

    def lose(self, peer: Connection) -> None:
        """The connection is gone; without effect for one that the session let go itself."""
        self._seats.viewers.discard(peer)
        if self._seats.controller is peer:
            self._seats.controller = None
            self._ack_watch.forget()
            if self.flow is not None:
                self.flow.controller_lost(self._timers.now_s())
            self._life.advance(events.ControllerLost())

    def viewer_cursor(self) -> Cursor:
        """For a viewer that was greeted."""
        return viewer_cursor(self._flowing(), self.key_frame_wanted)

    def resume(self, stream: str, next_seq: int, *, acknowledges: bool) -> Cursor:
        """Where the controller's sending begins. Raises ProtocolViolation."""
        flow = self._flowing()
        start_seq = flow.resume(stream, next_seq)
        self._desk_of_model().begin_connection()
        self._life.advance(events.ControllerResumed())
        flow.controller_resumed(self._timers.now_s(), is_paused=self.data.paused or self.is_draining)
        self._pump()
        return controller_cursor(flow, start_seq, next_seq, self.key_frame_wanted, acknowledges=acknowledges)

    def key_frame_wanted(self, codec: Codec = "h264") -> None:
        """A receiver can't go on without one."""
        flow = self._flowing()
        if not self.is_over and (flow.vp8 if codec == "vp8" else flow).want_key():
            self._engine.request_key_frame(self.session_id, codec)

    def use_vp8(self) -> Cursor:
        """For a track that takes nothing else; ``leave_vp8`` when it is gone."""
        if self._flowing().vp8.use():
            self._engine.open_vp8(self.session_id)
        self.key_frame_wanted("vp8")
        return Vp8Cursor(lambda: self.key_frame_wanted("vp8"))

    def leave_vp8(self) -> None:
        if self._flowing().vp8.leave():
            self._engine.close_vp8(self.session_id)

    def bitrate_estimated(self, bits_per_s: int) -> None:
        """What the controller's connection carries."""
        if not self.is_over:
            self._engine.estimate_bitrate(self.session_id, bits_per_s)

    def acknowledge(self, received_through: int, decoded_through: int) -> None:
        """Raises ProtocolViolation."""
        flow, metrics = self._flowing(), self._surroundings.metrics
        before, newest = flow.delivery.decoded_through, flow.retention.get(decoded_through)
        if not flow.acknowledge(received_through, decoded_through):
            return
        metrics.decoded.labels(self.spec.model).inc(decoded_through - before)
        if newest is not None:
            age_s = (self._timers.now_ns() - newest.header.generated_ns) / 1e9
            metrics.decoded_after_s.labels(self.spec.model).observe(age_s)
        self._ack_watch.forget()
        self.expect_ack()
        self._pump()
        if flow.is_live:  # What is in flight is bounded there.
            self._wake_peers()

    def expect_ack(self) -> None:
        """The controller may owe an acknowledgement from now on."""
        if self._flowing().delivery.owes_ack:
            self._ack_watch.expect()

    def eos_sent(self) -> None:
        """To the controller."""
        self._flowing().delivery.eos_sent()

    def control(self, body: ControlBody, *, control_id: int | None, is_strict: bool = False) -> int:
        """Pass on what the user did. Returns the control's id. ``is_strict`` refuses unknown keys. Raises ApiError."""
        if self.is_over or self.is_draining:
            raise ApiError("session_ended", f"the session is {self.data.state} and takes no more controls")
        if self.data.state in (State.QUEUED, State.ADMITTED):
            raise ApiError("session_not_started", f"the session is {self.data.state}; wait until it is connecting")
        control = self._desk_of_model().take(body, control_id, is_strict=is_strict)
        try:
            self._engine.apply_control(control)
        except EngineError as error:
            raise ApiError(error.code, str(error), field="body") from None
        return control.control_id

    def pause(self) -> None:
        self._life.advance(events.PauseRequested())

    def play(self) -> None:
        self._life.advance(events.PlayRequested())

    def finish(self, decoded_count: int, last_seq: int) -> None:
        """The client says that it is done."""
        verdict = self._flowing().delivery.finish(decoded_count, last_seq)
        self._life.advance(events.FinReceived(verdict))

    # -- what has to be done -------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> None:
        match effect:
            case events.ArmTimeout(timeout):
                when_s = self._timers.now_s() + duration_s(self._surroundings.settings, timeout)
                self._named_timers.arm(timeout, when_s, lambda: self._life.advance(events.TimedOut(timeout)))
            case events.CancelTimeout(timeout):
                self._named_timers.cancel(timeout)
            case events.StartEngine():
                self._start_engine()
            case events.EndEngine(discard):
                self._engine.end_session(self.session_id, discard=discard)
            case events.SendHello():
                assert self._seats.controller is not None
                self._seats.controller.greet()
            case events.StartGeneration() | events.ContinueGeneration():
                self._flowing().play(self._timers.now_s())
                self._pump()
            case events.HoldGeneration():
                self._flowing().hold(self._timers.now_s())
                self._pump()
            case events.ReleaseKeys():
                released = self._desk_of_model().release_all()
                if released is not None:
                    self._engine.apply_control(released)
            case events.SendEos():
                self._wake_peers()
            case events.DropController(code):
                self._drop_controller(code)
            case events.AnnounceState():
                self._announce()
            case events.CloseSession(close_code):
                self._close(close_code)

    def _start_engine(self) -> None:
        """The place is free again unless the engine took the session, whatever kept it from doing so."""
        try:
            self._engine.start_session(self.spec.request())
            return
        except EngineError as error:
            self._reason_message = str(error)
            ended = events.EngineEnded(error.code, is_failure=True, retryable=error.retryable)
        except Exception:
            self._log.exception("session.start_failed")
            ended = events.EngineEnded(FAULT, is_failure=True)
        self._life.advance(ended)
        self._owner.place_freed(self.session_id)

    def _pump(self) -> None:
        """Grant what may be granted, and set the one timer for the pacer's next moment."""
        if self.is_over:
            return
        flow = self._flowing()
        through_seq = flow.grant(self._timers.now_s())
        if through_seq is not None:
            self._engine.grant(self.session_id, through_seq)
        moment_s = flow.next_moment_s()
        if moment_s is None:
            self._named_timers.cancel(_PACER)
        else:
            self._named_timers.arm(_PACER, moment_s, self._pump)

    def _drop_controller(self, code: str) -> None:
        assert self._seats.controller is not None
        peer, self._seats.controller = self._seats.controller, None
        peer.drop(ProtocolViolation(code, ERROR_CODES[code].meaning))

    def _announce(self) -> None:
        self._log.debug("session.state", state=self.data.state, reason=self.data.reason)
        if not self.is_over:
            for peer in self._seats.taken:
                peer.announce()
        for watcher in tuple(self.watchers):
            watcher()

    def _close(self, close_code: int) -> None:
        """Frames are let go, connections get their last words, the owner hears of it."""
        data = self.data
        self._named_timers.cancel_all()
        if self.flow is not None:
            self.flow.retention.clear()
        self._log.info("session.closed", reason=data.reason, delivered=data.delivered, message=self._reason_message)
        self._surroundings.metrics.ended.labels(data.reason, str(data.delivered).lower()).inc()
        error = ErrorRaised(code=data.reason, message=self.message, retryable=data.retryable)
        try:
            for peer in self._seats.taken:
                peer.finish(self.state_message(), error, close_code, is_fault=close_code == CLOSE_VIOLATION)
        finally:
            self._seats.clear()
            self._owner.session_closed(self.session_id)

    def _wake_peers(self) -> None:
        for peer in self._seats.taken:
            peer.wake()

    def _flowing(self) -> FrameFlow:
        assert self.flow is not None, "the session was not admitted"
        return self.flow

    def _desk_of_model(self) -> ControlDesk:
        assert self._desk is not None, "the session was not admitted"
        return self._desk
