"""Controls over a data channel: folded when they come too fast, newest state kept, nothing else lost or reordered."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes import FakeTimers

from ithaka.server.errors import ProtocolViolation
from ithaka.server.session.messages import Ack, Control
from ithaka.server.transports.base import TransportLost
from ithaka.server.transports.webrtc.inbox import CONTROL_INTERVAL_S, MAX_WAITING, Inbox, fold
from ithaka.workers.contract import ApplyControl
from ithaka.workers.controls import PendingControls, absorb

KEYS = ("KeyW", "KeyA", "KeyS")
some_keys = st.sets(st.sampled_from(KEYS)).map(lambda keys: tuple(sorted(keys)))
controls = st.builds(
    Control,
    type=st.just("control"),
    control_id=st.integers(1, 10**6),
    pressed=some_keys,
    released=some_keys,
    pointer_dx=st.integers(-9, 9).map(float),
    pointer_dy=st.integers(-9, 9).map(float),
    prompt=st.none() | st.sampled_from(["a", "b"]),
)


def control(control_id: int, **fields: object) -> Control:
    return Control.model_validate({"type": "control", "control_id": control_id, **fields})


def absorbed(pending: PendingControls, one: Control) -> PendingControls:
    applied = ApplyControl("s", one.control_id, one.pressed, one.released, one.pointer_dx, one.pointer_dy, one.prompt)
    return absorb(pending, applied, KEYS)


@settings(deadline=None)
@given(st.frozensets(st.sampled_from(KEYS)), st.lists(controls, min_size=1, max_size=8))
def test_folding_leaves_every_key_pointer_and_prompt_as_one_after_another_would(
    held: frozenset[str], sequence: list[Control]
) -> None:
    one_by_one = folded_state = PendingControls(held=held)
    folded = sequence[0]
    for one in sequence[1:]:
        folded = fold(folded, one)
    for one in sequence:
        one_by_one = absorbed(one_by_one, one)
    folded_state = absorbed(folded_state, folded)
    assert folded_state.held == one_by_one.held
    assert folded_state.prompt == one_by_one.prompt
    assert (folded_state.pointer_dx, folded_state.pointer_dy) == (one_by_one.pointer_dx, one_by_one.pointer_dy)
    assert folded.control_id == sequence[-1].control_id


def test_a_press_that_was_let_go_again_stays_visible() -> None:
    folded = fold(control(1, pressed=["KeyW"]), control(2, released=["KeyW"]))
    state = absorbed(PendingControls(), folded)
    assert state.tapped == {"KeyW"} and not state.held


async def test_a_flood_becomes_one_control_an_interval_and_the_newest_is_kept() -> None:
    timers = FakeTimers()
    inbox = Inbox(timers)
    inbox.put(control(1, pointer_dx=1))
    assert (await inbox.take()) == control(1, pointer_dx=1), "the first goes through at once"
    for number in range(2, 1002):
        inbox.put(control(number, pointer_dx=1))
    reader = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    assert not reader.done()
    timers.advance(CONTROL_INTERVAL_S)
    taken = await reader
    assert isinstance(taken, Control)
    assert (taken.control_id, taken.pointer_dx) == (1001, 1000)
    assert timers.num_pending == 0


async def test_other_messages_keep_their_order_and_do_not_wait_for_controls() -> None:
    inbox = Inbox(FakeTimers())
    inbox.put(control(1))
    await inbox.take()
    inbox.put(control(2))
    acks = [Ack(type="ack", received_through=n, decoded_through=n) for n in range(MAX_WAITING)]
    for ack in acks:
        inbox.put(ack)
    assert [await inbox.take() for _ in acks] == acks


async def test_one_message_more_than_fits_ends_the_connection_after_those_that_fit() -> None:
    inbox = Inbox(FakeTimers())
    for number in range(MAX_WAITING + 5):
        inbox.put(Ack(type="ack", received_through=number, decoded_through=number))
    for _ in range(MAX_WAITING):
        await inbox.take()
    with pytest.raises(ProtocolViolation) as caught:
        await inbox.take()
    assert caught.value.code == "rate_exceeded"


async def test_the_first_failure_counts_and_leaves_no_timer() -> None:
    timers = FakeTimers()
    inbox = Inbox(timers)
    inbox.put(control(1))
    await inbox.take()
    inbox.fail(TransportLost("gone"))
    inbox.fail(ProtocolViolation("message_invalid", "late"))
    with pytest.raises(TransportLost):
        await inbox.take()
    assert timers.num_pending == 0
