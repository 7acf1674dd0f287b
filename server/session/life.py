"""What a session is now: takes one event after another, and has done what each of them asks for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from ithaka.server.session.events import Effect, Event, ForceRequested
from ithaka.server.session.state import TERMINAL, SessionData, advance, open_session

FAULT = "internal"
"""The reason of a session that a fault of ours ended."""


class Life:
    """A fault, in the table or in performing, ends the session, whoever brought the event: it is logged and never raised."""

    def __init__(self, perform: Callable[[Effect], None], log: FilteringBoundLogger) -> None:
        self.data = SessionData()
        self._perform = perform
        self._log = log
        self._pending: deque[Event] = deque()

    def begin(self) -> None:
        self.data, effects = open_session()
        for effect in effects:
            self._perform(effect)

    def advance(self, event: Event) -> None:
        """In order, even when performing what one asks for brings about the next."""
        self._pending.append(event)
        if len(self._pending) > 1:
            return
        while self._pending:
            is_sound = self._take(self._pending[0])
            self._pending.popleft()
            if not is_sound and self.data.state not in TERMINAL:
                self._pending.appendleft(ForceRequested(FAULT, is_failure=True))

    def _take(self, event: Event) -> bool:
        """False after a fault. One effect's fault keeps no other from being performed: the last ones give things back."""
        try:
            self.data, effects = advance(self.data, event)
        except Exception:
            self._log.exception("session.event_failed", event_type=type(event).__name__, state=self.data.state)
            return False
        is_sound = True
        for effect in effects:
            try:
                self._perform(effect)
            except Exception:
                self._log.exception("session.effect_failed", effect=type(effect).__name__, state=self.data.state)
                is_sound = False
        return is_sound
