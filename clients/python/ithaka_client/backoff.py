"""Delays between attempts to reconnect."""

from __future__ import annotations

from collections.abc import Callable, Iterator

FIRST_DELAY_S = 0.05
LONGEST_DELAY_S = 2.0


def delays_s(random: Callable[[], float]) -> Iterator[float]:
    """Doubling from 50 ms to 2 s, each spread by up to half so that many clients do not come back at once.

    ``random`` gives numbers from 0 to 1.
    """
    delay_s = FIRST_DELAY_S
    while True:
        yield delay_s * (1 - 0.5 * random())
        delay_s = min(2 * delay_s, LONGEST_DELAY_S)
