"""Live delivery in the core: grants without clients, losses with numbers, carriers that skip, key frames in measure."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ithaka.server.errors import ProtocolViolation
from ithaka.server.session.cursor import Cursor, LiveCursor, ViewerCursor, controller_cursor, viewer_cursor
from ithaka.server.session.flow import FrameFlow, Shape
from ithaka.server.session.key_frames import KeyFrameWish
from ithaka.server.session.losses import Losses
from ithaka.server.session.retention import EncodedFrame
from ithaka.workers.contract import PacketHeader

FPS, CHUNK = 16, 4
LAG = 8
BOUND_BYTES = 1024 * 1024


def flow_of(retained_bytes: int = BOUND_BYTES, max_frames: int | None = None, *, is_live: bool = True) -> FrameFlow:
    return FrameFlow("stream", Shape(FPS, CHUNK, 8, retained_bytes, max_frames=max_frames, is_live=is_live))


def frame(seq: int, *, key: bool = False, dropped: bool = False, num_bytes: int = 100) -> EncodedFrame:
    header = PacketHeader("s", seq, 0, 0, seq - 1, key, 0, 0, dropped)
    return EncodedFrame(header, b"" if dropped else bytes(num_bytes))


def add(flow: FrameFlow, *frames: EncodedFrame) -> None:
    for one in frames:
        flow.add(one)


def taken(cursor: object, flow: FrameFlow, *, shown_from: int = 0) -> list[int]:
    assert isinstance(cursor, LiveCursor)
    return all_taken(cursor, flow, shown_from=shown_from)


def all_taken(cursor: Cursor, flow: FrameFlow, *, shown_from: int = 0) -> list[int]:
    seqs = []
    while (item := cursor.take(flow)) is not None:
        seq = item[0].header.seq
        assert item[1] == (seq < shown_from), "only what leads to a picture that stands is for decoding only"
        seqs.append(seq)
    return seqs


def viewer(flow: FrameFlow, wishes: list[int] | None = None) -> LiveCursor:
    cursor = viewer_cursor(flow, lambda: None if wishes is None else wishes.append(flow.delivery.generated_through))
    assert isinstance(cursor, LiveCursor)
    return cursor


# -- grants ------------------------------------------------------------------------------------------------------------


def test_no_client_holds_the_model_up() -> None:
    flow, now_s, generated = flow_of(), 0.0, 0
    flow.play(now_s)
    for _ in range(200):
        through = flow.grant(now_s)
        if through is not None:
            add(flow, *(frame(seq, key=seq % 32 == 1) for seq in range(generated + 1, through + 1)))
            generated = through
        now_s += CHUNK / FPS
    assert generated >= 199 * CHUNK


def test_a_slow_model_saves_nothing_up() -> None:
    flow = flow_of()
    flow.play(0.0)
    for second in range(60):
        flow.grant(float(second))
    assert flow.granted_through == 2 * CHUNK, "never more than two chunks beyond what was generated"


def test_a_limit_of_frames_holds_in_live_too() -> None:
    flow = flow_of(max_frames=6)
    flow.play(0.0)
    flow.grant(0.0)
    add(flow, *(frame(seq, key=seq == 1) for seq in range(1, 5)))
    flow.grant(10.0)
    add(flow, *(frame(seq) for seq in range(5, 9)))
    assert flow.grant(20.0) is None and flow.has_reached_limit


@settings(deadline=None)
@given(st.lists(st.integers(1, 60_000), min_size=1, max_size=200), st.integers(0, 31))
def test_memory_is_bounded_whatever_nobody_acknowledges(sizes: list[int], phase: int) -> None:
    flow = flow_of()
    for seq, num_bytes in enumerate(sizes, 1):
        add(flow, frame(seq, key=(seq + phase) % 32 == 1, num_bytes=num_bytes))
        assert flow.retention.retained_bytes <= BOUND_BYTES
        assert not flow.retention.is_full


# -- cursors -----------------------------------------------------------------------------------------------------------


def test_a_viewer_begins_at_the_next_key_frame_and_gets_all_that_follow() -> None:
    flow, wishes = playing(flow_of()), list[int]()
    add(flow, frame(1, key=True), frame(2))
    cursor = viewer(flow, wishes)
    assert wishes == [2] and taken(cursor, flow) == []
    add(flow, frame(3), frame(4, key=True), frame(5))
    assert taken(cursor, flow) == [4, 5]
    assert cursor.skipped == 0, "what came before its first frame was never its own"


def playing(flow: FrameFlow) -> FrameFlow:
    flow.play(0.0)
    return flow


@pytest.mark.parametrize("is_live", [True, False])
def test_a_viewer_of_a_paused_session_sees_the_picture_that_stands_and_then_all_that_follow(is_live: bool) -> None:
    flow, wishes = flow_of(is_live=is_live), list[int]()
    add(flow, frame(1, key=True), *(frame(seq, key=seq == 3) for seq in range(2, 4 + 3 * LAG)))
    cursor = viewer_cursor(flow, lambda: wishes.append(1))
    seen = all_taken(cursor, flow, shown_from=3 + 3 * LAG)
    assert seen == list(range(3, 4 + 3 * LAG)), "the whole group, however long it is"
    assert wishes == []
    flow.play(1.0)
    add(flow, frame(4 + 3 * LAG))
    assert all_taken(cursor, flow) == [4 + 3 * LAG]
    assert isinstance(cursor, LiveCursor | ViewerCursor) and cursor.skipped == 0


@pytest.mark.parametrize("knows_all", [False, True], ids=["after a track", "after a socket"])
def test_a_controller_that_comes_back_to_a_paused_session_sees_the_picture_that_stands(knows_all: bool) -> None:
    """However long its group is, and whatever the lost connection had in flight; what it acknowledges lets the rest go out."""
    flow, wishes, newest_seq = flow_of(), list[int](), 3 * LAG
    flow.resume("stream", 1)
    lost = controller_cursor(flow, 1, 1, lambda: None, acknowledges=False)
    for seq in range(1, newest_seq + 1):
        add(flow, frame(seq, key=seq in (1, 3)))
        taken(lost, flow)
    next_seq = newest_seq + 1 if knows_all else 1
    flow.resume("stream", next_seq)
    cursor = controller_cursor(flow, next_seq, next_seq, lambda: wishes.append(1), acknowledges=True)
    seen = list[int]()
    while more := taken(cursor, flow, shown_from=newest_seq):
        seen += more
        through = max(seen[-1], next_seq - 1)
        flow.acknowledge(through, through)
    assert seen == list(range(3, newest_seq + 1)) and wishes == []
    flow.play(1.0)
    add(flow, frame(newest_seq + 1))
    assert taken(cursor, flow) == [newest_seq + 1]


def test_a_viewer_of_a_paused_session_that_keeps_no_key_frame_asks_for_one() -> None:
    flow, wishes = flow_of(retained_bytes=150), list[int]()
    add(flow, frame(1, key=True), frame(2))
    assert flow.retention.newest_key() is None
    assert taken(viewer(flow, wishes), flow) == [] and wishes == [2]


def test_a_viewer_that_stalled_on_a_standing_picture_goes_on_with_what_is_live() -> None:
    flow, wishes = flow_of(), list[int]()
    add(flow, *(frame(seq, key=seq == 1) for seq in range(1, 3 * LAG)))
    cursor = viewer(flow, wishes)
    item = cursor.take(flow)
    assert item is not None and item[0].header.seq == 1
    flow.play(1.0)
    add(flow, *(frame(seq, key=seq == 3 * LAG) for seq in range(3 * LAG, 5 * LAG)))
    assert taken(cursor, flow) == [] and len(wishes) == 1, "the group is gone, and the next key frame is too old"
    add(flow, frame(5 * LAG, key=True))
    assert taken(cursor, flow) == [5 * LAG]


def test_a_lossless_session_whose_window_is_full_stands_too() -> None:
    flow, now_s = playing(flow_of(is_live=False)), 0.0
    while (through := flow.grant(now_s)) is not None:
        add(flow, *(frame(seq, key=seq == 1) for seq in range(flow.delivery.generated_through + 1, through + 1)))
        now_s += CHUNK / FPS
    cursor = viewer_cursor(flow, lambda: None)
    newest_seq = flow.delivery.generated_through
    assert all_taken(cursor, flow, shown_from=newest_seq) == list(range(1, newest_seq + 1))


def test_dropped_frames_are_passed_over_and_are_no_skips() -> None:
    flow = flow_of()
    cursor = viewer(flow)
    add(flow, frame(1, key=True), frame(2, dropped=True), frame(3, dropped=True), frame(4))
    assert taken(cursor, flow) == [1, 4]
    assert (cursor.skipped, flow.losses.num_dropped) == (0, 2)


def test_one_that_lags_skips_to_a_key_frame_that_it_asks_for_and_the_skipped_are_counted() -> None:
    flow, wishes = flow_of(), list[int]()
    cursor = viewer(flow, wishes)
    add(flow, frame(1, key=True))
    assert taken(cursor, flow) == [1]
    add(flow, *(frame(seq, dropped=seq == 5) for seq in range(2, 3 + LAG)))
    assert taken(cursor, flow) == [], "it lies too far behind for what comes next to be of use"
    assert wishes == [0, 2 + LAG]
    add(flow, frame(3 + LAG, key=True), frame(4 + LAG))
    assert taken(cursor, flow) == [3 + LAG, 4 + LAG]
    assert cursor.skipped == LAG, "frames 2 to 10, but for the one that nobody got"


def test_an_old_key_frame_is_no_place_to_begin() -> None:
    flow = flow_of()
    cursor = viewer(flow)
    add(flow, frame(1, key=True), *(frame(seq) for seq in range(2, 3 + LAG)))
    assert taken(cursor, flow) == []


def test_a_controller_that_acknowledges_has_at_most_half_a_second_in_flight() -> None:
    flow = flow_of()
    flow.resume("stream", 1)
    cursor = controller_cursor(flow, 1, 1, lambda: None, acknowledges=True)
    add(flow, *(frame(seq, key=seq == 1) for seq in range(1, LAG + 1)))
    assert taken(cursor, flow) == list(range(1, LAG + 1))
    add(flow, frame(LAG + 1))
    assert taken(cursor, flow) == [], "as many as may be are in flight"
    flow.acknowledge(1, 1)
    assert taken(cursor, flow) == [LAG + 1]


def test_a_stalled_controller_goes_on_at_the_newest_key_frame() -> None:
    flow = flow_of()
    cursor = controller_cursor(flow, 1, 1, lambda: None, acknowledges=True)
    add(flow, *(frame(seq, key=seq == 1) for seq in range(1, LAG + 1)))
    taken(cursor, flow)
    stalled = 5 * FPS
    add(flow, *(frame(seq, key=seq % 32 == 1) for seq in range(LAG + 1, LAG + stalled + 1)))
    assert taken(cursor, flow) == []
    flow.acknowledge(LAG, LAG)
    add(flow, frame(LAG + stalled + 1, key=True))
    assert taken(cursor, flow)[0] >= LAG + stalled + 1 - LAG, "not the frames of the stall"


def test_over_a_track_nothing_waits_for_acknowledgements() -> None:
    flow = flow_of()
    cursor = controller_cursor(flow, 1, 1, lambda: None, acknowledges=False)
    seqs = []
    for seq in range(1, 100):
        add(flow, frame(seq, key=seq == 1))
        seqs += taken(cursor, flow)
    assert seqs == list(range(1, 100)) and flow.delivery.sent_through == 99


@pytest.mark.parametrize("was_acknowledged", [0, 1], ids=["over a track", "over a socket that broke"])
def test_what_a_lost_connection_had_in_flight_holds_the_next_one_not_up(was_acknowledged: int) -> None:
    flow = playing(flow_of())
    flow.resume("stream", 1)
    lost = controller_cursor(flow, 1, 1, lambda: None, acknowledges=bool(was_acknowledged))
    add(flow, *(frame(seq, key=seq == 1) for seq in range(1, LAG + 1)))
    assert taken(lost, flow) == list(range(1, LAG + 1))
    next_seq = was_acknowledged + 1
    flow.resume("stream", next_seq)
    cursor = controller_cursor(flow, next_seq, next_seq, lambda: None, acknowledges=True)
    add(flow, *(frame(seq, key=seq == LAG + 1) for seq in range(LAG + 1, 2 * LAG + 1)))
    assert taken(cursor, flow) == list(range(LAG + 1, 2 * LAG + 1))
    add(flow, frame(2 * LAG + 1))
    assert taken(cursor, flow) == [], "as many of its own as may be are in flight"
    flow.acknowledge(LAG + 1, LAG + 1)
    assert taken(cursor, flow) == [2 * LAG + 1]


def test_a_foreign_stream_is_refused_in_live_too() -> None:
    with pytest.raises(ProtocolViolation):
        flow_of().resume("another", 1)


# -- key frames and losses ---------------------------------------------------------------------------------------------


def test_a_key_frame_is_asked_for_at_once_and_then_once_an_interval() -> None:
    wish = KeyFrameWish(8)
    assert wish.want(10)
    assert not wish.want(10) and not wish.want(11), "too soon"
    assert not wish.arrived(12, is_key=True), "the one that came was as good"
    assert not wish.want(13)
    assert [seq for seq in range(14, 30) if wish.arrived(seq, is_key=False)] == [18], "what had to wait is asked for once"


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=200), st.integers(1, 20))
def test_requests_are_never_closer_than_the_interval_and_no_wish_is_forgotten(
    events: list[tuple[bool, bool]], interval_frames: int
) -> None:
    wish, asked, is_open = KeyFrameWish(interval_frames), list[int](), False
    for seq, (wants, is_key) in enumerate(events, 1):
        is_open = is_open and not is_key
        if wish.arrived(seq, is_key=is_key):
            asked.append(seq)
            is_open = False
        if wants:
            is_open = True
            if wish.want(seq):
                asked.append(seq)
                is_open = False
    assert all(later - sooner >= interval_frames for sooner, later in itertools.pairwise(asked))
    last_seq = len(events)
    for seq in range(last_seq + 1, last_seq + interval_frames + 1):
        is_open = is_open and not wish.arrived(seq, is_key=False)
    assert not is_open


@settings(deadline=None)
@given(st.sets(st.integers(1, 300)), st.integers(0, 300), st.integers(0, 300))
def test_losses_are_counted_between_two_frames(dropped: set[int], after_seq: int, before_seq: int) -> None:
    losses = Losses()
    for seq in sorted(dropped):
        losses.dropped(seq)
    assert losses.between(after_seq, before_seq) == sum(after_seq < seq < before_seq for seq in dropped)
    assert losses.num_dropped == len(dropped)
