"""Notices a receiver of a track that is gone without a word."""

from __future__ import annotations

from collections.abc import Callable

from ithaka.server.session.timers import Timer, Timers

MAX_SILENCE_S = 6.0
"""A receiver reports on its track about once a second, also while nothing is sent, and checks its connection besides: this
long a silence is no loss of single datagrams. ICE itself gives up after half a minute only. Beyond the five seconds' stall
that a receiver is to survive."""
LOOK_INTERVAL_S = 1.0


class SilenceWatch:
    """Calls ``on_silence`` once, when ``num_heard`` has not grown for ``MAX_SILENCE_S``."""

    def __init__(self, timers: Timers, num_heard: Callable[[], int], on_silence: Callable[[], None]) -> None:
        self._timers = timers
        self._num_heard = num_heard
        self._on_silence = on_silence
        self._known_heard = num_heard()
        self._heard_at_s = timers.now_s()
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
            self._known_heard, self._heard_at_s = num_heard, now_s
        if now_s - self._heard_at_s >= MAX_SILENCE_S:
            self._on_silence()
        else:
            self._timer = self._look_later()
