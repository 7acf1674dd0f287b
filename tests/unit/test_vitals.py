"""A child's life as its heartbeats tell it, on a clock that only the test moves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ithaka.server.backoff import Backoff
from ithaka.server.vitals import Verdict, Vitals

SILENCE_S, STALL_S = 2.0, 3.0


def _verdict(vitals: Vitals, now_s: float) -> Verdict:
    return vitals.verdict(now_s, silence_s=SILENCE_S, stall_s=STALL_S)


def test_a_child_that_never_spoke_is_silent_after_its_time() -> None:
    vitals = Vitals.born(10.0)
    assert _verdict(vitals, 12.0) is Verdict.WELL
    assert _verdict(vitals, 12.1) is Verdict.SILENT


def test_busy_without_progress_is_a_hang_and_idle_is_not() -> None:
    busy, idle = Vitals.born(0.0), Vitals.born(0.0)
    for tick in range(1, 41):
        busy.beat(tick / 10, progress=5, busy=True)
        idle.beat(tick / 10, progress=5, busy=False)
    assert _verdict(busy, 4.0) is Verdict.HUNG
    assert _verdict(idle, 4.0) is Verdict.WELL


def test_the_stall_begins_when_the_step_does() -> None:
    vitals = Vitals.born(0.0)
    for tick in range(1, 101):
        vitals.beat(tick / 10, progress=5, busy=False)
    for tick in range(101, 131):
        vitals.beat(tick / 10, progress=5, busy=True)
    assert _verdict(vitals, 13.0) is Verdict.WELL


@given(st.lists(st.tuples(st.floats(0.01, 1.9), st.booleans()), max_size=50))
def test_progress_keeps_a_child_well(beats: list[tuple[float, bool]]) -> None:
    now, vitals = 0.0, Vitals.born(0.0)
    for progress, (gap_s, busy) in enumerate(beats):
        now += gap_s
        vitals.beat(now, progress=progress, busy=busy)
        assert _verdict(vitals, now + 1.0) is Verdict.WELL


@given(
    beats=st.lists(st.tuples(st.floats(0.01, 4), st.integers(0, 2), st.booleans()), max_size=20),
    later_s=st.floats(0, 10),
)
def test_nothing_can_be_seen_before_it_is_due(beats: list[tuple[float, int, bool]], later_s: float) -> None:
    now, vitals = 0.0, Vitals.born(0.0)
    for gap_s, progress, busy in beats:
        now += gap_s
        vitals.beat(now, progress=progress, busy=busy)
        due_s = vitals.due_s(silence_s=SILENCE_S, stall_s=STALL_S)
        if abs(now + later_s - due_s) > 1e-6:
            assert (_verdict(vitals, now + later_s) is Verdict.WELL) == (now + later_s < due_s)


def test_backoff_doubles_up_to_its_maximum_and_ends() -> None:
    backoff = Backoff(first_s=0.25, max_s=1.5, max_failures=5)
    assert backoff.delay_s == 0.25
    delays = []
    while not backoff.is_spent:
        backoff = backoff.failed()
        delays.append(backoff.delay_s)
    assert delays == [0.25, 0.5, 1.0, 1.5, 1.5]
    assert not backoff.succeeded().is_spent
    assert backoff.succeeded().delay_s == 0.25


@given(st.integers(0, 10_000))
def test_backoff_never_overflows(failures: int) -> None:
    assert 0 < Backoff(0.25, 30, 20_000, failures).delay_s <= 30
