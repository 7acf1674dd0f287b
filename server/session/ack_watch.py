"""The controller owes an acknowledgement: by when, and what happens if none comes."""

from __future__ import annotations

from collections.abc import Callable

from ithaka.server.session.events import Timeout
from ithaka.server.session.timers import NamedTimers, Timers


class AckWatch:
    """The timer is not moved at every acknowledgement; it looks again when it fires."""

    def __init__(self, timers: Timers, named_timers: NamedTimers, timeout_s: float, on_late: Callable[[], None]) -> None:
        self._timers = timers
        self._named_timers = named_timers
        self._timeout_s = timeout_s
        self._on_late = on_late
        self._due_s: float | None = None

    def expect(self) -> None:
        """One is owed, from now on or already."""
        if self._due_s is None:
            self._due_s = self._timers.now_s() + self._timeout_s
            if not self._named_timers.is_running(Timeout.ACK):
                self._named_timers.arm(Timeout.ACK, self._due_s, self._check)

    def forget(self) -> None:
        """One came, or nobody owes any more."""
        self._due_s = None

    def _check(self) -> None:
        if self._due_s is None:
            return
        if self._timers.now_s() >= self._due_s:
            self._due_s = None
            self._on_late()
        else:
            self._named_timers.arm(Timeout.ACK, self._due_s, self._check)
