"""How many messages a client may send: a bucket that refills. Pure; every call takes the time."""

from __future__ import annotations


class RateBound:
    """``per_s`` messages a second on average, as many at once."""

    def __init__(self, per_s: int, now_s: float) -> None:
        self._per_s = per_s
        self._left = float(per_s)
        self._at_s = now_s

    def take(self, now_s: float, num: int = 1) -> bool:
        """Count ``num`` messages; False, and none is counted, when that is too many."""
        self._left = min(float(self._per_s), self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._left < num:
            return False
        self._left -= num
        return True
