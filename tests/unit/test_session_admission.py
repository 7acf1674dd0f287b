"""Places, the queue, and who is turned away; controls and the message rate."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import DESCRIPTION, MODEL, READY

from ithaka.server.engine_client import ModelState
from ithaka.server.errors import ApiError
from ithaka.server.session.admission import Admission
from ithaka.server.session.controls import ControlDesk
from ithaka.server.session.messages import ControlBody
from ithaka.server.session.rate import RateBound


def admission(*, places: int = 1, max_queued: int = 2) -> Admission:
    made = Admission(max_queued)
    made.update(replace(READY, max_sessions=places))
    return made


def test_first_come_first_served() -> None:
    queue = admission()
    assert queue.request("a", MODEL)
    assert not queue.request("b", MODEL)
    assert not queue.request("c", MODEL)
    assert (queue.position("a"), queue.position("b"), queue.position("c")) == (None, 1, 2)
    assert queue.release("a") == ["b"]
    assert queue.position("c") == 1
    assert (queue.num_inside(MODEL), queue.num_waiting(MODEL)) == (1, 1)


def test_a_full_queue_says_when_to_come_back() -> None:
    queue = admission(max_queued=0)
    queue.request("a", MODEL)
    with pytest.raises(ApiError) as caught:
        queue.request("b", MODEL)
    assert (caught.value.code, caught.value.status) == ("queue_full", 429)
    assert int(caught.value.headers["Retry-After"]) > 0


def test_leaving_the_queue_moves_the_others_up() -> None:
    queue = admission()
    for name in "abc":
        queue.request(name, MODEL)
    queue.leave_queue("b")
    assert queue.position("c") == 1


def test_a_model_that_is_not_ready_lets_wait() -> None:
    queue = Admission(2)
    queue.update(replace(READY, state=ModelState.STARTING, max_sessions=1))
    assert not queue.request("a", MODEL)
    assert not queue.request("b", MODEL)
    assert queue.update(replace(READY, max_sessions=1)) == (["a"], [])


def test_a_model_that_is_given_up_sends_everybody_away() -> None:
    queue = admission()
    queue.request("a", MODEL)
    queue.request("b", MODEL)
    assert queue.update(replace(READY, state=ModelState.FAILED, message="no weights")) == ([], ["b"])
    with pytest.raises(ApiError, match="no weights") as caught:
        queue.request("c", MODEL)
    assert caught.value.code == "model_unavailable"


def test_an_unknown_model() -> None:
    with pytest.raises(ApiError, match="there are fake") as caught:
        admission().request("a", "nothing")
    assert caught.value.code == "model_unknown"


def test_releasing_twice_or_a_stranger_changes_nothing() -> None:
    queue = admission()
    queue.request("a", MODEL)
    assert queue.release("stranger") == []
    queue.release("a")
    assert queue.release("a") == []
    assert queue.num_inside(MODEL) == 0


@given(
    places=st.integers(1, 3),
    max_queued=st.integers(0, 3),
    steps=st.lists(st.tuples(st.sampled_from(["request", "release", "leave", "restart", "ready"]), st.integers(0, 8))),
)
def test_places_are_never_given_twice_and_order_is_kept(places: int, max_queued: int, steps: list[tuple[str, int]]) -> None:
    queue = admission(places=places, max_queued=max_queued)
    ready = replace(READY, max_sessions=places)
    inside: set[str] = set()
    waiting: list[str] = []
    names = iter(range(10_000))

    def enter(admitted: list[str]) -> None:
        assert admitted == waiting[: len(admitted)]
        del waiting[: len(admitted)]
        inside.update(admitted)

    for kind, pick in steps:
        if kind == "request":
            name = f"s{next(names)}"
            try:
                has_place = queue.request(name, MODEL)
            except ApiError:
                assert len(waiting) == max_queued
            else:
                assert not (has_place and waiting), "somebody jumped the queue"
                (inside.add if has_place else waiting.append)(name)
        elif kind == "release" and inside:
            name = sorted(inside)[pick % len(inside)]
            inside.remove(name)
            enter(queue.release(name))
        elif kind == "leave" and waiting:
            queue.leave_queue(waiting.pop(pick % len(waiting)))
        elif kind == "restart":
            assert queue.update(replace(ready, state=ModelState.RESTARTING)) == ([], [])
        elif kind == "ready":
            enter(queue.update(ready)[0])
        assert len(inside) == queue.num_inside(MODEL) <= places
        assert len(waiting) == queue.num_waiting(MODEL) <= max_queued
        assert [queue.position(name) for name in waiting] == list(range(1, len(waiting) + 1))


def test_keys_the_model_does_not_know_are_left_out() -> None:
    desk = ControlDesk("s", DESCRIPTION)
    control = desk.take(ControlBody(pressed=("KeyW", "KeyQ"), released=("Escape",), pointer_dx=2), 7)
    assert (control.control_id, control.pressed, control.released, control.pointer_dx) == (7, ("KeyW",), (), 2.0)


def test_control_ids_grow_within_a_connection() -> None:
    desk = ControlDesk("s", DESCRIPTION)
    desk.take(ControlBody(), 7)
    with pytest.raises(ApiError) as caught:
        desk.take(ControlBody(), 7)
    assert caught.value.code == "control_stale"
    assert desk.take(ControlBody(), None).control_id == 8
    desk.begin_connection()
    assert desk.take(ControlBody(), 1).control_id == 1


@pytest.mark.parametrize("body", [ControlBody(prompt=""), ControlBody(pointer_dy=1)])
def test_what_the_model_does_not_take(body: ControlBody) -> None:
    desk = ControlDesk("s", replace(DESCRIPTION, takes_prompt=False, takes_pointer=False))
    with pytest.raises(ApiError) as caught:
        desk.take(body, 1)
    assert caught.value.code == "control_not_taken"


def test_keys_that_are_down_are_let_go_once() -> None:
    desk = ControlDesk("s", DESCRIPTION)
    desk.take(ControlBody(pressed=("KeyW", "KeyA")), 1)
    desk.take(ControlBody(released=("KeyA",)), 2)
    released = desk.release_all()
    assert released is not None and (released.released, released.control_id) == (("KeyW",), 2)
    assert desk.release_all() is None


def test_the_rate_bound_takes_a_burst_then_the_rate() -> None:
    bound = RateBound(10, now_s=0.0)
    assert [bound.take(0.0) for _ in range(11)] == [True] * 10 + [False]
    assert bound.take(0.1)
    assert not bound.take(0.1)
    assert [bound.take(100.0) for _ in range(11)] == [True] * 10 + [False]
