"""Acknowledgements, resuming and the final count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ithaka.server.errors import ProtocolViolation
from ithaka.server.session.delivery import Delivery
from ithaka.server.session.events import FinVerdict


def sent(through: int, *, decoded: int = 0) -> Delivery:
    delivery = Delivery("stream", window=8)
    delivery.generated(through)
    delivery.sent(through)
    delivery.acknowledge(decoded, decoded)
    return delivery


def test_acknowledgements_are_cumulative() -> None:
    delivery = sent(8)
    assert delivery.acknowledge(5, 3)
    assert not delivery.acknowledge(6, 3)
    assert delivery.acknowledge(8, 8)
    assert (delivery.window_through, delivery.owes_ack) == (16, False)


@pytest.mark.parametrize(
    ("received", "decoded", "code"),
    [(9, 4, "ack_beyond_sent"), (9, 9, "ack_beyond_sent"), (4, 5, "ack_invalid"), (3, 3, "ack_shrunk"), (6, 3, "ack_shrunk")],
)
def test_a_wrong_acknowledgement_changes_nothing(received: int, decoded: int, code: str) -> None:
    delivery = sent(8)
    delivery.acknowledge(5, 4)
    with pytest.raises(ProtocolViolation) as caught:
        delivery.acknowledge(received, decoded)
    assert (caught.value.code, caught.value.close_code) == (code, 1008)
    assert (delivery.received_through, delivery.decoded_through) == (5, 4)


def test_a_fresh_stream_is_resumed_from_its_first_frame() -> None:
    Delivery("stream", 8).resume("stream", 1, is_kept=True)


@pytest.mark.parametrize("next_seq", [5, 6, 9])
def test_resuming_says_that_all_before_is_decoded(next_seq: int) -> None:
    delivery = sent(8, decoded=4)
    delivery.resume("stream", next_seq, is_kept=True)
    assert (delivery.received_through, delivery.decoded_through) == (next_seq - 1, next_seq - 1)


@pytest.mark.parametrize(
    ("stream", "next_seq", "is_kept", "code"),
    [
        ("other", 5, True, "resume_foreign"),
        ("stream", 4, True, "resume_stale"),
        ("stream", 1, True, "resume_stale"),
        ("stream", 10, True, "resume_ahead"),
        ("stream", 5, False, "resume_gone"),
    ],
)
def test_a_resume_that_cannot_be(stream: str, next_seq: int, is_kept: bool, code: str) -> None:
    delivery = sent(8, decoded=4)
    with pytest.raises(ProtocolViolation) as caught:
        delivery.resume(stream, next_seq, is_kept=is_kept)
    assert (caught.value.code, caught.value.close_code) == (code, 4410)
    assert delivery.decoded_through == 4


@pytest.mark.parametrize(
    ("decoded", "count", "last_seq", "verdict"),
    [
        (8, 8, 8, FinVerdict.MATCH),
        (8, 7, 8, FinVerdict.MISMATCH),
        (8, 8, 7, FinVerdict.MISMATCH),
        (8, 9, 9, FinVerdict.MISMATCH),
        (7, 8, 8, FinVerdict.MISMATCH),
    ],
)
def test_fin_is_compared_with_our_count_and_its_own_acknowledgements(
    decoded: int, count: int, last_seq: int, verdict: FinVerdict
) -> None:
    delivery = sent(8, decoded=decoded)
    delivery.ended(8)
    assert delivery.finish(count, last_seq) is FinVerdict.EARLY
    delivery.eos_sent()
    assert delivery.finish(count, last_seq) is verdict


def test_frames_that_never_reached_us_are_not_delivered() -> None:
    delivery = sent(8, decoded=8)
    delivery.ended(10)
    delivery.eos_sent()
    assert delivery.finish(8, 8) is FinVerdict.MISMATCH


@given(st.lists(st.tuples(st.sampled_from(["send", "ack", "resume", "fin"]), st.integers(0, 30), st.integers(0, 30))))
def test_counts_never_cross_whatever_the_client_says(steps: list[tuple[str, int, int]]) -> None:
    delivery = Delivery("stream", window=8)
    for kind, first, second in steps:
        decoded = delivery.decoded_through
        try:
            if kind == "send":
                delivery.sent(min(delivery.sent_through + 1, delivery.window_through))
            elif kind == "ack":
                delivery.acknowledge(first, second)
            elif kind == "resume":
                delivery.resume("stream", first + 1, is_kept=True)
            else:
                assert delivery.finish(first, second) is FinVerdict.EARLY
        except ProtocolViolation:
            pass
        assert decoded <= delivery.decoded_through <= delivery.received_through <= delivery.sent_through
        assert delivery.sent_through <= delivery.window_through
