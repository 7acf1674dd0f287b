"""Time for sessions: a clock and one-shot timers, so that tests bring their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """Monotonic seconds; callbacks run on the event loop."""

    def now_s(self) -> float: ...

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer: ...


class LoopTimers:
    """The running loop's."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now_s(self) -> float:
        return self._loop.time()

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_at(when_s, callback)


def wall_clock_s() -> float:
    """Seconds since 1970, for dates shown to people and in tokens."""
    return time.time()
