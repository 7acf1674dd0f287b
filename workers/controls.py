"""Client input between two chunks, folded into one: newest state wins, and no press or release is lost. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from ithaka.workers.contract import ApplyControl
from ithaka.workers.families.base import Controls


@dataclass(frozen=True, slots=True)
class PendingControls:
    """What a session's client did; ``held`` and ``control_id`` stay from chunk to chunk, the rest is since the last one."""

    held: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()
    """Keys that went up or down since the last chunk was planned."""
    tapped: frozenset[str] = frozenset()
    """Keys that did so at least twice."""
    pointer_dx: float = 0.0
    pointer_dy: float = 0.0
    prompt: str | None = None
    control_id: int = 0


def absorb(pending: PendingControls, control: ApplyControl, keys: Collection[str]) -> PendingControls:
    """``pending`` after one more input. Keys outside ``keys`` are not the model's and leave no trace.

    Within one input presses come before releases. A press of a key that is down (auto-repeat) and a release of one that is
    up change nothing.
    """
    down = frozenset(key for key in control.pressed if key in keys and key not in pending.held)
    held = pending.held | down
    up = frozenset(key for key in control.released if key in held)
    return replace(
        pending,
        held=held - up,
        changed=pending.changed | down | up,
        tapped=pending.tapped | (pending.changed & (down | up)) | (down & up),
        pointer_dx=pending.pointer_dx + control.pointer_dx,
        pointer_dy=pending.pointer_dy + control.pointer_dy,
        prompt=pending.prompt if control.prompt is None else control.prompt,
        control_id=max(pending.control_id, control.control_id),
    )


def take(pending: PendingControls) -> tuple[Controls, PendingControls]:
    """The input of the chunk that is planned now, and what remains for the next one.

    A press shows in ``held`` or ``tapped``; a release shows by the key's absence in ``held``, or in ``tapped``.
    """
    controls = Controls(pending.held, pending.tapped, pending.pointer_dx, pending.pointer_dy, pending.prompt)
    return controls, PendingControls(held=pending.held, control_id=pending.control_id)
