"""Messages of a client that can't be told to wait: bounded, and controls that come too fast become one."""

from __future__ import annotations

import asyncio
from collections import deque

from ithaka.server.errors import ProtocolViolation
from ithaka.server.session.messages import ClientMessage, Control
from ithaka.server.session.timers import Timer, Timers

MAX_WAITING = 64
"""Messages beside controls; a reader that lives takes them at once."""
CONTROL_INTERVAL_S = 1 / 120
"""Twice as often as a screen asks for input."""


class Inbox:
    """Full policy: controls are folded into the one that waits, newest state kept; anything else ends the connection."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._waiting: deque[ClientMessage] = deque()
        self._control: Control | None = None
        self._control_due_s = timers.now_s()
        self._timer: Timer | None = None
        self._failure: Exception | None = None
        self._changed = asyncio.Event()

    def put(self, message: ClientMessage) -> None:
        """From a callback; never waits."""
        if isinstance(message, Control):
            self._control = message if self._control is None else fold(self._control, message)
        elif len(self._waiting) >= MAX_WAITING:
            self.fail(ProtocolViolation("rate_exceeded", f"{MAX_WAITING} messages wait to be read"))
        else:
            self._waiting.append(message)
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """Nothing follows; what waits is still taken. The first failure counts."""
        self._failure = self._failure or error
        self._changed.set()

    async def take(self) -> ClientMessage:
        """The next message. Raises the failure."""
        while True:
            self._changed.clear()
            if self._waiting:
                return self._waiting.popleft()
            if self._control is not None and self._timers.now_s() >= self._control_due_s:
                control, self._control = self._control, None
                self._control_due_s = self._timers.now_s() + CONTROL_INTERVAL_S
                return control
            if self._failure is not None:
                self.close()
                raise self._failure
            if self._control is not None and self._timer is None:
                self._timer = self._timers.call_at(self._control_due_s, self._control_is_due)
            await self._changed.wait()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _control_is_due(self) -> None:
        self._timer = None
        self._changed.set()


def fold(older: Control, newer: Control) -> Control:
    """Two controls as one. A key ends as the newer one leaves it; a press that was let go again stays visible as a tap."""
    pressed = {*older.pressed, *newer.pressed}
    is_up = {*(key for key in older.released if key not in newer.pressed), *newer.released}
    return Control.model_construct(
        type="control",
        control_id=newer.control_id,
        pressed=tuple(sorted(pressed)),
        released=tuple(sorted(is_up)),
        pointer_dx=older.pointer_dx + newer.pointer_dx,
        pointer_dy=older.pointer_dy + newer.pointer_dy,
        prompt=older.prompt if newer.prompt is None else newer.prompt,
    )
