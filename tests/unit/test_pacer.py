"""Media rate, a lead of at most one chunk, no bursts."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ithaka.server.pacer import Pacer

EPSILON_S = 1e-6


def taken_through(pacer: Pacer, now_s: float) -> Pacer:
    while pacer.allows(now_s):
        pacer = pacer.take(now_s)
    return pacer


def test_it_waits_for_play() -> None:
    pacer = Pacer(fps=16, chunk_frames=4)
    assert not pacer.allows(1e9)
    assert pacer.next_moment_s() is None


def test_the_first_chunk_comes_at_once_and_one_more_each_period() -> None:
    pacer = Pacer(fps=16, chunk_frames=4).play(10.0)
    for chunk in range(5):
        now_s = 10.0 + chunk * 0.25
        assert pacer.allows(now_s)
        pacer = pacer.take(now_s)
        assert not pacer.allows(now_s)
        assert pacer.next_moment_s() == now_s + 0.25
        assert pacer.paced_through == 4 * (chunk + 1)


def test_a_little_lateness_keeps_the_beat() -> None:
    pacer = Pacer(fps=10, chunk_frames=1).play(0.0).take(0.03)
    assert pacer.next_moment_s() == 0.1


def test_a_late_client_gets_no_burst() -> None:
    pacer = taken_through(Pacer(fps=10, chunk_frames=1).play(0.0), 0.0)
    pacer = taken_through(pacer, 5.0)
    assert pacer.paced_through == 2
    assert pacer.next_moment_s() == 5.1


def test_a_pause_stops_the_beat_where_it_stands() -> None:
    pacer = Pacer(fps=10, chunk_frames=1).play(0.0).take(0.0).pause(0.04)
    assert not pacer.allows(100.0)
    pacer = pacer.play(100.0)
    assert not pacer.allows(100.05)
    assert pacer.allows(100.0 + 0.06 + EPSILON_S)


def test_play_and_pause_twice_change_nothing() -> None:
    pacer = Pacer(fps=10, chunk_frames=1).play(0.0)
    assert pacer.play(0.05) is pacer
    paused = pacer.pause(0.01)
    assert paused.pause(0.02) is paused


def test_unpaced_never_waits_but_still_pauses() -> None:
    pacer = Pacer(fps=10, chunk_frames=3, is_unpaced=True).play(0.0)
    for _ in range(50):
        pacer = pacer.take(0.0)
    assert pacer.paced_through == 150
    assert pacer.next_moment_s() is None
    assert not pacer.pause(0.0).allows(1.0)


@given(
    fps=st.integers(1, 60),
    chunk_frames=st.integers(1, 16),
    steps=st.lists(st.tuples(st.floats(0, 3), st.sampled_from(["take", "idle", "pause", "play"])), max_size=80),
)
def test_never_more_than_one_chunk_ahead_of_the_time_played(
    fps: int, chunk_frames: int, steps: list[tuple[float, str]]
) -> None:
    now_s = played_s = 0.0
    pacer, playing = Pacer(fps, chunk_frames).play(0.0), True
    grants: list[float] = []
    for wait_s, action in steps:
        now_s += wait_s
        played_s += wait_s if playing else 0.0
        if action == "take":
            before = pacer.paced_through
            pacer = taken_through(pacer, now_s)
            grants += [played_s] * ((pacer.paced_through - before) // chunk_frames)
        elif action != "idle":
            playing = action == "play"
            pacer = pacer.play(now_s) if playing else pacer.pause(now_s)
        assert pacer.paced_through <= math.floor(played_s * fps + EPSILON_S) + chunk_frames
    period_s = chunk_frames / fps
    for at, after_next in zip(grants, grants[2:], strict=False):
        assert after_next - at >= period_s - EPSILON_S, "three chunks within one period"
    assert all(later >= earlier for earlier, later in pairwise(grants))


@given(fps=st.integers(1, 60), chunk_frames=st.integers(1, 16), chunks=st.integers(1, 200))
def test_a_punctual_caller_gets_the_media_rate_without_drift(fps: int, chunk_frames: int, chunks: int) -> None:
    pacer = Pacer(fps, chunk_frames).play(0.0)
    for _ in range(chunks):
        moment_s = pacer.next_moment_s()
        assert moment_s is not None
        pacer = pacer.take(moment_s)
    assert pacer.due_s is not None
    assert math.isclose(pacer.due_s, chunks * chunk_frames / fps, rel_tol=1e-9)
