"""Window, pacer and retention folded into one number; cursors over what is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ithaka.server.session.cursor import ControllerCursor, ViewerCursor
from ithaka.server.session.flow import FrameFlow, Shape
from ithaka.server.session.retention import EncodedFrame
from ithaka.workers.contract import PacketHeader

PERIOD_S = 0.25


def flow_of(
    *, chunk_frames: int = 4, window: int = 8, is_unpaced: bool = False, max_frames: int | None = None, bound: int = 10**9
) -> FrameFlow:
    flow = FrameFlow("stream", Shape(chunk_frames * 4, chunk_frames, window, bound, is_unpaced, max_frames))
    flow.play(0.0)
    return flow


def add(flow: FrameFlow, through: int, *, keys: frozenset[int] = frozenset({1}), num_bytes: int = 10) -> None:
    for seq in range(flow.delivery.generated_through + 1, through + 1):
        flow.add(EncodedFrame(PacketHeader("s", seq, 0, 0, seq - 1, seq in keys, 0, 0), bytes(num_bytes)))


def send(flow: FrameFlow, through: int) -> None:
    add(flow, through)
    flow.delivery.sent(through)


def test_the_window_is_two_chunks_at_least() -> None:
    assert flow_of(chunk_frames=6, window=8).delivery.window == 12
    assert flow_of(chunk_frames=2, window=8).delivery.window == 8


def test_grants_grow_by_chunks_with_the_pacer() -> None:
    flow = flow_of()
    assert flow.grant(0.0) == 4
    assert flow.grant(0.1) is None
    assert flow.next_moment_s() == PERIOD_S
    assert flow.grant(PERIOD_S) == 8


def test_the_window_stops_grants_and_the_timer() -> None:
    flow = flow_of()
    flow.grant(0.0)
    flow.grant(PERIOD_S)
    assert flow.grant(10.0) is None
    assert flow.next_moment_s() is None
    send(flow, 8)
    flow.acknowledge(8, 3)
    assert flow.grant(10.0) is None
    flow.acknowledge(8, 4)
    assert flow.grant(10.0) == 12


def test_a_client_that_was_away_gets_no_burst() -> None:
    flow = flow_of()
    flow.grant(0.0)
    flow.grant(PERIOD_S)
    send(flow, 8)
    flow.acknowledge(8, 8)
    assert flow.grant(60.0) == 12
    assert flow.grant(60.0) is None
    assert flow.next_moment_s() == 60.0 + PERIOD_S


def test_unpaced_fills_the_window_at_once() -> None:
    flow = flow_of(is_unpaced=True, window=19)
    assert flow.grant(0.0) == 16
    assert flow.next_moment_s() is None


@pytest.mark.parametrize(("max_frames", "granted"), [(1, 4), (4, 4), (5, 8), (8, 8)])
def test_the_frame_limit_is_met_by_whole_chunks(max_frames: int, granted: int) -> None:
    flow = flow_of(is_unpaced=True, window=64, max_frames=max_frames)
    assert flow.grant(0.0) == granted
    add(flow, granted)
    assert flow.has_reached_limit


def test_held_flows_grant_nothing() -> None:
    flow = flow_of()
    flow.hold(0.0)
    assert flow.grant(5.0) is None
    assert flow.next_moment_s() is None


def test_full_retention_stops_grants_until_all_is_acknowledged() -> None:
    flow = flow_of(is_unpaced=True, bound=50)
    flow.grant(0.0)
    send(flow, 8)
    flow.acknowledge(8, 7)
    assert flow.grant(1.0) is None
    flow.acknowledge(8, 8)
    assert flow.grant(1.0) == 16


def test_a_controller_cursor_sends_within_the_window_and_counts() -> None:
    flow = flow_of()
    add(flow, 12)
    cursor = ControllerCursor(1, 1)
    seqs = []
    while (taken := cursor.take(flow)) is not None:
        seqs.append(taken[0].header.seq)
    assert seqs == list(range(1, 9))
    assert flow.delivery.sent_through == 8
    flow.acknowledge(8, 2)
    taken = cursor.take(flow)
    assert taken is not None and taken[0].header.seq == 9


def test_frames_before_the_resumed_one_are_for_decoding_only() -> None:
    flow = flow_of()
    send(flow, 6)
    start = flow.resume("stream", 4)
    cursor = ControllerCursor(start, 4)
    taken = [cursor.take(flow) for _ in range(6)]
    assert [(item[0].header.seq, item[1]) for item in taken if item] == [
        (1, True),
        (2, True),
        (3, True),
        (4, False),
        (5, False),
        (6, False),
    ]


def test_a_viewer_begins_at_the_next_key_frame() -> None:
    flow = flow_of()
    add(flow, 3)
    cursor = ViewerCursor(3, 3)
    assert cursor.take(flow) is None
    add(flow, 6, keys=frozenset({5}))
    taken = [cursor.take(flow) for _ in range(3)]
    assert [item and item[0].header.seq for item in taken] == [5, 6, None]
    assert cursor.skipped == 0


def test_a_lagging_viewer_skips_to_a_key_frame_and_the_rest_is_counted() -> None:
    flow = flow_of()
    cursor = ViewerCursor(0, 0)
    add(flow, 8, keys=frozenset({1, 7}))
    assert cursor.take(flow) is not None
    flow.delivery.sent(8)
    flow.acknowledge(8, 8)
    taken = cursor.take(flow)
    assert taken is not None and taken[0].header.seq == 7
    assert cursor.skipped == 5


@given(
    chunk_frames=st.integers(1, 5),
    window=st.integers(2, 20),
    is_unpaced=st.booleans(),
    bound=st.integers(20, 2000),
    steps=st.lists(st.tuples(st.sampled_from(["wait", "make", "send", "ack", "resume", "pause"]), st.integers(0, 20))),
)
def test_generation_stays_in_the_window_and_a_prompt_client_is_never_held(
    chunk_frames: int, window: int, is_unpaced: bool, bound: int, steps: list[tuple[str, int]]
) -> None:
    flow = flow_of(chunk_frames=chunk_frames, window=window, is_unpaced=is_unpaced, bound=bound)
    now_s = 0.0
    delivery = flow.delivery
    for kind, amount in steps:
        if kind == "wait":
            now_s += amount / 10
        elif kind == "make":
            add(flow, min(flow.granted_through, delivery.generated_through + amount), num_bytes=amount)
        elif kind == "send":
            delivery.sent(min(delivery.generated_through, delivery.window_through, delivery.sent_through + amount))
        elif kind == "ack":
            decoded = min(delivery.sent_through, delivery.decoded_through + amount)
            flow.acknowledge(max(decoded, delivery.received_through), decoded)
        elif kind == "resume" and flow.retention.replay_start(delivery.decoded_through + 1) is not None:
            flow.resume("stream", delivery.decoded_through + 1)
        elif kind == "pause":
            flow.hold(now_s)
            flow.play(now_s)
        before = flow.granted_through
        granted = flow.grant(now_s)
        assert granted is None or granted > before
        assert flow.granted_through % chunk_frames == 0
        assert flow.granted_through <= delivery.decoded_through + delivery.window
    add(flow, flow.granted_through)
    delivery.sent(flow.granted_through)
    flow.acknowledge(flow.granted_through, flow.granted_through)
    assert flow.grant(now_s + PERIOD_S + 1e-6) is not None, "a client that acknowledged everything is held"
