"""Notices a peer that is gone without a word."""

from __future__ import annotations

from collections.abc import Callable

from ithaka.server.session.timers import Timer, Timers

MAX_SILENCE_S = 6.0
"""A peer that lives answers a question at once, whatever its page does, and is asked twice a second while nothing comes: this
long a silence is no loss of single datagrams. ICE itself gives up after half a minute only. Beyond the five seconds' stall
that a receiver is to survive."""
LOOK_INTERVAL_S = 0.5


class SilenceWatch:
    """Calls ``on_silence`` once, when ``num_heard`` has not grown for ``MAX_SILENCE_S``; ``ask`` whenever it has not since the
    last look. ``heard_at_s``: the look at which it had grown last.
    """

    def __init__(
        self, timers: Timers, *, num_heard: Callable[[], int], ask: Callable[[], None], on_silence: Callable[[], None]
    ) -> None:
        self._timers = timers
        self._num_heard = num_heard
        self._ask = ask
        self._on_silence = on_silence
        self._known_heard = num_heard()
        self.heard_at_s = timers.now_s()
        self._timer: Timer | None = self._look_later()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> Timer:
        return self._timers.call_at(self._timers.now_s() + LOOK_INTERVAL_S, self._look)

    def _look(self) -> None:
        self._timer = None
        num_heard, now_s = self._num_heard(), self._timers.now_s()
        if num_heard != self._known_heard:
            self._known_heard, self.heard_at_s = num_heard, now_s
        elif now_s - self.heard_at_s >= MAX_SILENCE_S:
            self._on_silence()
            return
        else:
            self._ask()
        self._timer = self._look_later()
