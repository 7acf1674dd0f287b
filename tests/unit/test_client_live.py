"""A Python client in a live stream: gaps are taken, order and key frames are not given up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ithaka_client.errors import ProtocolError
from ithaka_client.position import LivePosition
from ithaka_client.protocol import EncodedFrame, EndOfStream, Hello

HELLO = Hello(1, "s", "stream", "controller", 1, 8, "avc1", 64, 48, 16, "lossy", "m", (), False, False)


def frame(seq: int, *, key: bool = False, decode_only: bool = False) -> EncodedFrame:
    return EncodedFrame(seq, seq - 1, 0, 0, 0, key, decode_only, b"")


def end(last_seq: int) -> EndOfStream:
    return EndOfStream(last_seq, last_seq, "ended", False)


def begun() -> LivePosition:
    position = LivePosition()
    position.begin(HELLO)
    return position


@settings(deadline=None)
@given(st.sets(st.integers(1, 500), min_size=1), st.integers(0, 50))
def test_whatever_is_missing_what_came_is_shown_once_and_completes_the_stream(seqs: set[int], lost_at_the_end: int) -> None:
    position, ordered = begun(), sorted(seqs)
    for seq in ordered:
        position.receive(frame(seq, key=seq == ordered[0]))
    for seq in ordered[:-1]:
        assert position.decode(seq)
    position.finish(end(ordered[-1] + lost_at_the_end))
    assert not position.is_complete
    assert position.decode(ordered[-1]) and not position.decode(ordered[-1])
    assert position.is_complete and position.decoded_count == len(ordered)


def test_it_begins_at_a_key_frame_on_every_connection() -> None:
    position = begun()
    with pytest.raises(ProtocolError, match="key frame"):
        position.receive(frame(3))
    position.receive(frame(3, key=True))
    position.decode(3)
    assert position.begin(HELLO) == 4
    with pytest.raises(ProtocolError, match="key frame"):
        position.receive(frame(9))
    position.receive(frame(3, key=True))
    assert not position.decode(3), "a picture that stands comes again, and is known"
    position.receive(frame(9, key=True))
    position.decode(9)
    position.begin(HELLO)
    position.receive(frame(3, key=True))
    assert position.received_through == 9, "what was acknowledged never shrinks"


def test_nothing_is_shown_of_what_leads_to_the_picture_that_stands() -> None:
    position = begun()
    for seq in (3, 4, 5):
        position.receive(frame(seq, key=seq == 3, decode_only=seq < 5))
    assert [position.decode(seq) for seq in (3, 4, 5)] == [False, False, True]
    assert (position.decoded_through, position.decoded_count) == (5, 1)


def test_order_holds() -> None:
    position = begun()
    position.receive(frame(5, key=True))
    with pytest.raises(ProtocolError, match="came where 6"):
        position.receive(frame(5))
    with pytest.raises(ProtocolError, match="ended at 4"):
        position.finish(end(4))
    position.finish(end(6))
    with pytest.raises(ProtocolError, match="after the stream ended"):
        position.receive(frame(6))
