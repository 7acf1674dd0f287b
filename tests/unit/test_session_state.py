"""The session's table: every pair is decided, nothing gets stuck, everything ends once."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ithaka.server.session import events as ev
from ithaka.server.session.events import ControllerPhase, Effect, EnginePhase, Event, FinVerdict, State, Timeout
from ithaka.server.session.state import (
    TABLE,
    TERMINAL,
    TIMEOUTS,
    IllegalEventError,
    SessionData,
    advance,
    open_session,
)

EVENT_TYPES: tuple[type[Event], ...] = Event.__args__

any_event: st.SearchStrategy[Event] = st.one_of(
    st.just(ev.Admitted()),
    st.builds(ev.AdmissionFailed, st.just("model_unavailable"), st.booleans()),
    st.just(ev.EngineStarted()),
    st.builds(ev.EngineEnded, st.sampled_from(["ended", "finished"]), st.just(False)),
    st.builds(ev.EngineEnded, st.just("worker_lost"), st.just(True), st.booleans()),
    st.just(ev.ControllerAttached()),
    st.just(ev.ControllerResumed()),
    st.just(ev.ControllerLost()),
    st.just(ev.PauseRequested()),
    st.just(ev.PlayRequested()),
    st.builds(ev.EndRequested, st.sampled_from(["ended", "server_stopping"])),
    st.builds(ev.ForceRequested),
    st.builds(ev.FinReceived, st.sampled_from(FinVerdict)),
    st.builds(ev.TimedOut, st.sampled_from(Timeout)),
)


class Ledger:
    """What the effects add up to."""

    def __init__(self) -> None:
        self.data, effects = open_session()
        self.pending: set[Timeout] = set()
        self.counts: Counter[type[Effect]] = Counter()
        self._note(effects)

    def feed(self, event: Event) -> tuple[Effect, ...]:
        self.data, effects = advance(self.data, event)
        self._note(effects)
        return effects

    def _note(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            self.counts[type(effect)] += 1
            if isinstance(effect, ev.ArmTimeout):
                self.pending.add(effect.timeout)
            elif isinstance(effect, ev.CancelTimeout):
                self.pending.remove(effect.timeout)

    def fire(self, timeout: Timeout) -> None:
        """As the clock does: a timeout that fired runs no longer."""
        self.feed(ev.TimedOut(timeout))
        self.pending.discard(timeout)


def live(*path: Event) -> Ledger:
    """A session that streams, and then what ``path`` brings."""
    ledger = Ledger()
    for event in (ev.Admitted(), ev.EngineStarted(), ev.ControllerAttached(), ev.ControllerResumed(), *path):
        ledger.feed(event)
    return ledger


def test_every_pair_of_state_and_event_stands_in_the_table() -> None:
    assert set(TABLE) == set(State) == set(TIMEOUTS)
    for state, row in TABLE.items():
        assert set(row) == set(EVENT_TYPES), state


@given(st.lists(any_event, max_size=60))
def test_no_sequence_of_events_gets_a_session_stuck_or_ends_it_twice(sequence: list[Event]) -> None:
    ledger = Ledger()
    for event in sequence:
        before = ledger.data
        try:
            ledger.feed(event)
        except IllegalEventError:
            assert ledger.data is before
        over = ledger.data.state in TERMINAL
        assert ledger.pending == TIMEOUTS[ledger.data.state]
        assert bool(ledger.pending) is not over
        assert ledger.counts[ev.CloseSession] == over
        assert (ledger.data.delivered is not None) is over
        assert ledger.counts[ev.StartEngine] == (ledger.data.engine is not EnginePhase.ABSENT)
        assert ledger.counts[ev.EndEngine] <= 1
        if over and ledger.data.engine in (EnginePhase.STARTING, EnginePhase.STARTED):
            assert ledger.counts[ev.EndEngine] == 1
    for _ in range(4):
        if ledger.pending:
            ledger.fire(min(ledger.pending))
    assert ledger.data.state in TERMINAL
    assert ledger.counts[ev.CloseSession] == 1
    assert not ledger.pending


@given(st.lists(any_event, max_size=40))
def test_delivered_is_true_only_after_a_matching_fin(sequence: list[Event]) -> None:
    ledger = Ledger()
    last: Event | None = None
    for event in sequence:
        try:
            ledger.feed(event)
        except IllegalEventError:
            continue
        if ledger.data.state not in TERMINAL:
            continue
        last = last or event
    if ledger.data.delivered:
        assert last == ev.FinReceived(FinVerdict.MATCH)


@pytest.mark.parametrize("state", [state for state in State])
def test_an_illegal_event_names_itself_and_the_state(state: State) -> None:
    data = SessionData(state=state, controller=ControllerPhase.RESUMED, engine=EnginePhase.ENDED)
    with pytest.raises(IllegalEventError, match=rf"ControllerResumed.*{state}"):
        advance(data, ev.ControllerResumed())


def test_the_way_to_streaming_arms_and_cancels_its_timeouts() -> None:
    ledger = Ledger()
    assert ledger.pending == {Timeout.QUEUE}
    assert ev.StartEngine() in ledger.feed(ev.Admitted())
    assert ledger.pending == {Timeout.CONNECT, Timeout.DURATION}
    assert ev.SendHello() not in ledger.feed(ev.EngineStarted())
    assert ev.SendHello() in ledger.feed(ev.ControllerAttached())
    assert ev.StartGeneration() in ledger.feed(ev.ControllerResumed())
    assert (ledger.data.state, ledger.pending) == (State.STREAMING, {Timeout.DURATION})


def test_a_controller_that_comes_first_is_greeted_once_the_engine_is_there() -> None:
    ledger = Ledger()
    assert ev.SendHello() not in ledger.feed(ev.ControllerAttached())
    assert ev.SendHello() not in ledger.feed(ev.Admitted())
    assert ev.SendHello() in ledger.feed(ev.EngineStarted())


def test_pause_survives_a_lost_connection() -> None:
    ledger = live(ev.PauseRequested(), ev.ControllerLost())
    ledger.feed(ev.ControllerAttached())
    assert (ledger.data.state, ledger.pending) == (State.DETACHED, {Timeout.DETACH, Timeout.DURATION})
    ledger.feed(ev.ControllerResumed())
    assert (ledger.data.state, ledger.pending) == (State.PAUSED, {Timeout.DURATION})
    assert ev.ContinueGeneration() in ledger.feed(ev.PlayRequested())


def test_a_lost_controller_lets_its_keys_go() -> None:
    assert ev.ReleaseKeys() in live().feed(ev.ControllerLost())
    assert ev.ReleaseKeys() in live().feed(ev.TimedOut(Timeout.ACK))


def test_an_overdue_acknowledgement_drops_the_connection_not_the_session() -> None:
    ledger = live()
    assert ev.DropController("ack_timeout") in ledger.feed(ev.TimedOut(Timeout.ACK))
    assert ledger.data.state is State.DETACHED
    assert ledger.data.controller is ControllerPhase.ABSENT


@pytest.mark.parametrize(
    ("path", "reason", "state", "close_code"),
    [
        ([ev.EndRequested()], "ended", State.CLOSED, 1000),
        ([ev.EndRequested("server_stopping", True)], "server_stopping", State.CLOSED, 1001),
        ([ev.TimedOut(Timeout.DURATION)], "max_duration", State.CLOSED, 1000),
        ([ev.EndRequested(), ev.EndRequested("server_stopping")], "ended", State.CLOSED, 1000),
    ],
)
def test_an_asked_end_drains_and_a_matching_fin_closes(path: list[Event], reason: str, state: State, close_code: int) -> None:
    ledger = live(*path)
    assert ledger.data.state is State.DRAINING
    assert ev.SendEos() in ledger.feed(ev.EngineEnded("ended", is_failure=False))
    effects = ledger.feed(ev.FinReceived(FinVerdict.MATCH))
    assert effects[-1] == ev.CloseSession(close_code)
    assert (ledger.data.state, ledger.data.reason, ledger.data.delivered) == (state, reason, True)


def test_the_deadline_for_fin_counts_from_eos() -> None:
    ledger = live(ev.EndRequested())
    assert ev.ArmTimeout(Timeout.DRAIN) in ledger.feed(ev.EngineEnded("ended", is_failure=False))


def test_a_missing_fin_ends_undelivered() -> None:
    ledger = live(ev.EngineEnded("finished", is_failure=False))
    ledger.fire(Timeout.DRAIN)
    assert (ledger.data.state, ledger.data.reason, ledger.data.delivered) == (State.CLOSED, "finished", False)


def test_a_wrong_fin_ends_undelivered() -> None:
    ledger = live(ev.EngineEnded("finished", is_failure=False), ev.FinReceived(FinVerdict.MISMATCH))
    assert (ledger.data.reason, ledger.data.delivered) == ("finished", False)


@pytest.mark.parametrize("path", [(), (ev.PauseRequested(),), (ev.EndRequested(),)])
def test_an_early_fin_ends_the_session_undelivered(path: tuple[Event, ...]) -> None:
    ledger = live(*path)
    assert ledger.feed(ev.FinReceived(FinVerdict.EARLY))[-1] == ev.CloseSession(1008)
    assert (ledger.data.reason, ledger.data.delivered) == ("fin_early", False)
    assert ledger.counts[ev.EndEngine] == 1


def test_a_lost_worker_drains_then_fails_even_when_everything_arrived() -> None:
    ledger = live(ev.EngineEnded("worker_lost", is_failure=True, retryable=True))
    assert ledger.data.state is State.DRAINING
    assert ledger.feed(ev.FinReceived(FinVerdict.MATCH))[-1] == ev.CloseSession(1012)
    assert (ledger.data.state, ledger.data.delivered, ledger.data.retryable) == (State.FAILED, True, True)


def test_a_worker_lost_on_the_way_out_is_the_reason() -> None:
    ledger = live(ev.EndRequested(), ev.EngineEnded("worker_lost", is_failure=True, retryable=True))
    assert ledger.data.reason == "worker_lost"


def test_a_fault_for_good_closes_with_1011() -> None:
    ledger = live(ev.EngineEnded("family_failed", is_failure=True))
    assert ledger.feed(ev.FinReceived(FinVerdict.MATCH))[-1] == ev.CloseSession(1011)


@pytest.mark.parametrize(
    ("path", "timeout", "reason", "state"),
    [
        ([], Timeout.QUEUE, "queue_timeout", State.CLOSED),
        ([ev.Admitted()], Timeout.CONNECT, "start_timeout", State.FAILED),
        ([ev.Admitted(), ev.EngineStarted()], Timeout.CONNECT, "connect_timeout", State.CLOSED),
        ([ev.Admitted()], Timeout.DURATION, "max_duration", State.CLOSED),
    ],
)
def test_timeouts_before_streaming(path: list[Event], timeout: Timeout, reason: str, state: State) -> None:
    ledger = Ledger()
    for event in path:
        ledger.feed(event)
    ledger.fire(timeout)
    assert (ledger.data.reason, ledger.data.state, ledger.data.delivered) == (reason, state, False)
    assert ledger.counts[ev.EndEngine] == bool(path)


def test_a_controller_that_stays_away_ends_the_session() -> None:
    ledger = live(ev.ControllerLost())
    ledger.fire(Timeout.DETACH)
    assert (ledger.data.reason, ledger.data.state) == ("detach_timeout", State.CLOSED)


def test_an_engine_that_never_ends_is_given_up() -> None:
    ledger = live(ev.EndRequested())
    ledger.fire(Timeout.DRAIN)
    assert (ledger.data.reason, ledger.data.state) == ("end_timeout", State.FAILED)


def test_a_timeout_that_was_cancelled_changes_nothing() -> None:
    ledger = live()
    assert ledger.feed(ev.TimedOut(Timeout.CONNECT)) == ()
    assert ledger.feed(ev.TimedOut(Timeout.DRAIN)) == ()
