"""How far a consumer is, in words of which each update is one store. Pure.

A consumer's five words: ``version``, and two copies of (``passed``, ``delivered``), of which number ``version % 2`` is valid:
the newest sequence it has passed, and how many messages it was given until then. The difference is what it was not given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ithaka.comm_ext.channel.layout import WORD_PUBLISHED, Geometry

Fence = Callable[[], None]


class Words(Protocol):
    """Aligned 8-byte words: a memoryview of format Q, or a list in a test."""

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...


class Progress:
    """The consumer's own view, which alone writes. A successor goes on where the words say."""

    def __init__(self, words: Words, geometry: Geometry, index: int, fence: Fence) -> None:
        self._words = words
        self._first = geometry.progress_word(index)
        self._fence = fence
        self._version = words[self._first]
        fence()
        self.passed, self._delivered = _read_copy(words, self._first, self._version)

    def advance(self, sequence: int, *, is_delivered: bool) -> None:
        """Everything up to ``sequence`` is passed; that one was given or not, what lay between was not."""
        self.passed = sequence
        self._delivered += is_delivered
        self._version += 1
        at = self._first + 1 + 2 * (self._version % 2)
        self._words[at] = self.passed
        self._words[at + 1] = self._delivered
        self._fence()
        self._words[self._first] = self._version


def num_dropped(words: Words, geometry: Geometry, index: int, fence: Fence) -> int:
    """Messages that a consumer was passed over with, up to now or until it left; on any side, at any time."""
    first = geometry.progress_word(index)
    while True:
        version = words[first]
        fence()
        passed, delivered = _read_copy(words, first, version)
        published = words[WORD_PUBLISHED]
        gone = words[geometry.gone_word(index)]
        fence()
        if words[first] == version:
            break
    superseded = max(0, (gone - 1 if gone else published) - passed - 1) if geometry.is_newest(index) else 0
    return passed - delivered + superseded


def _read_copy(words: Words, first: int, version: int) -> tuple[int, int]:
    at = first + 1 + 2 * (version % 2)
    return words[at], words[at + 1]
