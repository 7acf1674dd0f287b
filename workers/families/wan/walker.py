"""From keys and pointer to what the walker does in one frame."""

from __future__ import annotations

from ithaka.workers.families.base import Controls

KEYS = ("KeyW", "KeyA", "KeyS", "KeyD", "ArrowLeft", "ArrowRight")
TURN_PER_PIXEL = 0.025
"""Share of a held arrow key's turn per CSS pixel of pointer motion: 40 pixels turn like one frame of the key."""
MAX_TURN = 1.5
"""The fastest turn per frame that the model has seen."""
MAX_PENDING_TURN = 6.0
"""Pointer motion that may wait for later frames; more of it is forgotten."""


def walk_controls(controls: Controls, pending_turn: float) -> tuple[tuple[float, float, float], float]:
    """(forward, strafe right, turn right) of one frame, and the pointer's turn left for the next frames.

    A tapped key counts as held for the frame.
    """
    down = controls.held | controls.tapped
    forward = float("KeyW" in down) - float("KeyS" in down)
    strafe = float("KeyD" in down) - float("KeyA" in down)
    keyed = float("ArrowRight" in down) - float("ArrowLeft" in down)
    wanted = pending_turn + TURN_PER_PIXEL * controls.pointer_dx
    turn = _clamp(keyed + wanted, MAX_TURN)
    return (forward, strafe, turn), _clamp(wanted - (turn - keyed), MAX_PENDING_TURN)


def _clamp(value: float, limit: float) -> float:
    return max(-limit, min(limit, value))
