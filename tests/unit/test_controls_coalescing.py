"""Input between two plans: the newest state wins, and nothing that a player did is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ithaka.workers.contract import ApplyControl
from ithaka.workers.controls import PendingControls, absorb, take
from ithaka.workers.families.base import Controls

KEYS = ("KeyW", "KeyA", "KeyS")
keys = st.sampled_from((*KEYS, "KeyUnknown"))
events = st.lists(st.tuples(st.sampled_from(["press", "release", "plan"]), keys), max_size=40)


def _control(control_id: int, *, pressed: tuple[str, ...] = (), released: tuple[str, ...] = ()) -> ApplyControl:
    return ApplyControl("s", control_id, pressed, released)


@given(events)
def test_no_press_and_no_release_is_lost(history: list[tuple[str, str]]) -> None:
    pending = PendingControls()
    down: set[str] = set()
    pressed: set[str] = set()
    released: set[str] = set()
    for number, (what, key) in enumerate([*history, ("plan", "")], start=1):
        if what == "plan":
            controls, pending = take(pending)
            assert controls.held == down
            assert pressed <= controls.held | controls.tapped
            assert all(key not in controls.held or key in controls.tapped for key in released)
            pressed, released = set(), set()
        elif what == "press":
            pending = absorb(pending, _control(number, pressed=(key,)), KEYS)
            if key in KEYS and key not in down:
                down.add(key)
                pressed.add(key)
        else:
            pending = absorb(pending, _control(number, released=(key,)), KEYS)
            if key in down:
                down.discard(key)
                released.add(key)


@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(-50, 50), st.none() | st.text(max_size=5)), max_size=20))
def test_pointer_adds_up_and_the_newest_prompt_wins(inputs: list[tuple[float, float, str | None]]) -> None:
    pending = PendingControls()
    for number, (dx, dy, prompt) in enumerate(inputs, start=1):
        pending = absorb(pending, ApplyControl("s", number, pointer_dx=dx, pointer_dy=dy, prompt=prompt), KEYS)
    controls, rest = take(pending)
    total_x, total_y = 0.0, 0.0
    for dx, dy, _ in inputs:
        total_x, total_y = total_x + dx, total_y + dy
    assert (controls.pointer_dx, controls.pointer_dy) == (total_x, total_y)
    prompts = [prompt for _, _, prompt in inputs if prompt is not None]
    assert controls.prompt == (prompts[-1] if prompts else None)
    assert take(rest)[0] == take(PendingControls())[0]


def test_a_tap_between_two_plans_is_seen_once() -> None:
    pending = absorb(PendingControls(), _control(1, pressed=("KeyW",)), KEYS)
    pending = absorb(pending, _control(2, released=("KeyW",)), KEYS)
    controls, pending = take(pending)
    assert controls == Controls(tapped=frozenset({"KeyW"}))
    controls, pending = take(pending)
    assert controls == Controls()


def test_press_and_release_in_one_input_is_a_tap() -> None:
    controls, _ = take(absorb(PendingControls(), _control(1, pressed=("KeyA",), released=("KeyA",)), KEYS))
    assert controls == Controls(tapped=frozenset({"KeyA"}))


def test_auto_repeat_is_no_new_press() -> None:
    pending = PendingControls()
    for number in (1, 2, 3):
        pending = absorb(pending, _control(number, pressed=("KeyW",)), KEYS)
    controls, pending = take(pending)
    assert controls == Controls(held=frozenset({"KeyW"}))
    assert take(pending)[0].held == {"KeyW"}


def test_the_newest_control_id_stays_with_later_chunks() -> None:
    pending = absorb(PendingControls(), _control(7, pressed=("KeyW",)), KEYS)
    pending = absorb(pending, _control(5), KEYS)
    assert pending.control_id == 7
    _, pending = take(pending)
    assert pending.control_id == 7
