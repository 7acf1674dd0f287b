"""Named points where a test makes a child die, stop or fail; without ``--fault`` reaching one does nothing."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

ACTIONS = ("kill", "stop", "raise")


class FaultInjectedError(Exception):
    """What the action ``raise`` raises."""


@dataclass(frozen=True, slots=True)
class Fault:
    """At the ``count``-th time (from 1) that ``point`` is reached, do ``action``: SIGKILL or SIGSTOP to oneself, or raise."""

    point: str
    count: int
    action: str


class FaultPoints:
    """The faults of one process. Safe from any thread."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._faults = tuple(faults)
        self._watched = frozenset(fault.point for fault in self._faults)
        self._reached: Counter[str] = Counter()
        self._lock = threading.Lock()

    @classmethod
    def parse(cls, values: Iterable[str]) -> FaultPoints:
        """From the values of ``--fault``, each ``point:count:action``. Raises ValueError naming the value."""
        return cls(_parse(value) for value in values)

    def reach(self, point: str) -> None:
        """The process is at ``point``. Raises FaultInjectedError where a test asked for it."""
        if point not in self._watched:
            return
        with self._lock:
            self._reached[point] += 1
            count = self._reached[point]
        for fault in self._faults:
            if fault.point == point and fault.count == count:
                _act(fault)


def _parse(value: str) -> Fault:
    point, _, rest = value.partition(":")
    count, _, action = rest.partition(":")
    if not point or not count.isdecimal() or int(count) < 1 or action not in ACTIONS:
        raise ValueError(f"--fault {value!r}: expected POINT:COUNT:ACTION, COUNT from 1, ACTION one of {', '.join(ACTIONS)}")
    return Fault(point, int(count), action)


def _act(fault: Fault) -> None:
    if fault.action == "raise":
        raise FaultInjectedError(f"{fault.point} reached {fault.count} times")
    os.kill(os.getpid(), signal.SIGKILL if fault.action == "kill" else signal.SIGSTOP)
