"""Which keys this client holds down, so that a new connection can tell the server the truth about all of them."""

from __future__ import annotations

from collections.abc import Iterable

from ithaka_client.protocol import Control


class HeldKeys:
    """A press or release that got lost with a connection is repeated by the snapshot after the next one."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._touched: set[str] = set()
        self._prompt: tuple[int, str] | None = None

    def apply(self, control: Control) -> None:
        self._touched.update(control.pressed, control.released)
        self._held.update(control.pressed)
        self._held.difference_update(control.released)
        if control.prompt is not None:
            self._prompt = (control.control_id, control.prompt)

    def confirm(self, control_id: int) -> None:
        """A frame used this control; prompts up to it have arrived."""
        if self._prompt is not None and self._prompt[0] <= control_id:
            self._prompt = None

    def snapshot(self, control_id: int) -> Control | None:
        """All keys ever touched as they are now, and a prompt that no frame has used yet; None if there is nothing to tell."""
        if not self._touched and self._prompt is None:
            return None
        return Control(
            control_id,
            pressed=_ordered(self._held),
            released=_ordered(self._touched - self._held),
            prompt=None if self._prompt is None else self._prompt[1],
        )


def _ordered(keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(keys))
