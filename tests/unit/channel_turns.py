"""Turns between the sides of a channel at every single access to what they share, and deaths at any of them."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

MAX_STEPS = 100_000


class KilledError(BaseException):
    """This side is dead; nothing below may catch it."""


class Turns:
    """Lets one side run at a time, in greenlets, and chooses at every access who goes on.

    ``choices``: (side, for how many accesses), again and again; a side that is done leaves its turns to the others.
    ``deaths``: at which of its accesses a side dies.
    """

    def __init__(self, choices: list[tuple[int, int]], deaths: dict[str, int]) -> None:
        self._choices = [side for side, num_accesses in choices for _ in range(num_accesses)]
        self._deaths = deaths
        self._accesses: Counter[str] = Counter()
        self._current = ""

    def run(self, sides: dict[str, Callable[[], None]]) -> list[BaseException]:
        """What the sides raised, but for their deaths."""
        errors: list[BaseException] = []

        def live(act: Callable[[], None]) -> None:
            try:
                act()
            except KilledError:
                pass
            except BaseException as error:
                errors.append(error)

        alive = {name: greenlet(functools.partial(live, act)) for name, act in sides.items()}
        steps = itertools.count()
        while alive:
            step = next(steps)
            assert step < MAX_STEPS, "the sides wait for each other"
            lap, position = divmod(step, len(self._choices))
            # Every lap is shifted, so that everybody gets on whatever was chosen.
            self._current = list(alive)[(self._choices[position] + lap) % len(alive)]
            alive[self._current].switch()
            if alive[self._current].dead:
                del alive[self._current]
        return errors

    def step(self) -> None:
        """An access of the side that runs now."""
        self._accesses[self._current] += 1
        if self._accesses[self._current] == self._deaths.get(self._current):
            raise KilledError
        getcurrent().parent.switch()


class SteppedWords:
    def __init__(self, num_words: int, turns: Turns) -> None:
        self.words = [0] * num_words
        self._turns = turns

    def __getitem__(self, index: int, /) -> int:
        self._turns.step()
        return self.words[index]

    def __setitem__(self, index: int, value: int, /) -> None:
        self._turns.step()
        self.words[index] = value
