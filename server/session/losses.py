"""Frames that were dropped in front of the encoder, by number. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

MAX_REMEMBERED = 4096
"""The newest; older ones only count."""


class Losses:
    def __init__(self) -> None:
        self.num_dropped = 0
        self._seqs: list[int] = []

    def dropped(self, seq: int) -> None:
        """Seqs come in order."""
        self.num_dropped += 1
        self._seqs.append(seq)
        del self._seqs[:-MAX_REMEMBERED]

    def between(self, after_seq: int, before_seq: int) -> int:
        """How many lie strictly between."""
        return max(0, bisect_left(self._seqs, before_seq) - bisect_right(self._seqs, after_seq))
