"""Whether a child lives and works, judged by its heartbeats. Pure: the clock is an argument."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    WELL = "well"
    SILENT = "silent"
    """No heartbeat in time: dead, stopped, or without its thread."""
    HUNG = "hung"
    """Heartbeats come, but the step makes no progress."""


@dataclass(slots=True)
class Vitals:
    """``heard_s`` is when the child was last heard, ``moved_s`` when its work last moved; both on the caller's clock."""

    heard_s: float
    moved_s: float
    progress: int = -1
    busy: bool = False

    @classmethod
    def born(cls, now_s: float) -> Vitals:
        return cls(heard_s=now_s, moved_s=now_s)

    def beat(self, now_s: float, *, progress: int, busy: bool) -> None:
        """A heartbeat came."""
        self.heard_s = now_s
        if not busy or not self.busy or progress != self.progress:
            self.moved_s = now_s
        self.progress = progress
        self.busy = busy

    def due_s(self, *, silence_s: float, stall_s: float) -> float:
        """Until then the verdict stays well, whether or not anything more is heard; arguments as of ``verdict``."""
        return min(self.heard_s + silence_s, self.moved_s + stall_s if self.busy else math.inf)

    def verdict(self, now_s: float, *, silence_s: float, stall_s: float) -> Verdict:
        """``silence_s``: how long may pass without a heartbeat; ``stall_s``: how long a busy child may stand still."""
        if now_s - self.heard_s > silence_s:
            return Verdict.SILENT
        if self.busy and now_s - self.moved_s > stall_s:
            return Verdict.HUNG
        return Verdict.WELL
