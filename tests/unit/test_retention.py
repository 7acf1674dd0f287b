"""Frames are kept until they are decoded and no decoder could need them; never longer, never less."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ithaka.server.session.retention import EncodedFrame, Retention
from ithaka.workers.contract import PacketHeader

AMPLE_BYTES = 10**9


def frame(seq: int, num_bytes: int = 10, *, key: bool = False) -> EncodedFrame:
    return EncodedFrame(PacketHeader("s", seq, 0, 0, seq - 1, key, 0, 0), bytes(num_bytes))


def filled(keys: set[int], through: int, bound_bytes: int = AMPLE_BYTES) -> Retention:
    retention = Retention(bound_bytes)
    for seq in range(1, through + 1):
        retention.add(frame(seq, key=seq in keys))
    return retention


def test_nothing_is_dropped_before_it_is_acknowledged() -> None:
    retention = filled({1, 5, 9}, 12)
    assert retention.first_seq == 1
    assert all(retention.get(seq) is not None for seq in range(1, 13))


@pytest.mark.parametrize(("decoded", "first"), [(0, 1), (3, 1), (4, 5), (5, 5), (7, 5), (8, 9), (12, 9)])
def test_it_keeps_from_the_last_key_frame_that_a_decoder_needs(decoded: int, first: int) -> None:
    retention = filled({1, 5, 9}, 12)
    retention.acknowledge(decoded)
    assert retention.first_seq == first
    assert retention.get(first - 1) is None
    assert retention.retained_bytes == (12 - first + 1) * 10


@pytest.mark.parametrize(("next_seq", "start"), [(6, 5), (7, 5), (9, 9), (12, 9), (13, 9)])
def test_replay_starts_at_a_key_frame(next_seq: int, start: int) -> None:
    retention = filled({1, 5, 9}, 12)
    retention.acknowledge(5)
    assert retention.replay_start(next_seq) == start


def test_replay_of_what_is_gone() -> None:
    retention = filled({1, 5, 9}, 12)
    retention.acknowledge(8)
    assert retention.replay_start(6) is None


def test_replay_of_a_stream_that_has_not_begun() -> None:
    assert Retention(AMPLE_BYTES).replay_start(1) == 1


def test_frames_come_in_order() -> None:
    retention = filled({1}, 3)
    for seq in (3, 5):
        with pytest.raises(ValueError, match=f"frame {seq} came after 3"):
            retention.add(frame(seq))


def test_a_key_frame_is_wanted_once_when_half_the_bound_is_passed() -> None:
    retention = Retention(100)
    assert [retention.add(frame(seq, key=seq == 1)) for seq in range(1, 9)] == [False] * 5 + [True, False, False]


def test_a_key_frame_that_came_frees_the_rest_and_is_wanted_again_later() -> None:
    retention = filled({1, 7}, 7, 100)
    retention.acknowledge(7)
    assert retention.retained_bytes == 10
    assert [retention.add(frame(seq)) for seq in range(8, 13)] == [False] * 4 + [True]


def test_a_slow_client_does_not_turn_every_frame_into_a_key_frame() -> None:
    retention = Retention(100)
    wanted = [retention.add(frame(seq, key=seq in (1, 7))) for seq in range(1, 11)]
    assert wanted.count(True) == 1


def test_at_the_bound_it_is_full_and_still_drops_nothing() -> None:
    retention = filled({1}, 12, 100)
    assert retention.is_full
    assert all(retention.get(seq) is not None for seq in range(1, 13))
    retention.acknowledge(11)
    assert retention.is_full
    retention.acknowledge(12)
    assert not retention.is_full
    assert retention.retained_bytes == 0
    assert retention.replay_start(13) is None


@st.composite
def lives(draw: st.DrawFn) -> tuple[int, int, list[tuple[str, int, bool]]]:
    """A bound, a window, and steps: a frame of some size, or an acknowledgement of some share of what is outstanding."""
    steps = st.tuples(st.sampled_from(["frame", "frame", "ack", "ack_all"]), st.integers(1, 60), st.booleans())
    return draw(st.integers(1, 400)), draw(st.integers(1, 12)), draw(st.lists(steps, max_size=120))


@given(lives())
def test_what_holds_whatever_comes(life: tuple[int, int, list[tuple[str, int, bool]]]) -> None:
    bound_bytes, window, steps = life
    retention, decoded, granted, sizes = Retention(bound_bytes), 0, 0, {0: 0}
    for kind, amount, flag in steps:
        newest = retention.newest_seq
        if not retention.is_full:
            granted = decoded + window
        if kind == "frame" and newest < granted:
            sizes[newest + 1] = amount
            retention.add(frame(newest + 1, amount, key=flag or newest == 0))
        elif kind != "frame":
            decoded = newest if kind == "ack_all" else min(newest, decoded + amount % (window + 1))
            retention.acknowledge(decoded)
        newest = retention.newest_seq
        kept = range(retention.first_seq, newest + 1)
        assert all(retention.get(seq) is not None for seq in range(decoded + 1, newest + 1)), "an unacknowledged frame is gone"
        assert retention.retained_bytes == sum(sizes[seq] for seq in kept)
        if decoded == newest:
            assert not retention.is_full, "a client that acknowledged everything is held"
            assert retention.retained_bytes < bound_bytes or newest == 0
        assert retention.retained_bytes < bound_bytes + 60 * window
        start = retention.replay_start(decoded + 1)
        if start is not None and newest:
            first = retention.get(start)
            assert first is not None and first.header.key
            assert start <= decoded + 1


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 8)), max_size=200))
def test_with_an_encoder_that_obeys_a_decoder_can_always_start(steps: list[tuple[int, int]]) -> None:
    retention, decoded, wants_key, window = Retention(800), 0, True, 8
    for num_bytes, acknowledged in steps:
        if retention.newest_seq < decoded + window and not retention.is_full:
            wants_key = retention.add(frame(retention.newest_seq + 1, num_bytes, key=wants_key))
        decoded = min(retention.newest_seq, decoded + acknowledged)
        retention.acknowledge(decoded)
        assert retention.replay_start(decoded + 1) is not None
        assert retention.retained_bytes < 800 + window * 40


def test_the_next_key_frame() -> None:
    retention = filled({1, 5, 9}, 12)
    assert [retention.next_key(after) for after in (0, 1, 5, 8, 9)] == [1, 5, 9, 9, None]
