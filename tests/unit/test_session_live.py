"""Whole sessions without sockets, in the test's time, under any order of what clients, engine and clock may do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.fakes import MODEL, READY, FakeEngine, FakeTimers

from ithaka.configs.schema import SessionSection
from ithaka.server.engine_client import EngineSessionStarted, ModelState, PacketArrived
from ithaka.server.errors import ApiError, ProtocolViolation
from ithaka.server.metrics import Metrics
from ithaka.server.session.cursor import Cursor
from ithaka.server.session.events import State
from ithaka.server.session.messages import ControlBody, ErrorRaised, Role, StateChanged
from ithaka.server.session.registry import SessionRegistry, SessionWish
from ithaka.server.session.session import Session
from ithaka.server.session.spec import Surroundings

SETTINGS = SessionSection(max_queued=2, retained_bytes=1024 * 1024)


class PullingClient:
    """Takes what the session has for it, as a connection does, and remembers what it showed over all its connections."""

    role: Role = "controller"

    def __init__(self, session: Session) -> None:
        self.session = session
        self.shown: list[int] = []
        self.is_attached = self.may_resume = self.is_silent = False
        self.cursor: Cursor | None = None
        self.has_eos = False
        self.last_state: StateChanged | None = None

    def greet(self) -> None:
        self.may_resume = True

    def announce(self) -> None:
        pass

    def wake(self) -> None:
        if self.cursor is None or self.session.flow is None:
            return
        while (taken := self.cursor.take(self.session.flow)) is not None:
            frame, decode_only = taken
            self.session.expect_ack()
            if decode_only:
                assert frame.header.seq <= len(self.shown)
            else:
                self.shown.append(frame.header.seq)
        if self.session.eos() is not None:
            self.session.eos_sent()
            self.has_eos = True

    def gives_way(self) -> bool:
        return self.is_silent

    def drop(self, violation: ProtocolViolation) -> None:
        self._disconnect()

    def finish(self, last_state: StateChanged, error: ErrorRaised, close_code: int, *, is_fault: bool) -> None:
        assert self.last_state is None, "told the end twice"
        self.last_state = last_state
        self._disconnect()

    def attach(self) -> None:
        self.session.attach(self)
        self.is_attached = True

    def lose(self) -> None:
        self._disconnect()
        self.session.lose(self)

    def resume(self, known: int) -> None:
        """From ``known`` frames beyond its acknowledgements, as far as it showed them."""
        assert self.session.flow is not None
        delivery = self.session.flow.delivery
        next_seq = min(len(self.shown), delivery.decoded_through + known) + 1
        del self.shown[next_seq - 1 :]
        self.cursor = self.session.resume(delivery.stream, next_seq, acknowledges=True)
        self.wake()

    def acknowledge(self, step: int) -> None:
        assert self.session.flow is not None
        delivery = self.session.flow.delivery
        decoded = min(len(self.shown), delivery.decoded_through + step)
        self.session.acknowledge(max(decoded, delivery.received_through), decoded)
        self.wake()

    def _disconnect(self) -> None:
        self.is_attached = self.may_resume = self.has_eos = False
        self.cursor = None


class SessionLives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.timers = FakeTimers()
        self.engine = FakeEngine(replace(READY, max_sessions=1))
        self.engine.now_ns = self.timers.now_ns
        surroundings = Surroundings(self.engine, self.timers, SETTINGS, Metrics())
        self.registry = SessionRegistry(surroundings, wall_s=lambda: 0.0)
        self.engine.listen(self.registry.engine_event)
        self.clients: list[PullingClient] = []

    @initialize(
        window=st.integers(2, 9), max_frames=st.none() | st.integers(1, 30), pacing=st.sampled_from(["media", "unpaced"])
    )
    def start(self, window: int, max_frames: int | None, pacing: str) -> None:
        self.wish = SessionWish(
            MODEL, pacing="media" if pacing == "media" else "unpaced", window_frames=window, max_frames=max_frames
        )
        self.create()

    def create(self) -> None:
        try:
            session = self.registry.create(self.wish)
        except ApiError as error:
            assert error.code == "queue_full"
        else:
            self.clients.append(PullingClient(session))

    @rule(step=st.integers(0, 9), seconds=st.sampled_from([0.0, 0.125, 0.125, 0.3, 2.0]), known=st.integers(0, 3))
    def stream(self, step: int, seconds: float, known: int) -> None:
        """Every client connects, resumes from what it knows, and acknowledges some of what it showed."""
        for client in self.clients:
            if not client.session.is_over and not client.is_attached:
                client.attach()
            if client.may_resume and client.cursor is None:
                client.resume(known)
            if client.cursor is not None:
                client.acknowledge(step)
            if client.has_eos and step > 6:
                self.say_fin(client, honest=True)
        self.timers.advance(seconds)

    @rule(seconds=st.sampled_from([0.125, 1.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.timers.advance(seconds)

    @rule(pick=st.integers(0, 3))
    def lose(self, pick: int) -> None:
        client = self.clients[pick % len(self.clients)]
        if client.is_attached:
            client.lose()

    @rule(pick=st.integers(0, 3))
    def take_over(self, pick: int) -> None:
        """Somebody comes for the place of one of whom nothing is heard any more, and knows what that one showed."""
        index = pick % len(self.clients)
        client = self.clients[index]
        if client.is_attached:
            client.is_silent = True
            successor = self.clients[index] = PullingClient(client.session)
            successor.shown = client.shown
            successor.attach()
            assert not client.is_attached

    @rule(kind=st.sampled_from(["resume_foreign", "resume_ahead", "ack_beyond_sent", "second_controller"]))
    def misbehave(self, kind: str) -> None:
        """Refused, and nothing has changed."""
        for client in self.clients:
            session, flow = client.session, client.session.flow
            before = session.data
            if kind == "second_controller" and client.is_attached:
                with pytest.raises(ProtocolViolation, match="another controller"):
                    session.attach(PullingClient(session))
            elif kind == "ack_beyond_sent" and client.cursor is not None and flow is not None:
                with pytest.raises(ProtocolViolation):
                    session.acknowledge(flow.delivery.sent_through + 1, flow.delivery.sent_through + 1)
            elif kind.startswith("resume") and client.may_resume and client.cursor is None:
                stream, next_seq = ("foreign", 1) if kind == "resume_foreign" else (session.spec.stream, 10_000)
                with pytest.raises(ProtocolViolation):
                    session.resume(stream, next_seq, acknowledges=True)
            assert session.data == before

    @rule(action=st.sampled_from(["pause", "play", "control", "end", "none", "none"]))
    def act(self, action: str) -> None:
        for client in self.clients:
            if client.cursor is None:
                continue
            if action == "control" and not client.session.is_draining:
                client.session.control(ControlBody(pressed=("KeyW",)), control_id=None)
            elif action == "pause":
                client.session.pause()
            elif action == "play":
                client.session.play()
            elif action == "end" and len(client.shown) > 4:
                client.session.end("ended")

    @rule(honest=st.booleans())
    def finish(self, honest: bool) -> None:
        for client in self.clients:
            if client.has_eos:
                self.say_fin(client, honest=honest)

    def say_fin(self, client: PullingClient, *, honest: bool) -> None:
        flow = client.session.flow
        assert flow is not None and flow.delivery.last_seq is not None
        shown, last_seq = len(client.shown), flow.delivery.last_seq
        everything = shown == last_seq == flow.delivery.decoded_through
        client.session.finish(shown if honest else shown + 1, last_seq)
        assert client.session.data.delivered is (honest and everything)

    @rule(kind=st.sampled_from(["worker_lost", "finished", "force", "restart", "long_wait"] + ["create", "none"] * 4))
    def disaster(self, kind: str) -> None:
        if kind in ("worker_lost", "finished"):
            for session_id, session in tuple(self.engine.sessions.items()):
                if not session.is_ended:
                    self.engine.emit_ended(session_id, kind, retryable=kind == "worker_lost")
        elif kind == "force":
            self.clients[0].session.force("forced")
        elif kind == "restart":
            self.engine.set_model(ModelState.RESTARTING)
            self.create()
            self.engine.set_model(ModelState.READY)
        elif kind == "long_wait":
            self.timers.advance(61)
        elif kind == "create":
            self.create()

    @invariant()
    def frames_are_shown_once_in_order_and_generation_stays_in_the_window(self) -> None:
        for client in self.clients:
            assert client.shown == list(range(1, len(client.shown) + 1))
            flow = client.session.flow
            if flow is not None:
                assert flow.granted_through <= flow.delivery.decoded_through + flow.delivery.window
                assert flow.delivery.generated_through <= flow.granted_through
            if client.session.is_over:
                assert not client.is_attached
                assert client.session.data.reason
                assert client.session.data.delivered is not None

    def teardown(self) -> None:
        """Whatever happened: left alone, every session ends, gives its place back, and leaves no timer."""
        self.engine.set_model(ModelState.READY)
        for client in self.clients:
            if client.is_attached:
                client.lose()
        for _ in range(len(self.clients) + 1):
            self.timers.advance(10_000)
        assert all(client.session.is_over for client in self.clients)
        assert self.registry.num_inside(MODEL) == 0
        assert self.timers.num_pending == 0
        assert all(session.is_ended for session in self.engine.sessions.values())


SessionLives.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestSessionLives = SessionLives.TestCase


def live_session() -> tuple[SessionRegistry, FakeEngine, FakeTimers, Session]:
    engine, timers = FakeEngine(), FakeTimers()
    registry = SessionRegistry(Surroundings(engine, timers, SETTINGS, Metrics()), wall_s=lambda: 0.0)
    engine.listen(registry.engine_event)
    return registry, engine, timers, registry.create(SessionWish(MODEL))


def test_one_timer_waits_for_the_pacer_and_none_while_the_window_is_shut() -> None:
    _, _, timers, session = live_session()
    client = PullingClient(session)
    client.attach()
    client.cursor = session.resume(session.spec.stream, 1, acknowledges=True)
    client.wake()
    assert timers.num_pending == 3, "duration, acknowledgement, pacer"
    timers.advance(1.0)
    assert client.shown == list(range(1, 9))
    assert timers.num_pending == 2, "nothing to wait for but the client"


def test_a_packet_out_of_order_ends_its_session_alone() -> None:
    registry, engine, _, session = live_session()
    other = registry.create(SessionWish(MODEL))
    client = PullingClient(session)
    client.attach()
    client.cursor = session.resume(session.spec.stream, 1, acknowledges=True)
    assert session.flow is not None
    frame = session.flow.retention.get(1)
    assert frame is not None
    engine.emit(PacketArrived(frame.header, frame.payload))
    assert (session.data.state, session.data.reason) == (State.FAILED, "internal")
    assert other.data.state is State.CONNECTING


def test_events_of_strangers_are_ignored() -> None:
    registry, engine, _, session = live_session()
    engine.emit(EngineSessionStarted("stranger", "avc1"))
    assert session.data.state is State.CONNECTING
    assert len(registry.all()) == 1


def test_an_engine_that_answers_late_finds_the_session_closed() -> None:
    engine, timers = FakeEngine(), FakeTimers()
    engine.holds_starts = engine.holds_ends = True
    registry = SessionRegistry(Surroundings(engine, timers, SETTINGS, Metrics()), wall_s=lambda: 0.0)
    engine.listen(registry.engine_event)
    session = registry.create(SessionWish(MODEL))
    session.force("forced")
    engine.emit_started(session.session_id)
    assert registry.num_inside(MODEL) == 1
    engine.emit_ended(session.session_id, "ended")
    assert registry.num_inside(MODEL) == 0
