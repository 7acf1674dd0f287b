"""VP8 for peers without H.264: encoded only while one is there, never behind, with key frames in measure."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ithaka.server.session.cursor import Vp8Cursor
from ithaka.server.session.flow import FrameFlow, Shape
from ithaka.server.session.retention import EncodedFrame
from ithaka.workers.contract import PacketHeader

LAG = 8


def flow_of() -> FrameFlow:
    return FrameFlow("stream", Shape(16, 2, 8, 1024 * 1024, is_live=True))


def frame(seq: int, *, key: bool = False) -> EncodedFrame:
    return EncodedFrame(PacketHeader("s", seq, 0, 0, seq - 1, key, 0, 0, codec="vp8"), b"vp8")


def taken(cursor: Vp8Cursor, flow: FrameFlow) -> list[int]:
    seqs = []
    while (item := cursor.take(flow)) is not None:
        seqs.append(item[0].header.seq)
    return seqs


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=40))
def test_it_is_on_exactly_while_somebody_uses_it(steps: list[bool]) -> None:
    flow, is_on, users = flow_of(), False, 0
    for is_use in steps:
        if is_use:
            is_on = flow.vp8.use() or is_on
            users += 1
        elif users:
            is_on = is_on and not flow.vp8.leave()
            users -= 1
        assert is_on == (users > 0)


def test_it_begins_at_a_key_frame_and_follows_with_gaps() -> None:
    flow, wishes = flow_of(), list[int]()
    cursor = Vp8Cursor(lambda: wishes.append(1))
    flow.vp8.add(frame(4))
    assert taken(cursor, flow) == []
    for seq in (5, 6, 9):
        flow.vp8.add(frame(seq, key=seq == 5))
    assert taken(cursor, flow) == [5, 6, 9] and wishes == []


def test_one_that_lags_waits_for_a_key_frame_that_it_asks_for() -> None:
    flow, wishes = flow_of(), list[int]()
    cursor = Vp8Cursor(lambda: wishes.append(1))
    flow.vp8.add(frame(1, key=True))
    assert taken(cursor, flow) == [1]
    for seq in range(2, 3 + LAG):
        flow.vp8.add(frame(seq))
    assert taken(cursor, flow) == [] and wishes == [1]
    flow.vp8.add(frame(3 + LAG, key=True))
    assert taken(cursor, flow) == [3 + LAG]
    assert cursor.skipped == LAG + 1, "what it never got, from its first one on"


def test_what_was_dropped_before_every_encoder_is_nobodys_skip() -> None:
    flow = flow_of()
    cursor = Vp8Cursor(lambda: None)
    flow.vp8.add(frame(5, key=True))
    flow.losses.dropped(6)
    flow.vp8.add(frame(8))
    assert taken(cursor, flow) == [5, 8]
    assert cursor.skipped == 1


def test_a_picture_that_stands_goes_to_who_has_none() -> None:
    """It is encoded once more for whoever comes; who saw it goes on with the key frame after it."""
    flow = flow_of()
    flow.vp8.use()
    early, late = Vp8Cursor(lambda: None), Vp8Cursor(lambda: None)
    for seq in (1, 2, 3):
        flow.vp8.add(frame(seq, key=seq == 1))
    assert taken(early, flow) == [1, 2, 3]
    flow.vp8.add(frame(3, key=True))
    assert taken(early, flow) == [] and taken(late, flow) == [3]
    flow.vp8.add(frame(4, key=True))
    assert taken(early, flow) == [4] and taken(late, flow) == [4]


def test_what_one_user_left_behind_is_not_shown_to_the_next() -> None:
    flow = flow_of()
    flow.vp8.use()
    flow.vp8.add(frame(1, key=True))
    assert flow.vp8.leave()
    flow.vp8.add(frame(2, key=True))
    flow.vp8.use()
    assert taken(Vp8Cursor(lambda: None), flow) == [], "nor what was still on its way"
    assert flow.vp8.want_key(), "its wish is not held back by an old one"
