"""Encoded frames of one session, kept until they are decoded and no decoder could need them.

Kept is everything from the last key frame at or before the next frame a client may ask for, so that a fresh decoder can
start there. Bounded by bytes: past half the bound a key frame is wanted at once (it makes everything older droppable); at
the bound ``is_full`` says that generation has to wait. A frame that was not acknowledged is never dropped. When all are
acknowledged and the bound is still passed, the acknowledged ones go: then a fresh decoder has to wait for a key frame, but
the client that kept up is never held.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from ithaka.workers.contract import PacketHeader


@dataclass(frozen=True, slots=True)
class EncodedFrame:
    """One access unit (H.264 Annex B) and what is known about it."""

    header: PacketHeader
    payload: bytes


class Retention:
    def __init__(self, bound_bytes: int) -> None:
        self._bound_bytes = bound_bytes
        self._frames: dict[int, EncodedFrame] = {}
        self._key_seqs: list[int] = []
        self._first_seq = 1
        self._decoded_through = 0
        self._bytes_since_key = 0
        self._was_above_half = False
        self._was_key_above_half = False
        self.newest_seq = 0
        self.retained_bytes = 0

    @property
    def first_seq(self) -> int:
        """The oldest frame kept; ``newest_seq + 1`` when none is."""
        return self._first_seq

    @property
    def is_full(self) -> bool:
        """Generation has to wait. Never while everything is acknowledged."""
        return self.retained_bytes >= self._bound_bytes and self._decoded_through < self.newest_seq

    def get(self, seq: int) -> EncodedFrame | None:
        return self._frames.get(seq)

    def add(self, frame: EncodedFrame) -> bool:
        """Keep the next frame; True when a key frame is wanted now. Raises ValueError when it is not the next in order."""
        if frame.header.seq != self.newest_seq + 1:
            raise ValueError(f"frame {frame.header.seq} came after {self.newest_seq}")
        self.newest_seq = frame.header.seq
        self._frames[frame.header.seq] = frame
        self.retained_bytes += len(frame.payload)
        if frame.header.key:
            self._key_seqs.append(frame.header.seq)
        self._bytes_since_key = len(frame.payload) + (0 if frame.header.key else self._bytes_since_key)
        self._trim()
        return self._passed_half()

    def acknowledge(self, decoded_through: int) -> None:
        """``decoded_through`` is cumulative."""
        self._decoded_through = max(self._decoded_through, decoded_through)
        self._trim()
        self._passed_half()

    def replay_start(self, next_seq: int) -> int | None:
        """The key frame from which a fresh decoder reaches ``next_seq``; ``next_seq`` itself when it is the stream's first.

        None when that key frame is not kept.
        """
        at = bisect_right(self._key_seqs, next_seq)
        if at:
            return self._key_seqs[at - 1]
        return next_seq if self.newest_seq == 0 else None

    def next_key(self, after_seq: int) -> int | None:
        """The first kept key frame beyond ``after_seq``."""
        at = bisect_right(self._key_seqs, after_seq)
        return self._key_seqs[at] if at < len(self._key_seqs) else None

    def newest_key(self) -> int | None:
        """The newest kept key frame."""
        return self._key_seqs[-1] if self._key_seqs else None

    def clear(self) -> None:
        self._drop_before(self.newest_seq + 1)

    def _trim(self) -> None:
        at = bisect_right(self._key_seqs, self._decoded_through + 1)
        if at:
            self._drop_before(self._key_seqs[at - 1])
        if self.retained_bytes >= self._bound_bytes and self._decoded_through >= self.newest_seq:
            self.clear()

    def _drop_before(self, seq: int) -> None:
        for old in range(self._first_seq, seq):
            self.retained_bytes -= len(self._frames.pop(old).payload)
        self._first_seq = max(self._first_seq, seq)
        del self._key_seqs[: bisect_left(self._key_seqs, seq)]

    def _passed_half(self) -> bool:
        """Rising edges only: the whole past half, or what lies beyond the newest key frame alone."""
        half_bytes = self._bound_bytes / 2
        above, key_above = self.retained_bytes > half_bytes, self._bytes_since_key > half_bytes
        passed = (above and not self._was_above_half) or (key_above and not self._was_key_above_half)
        self._was_above_half, self._was_key_above_half = above, key_above
        return passed
