"""Time for sessions: a clock and one-shot timers, so that tests bring their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """CLOCK_MONOTONIC in seconds, and in nanoseconds as frames carry it; callbacks run on the event loop."""

    def now_s(self) -> float: ...

    def now_ns(self) -> int: ...

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer: ...


class LoopTimers:
    """The running loop's."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now_s(self) -> float:
        return self._loop.time()

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_at(when_s, callback)


class NamedTimers:
    """At most one running timer for each name."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._running: dict[str, Timer] = {}

    def arm(self, name: str, when_s: float, callback: Callable[[], None]) -> None:
        """Start it, or start it anew."""
        self.cancel(name)

        def fire() -> None:
            self._running.pop(name, None)
            callback()

        self._running[name] = self._timers.call_at(when_s, fire)

    def cancel(self, name: str) -> None:
        timer = self._running.pop(name, None)
        if timer is not None:
            timer.cancel()

    def is_running(self, name: str) -> bool:
        return name in self._running

    def cancel_all(self) -> None:
        for name in list(self._running):
            self.cancel(name)


def wall_clock_s() -> float:
    """Seconds since 1970, for dates shown to people and in tokens."""
    return time.time()
