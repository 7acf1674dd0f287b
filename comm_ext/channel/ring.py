"""Slots, counts and the order of messages, over any memory of 8-byte words. Pure: no mapping, no descriptor, no clock.

Every word has one writer, and each step that others may see is one aligned 8-byte store, so that a side may die between any
two of them:

- *publish* writes the slot's sequence and the queue, which nobody reads yet, then ``published``.
- *release* stores the sequence into the consumer's own word of that slot. A slot's count is the number of consumers whose
  word differs from the sequence that the slot holds.
- *claim* and *take* write nothing. A slot that a dead producer had claimed is as free as before; what a dead consumer had
  taken is still counted, until the owner drops the consumer or a successor opens the same index and takes it again.

``fence`` keeps stores (and loads) before it ahead of those after it. x86-64 does that by itself; see ``fence.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelError, SlotStateError
from ithaka.comm_ext.channel.layout import WORD_CLOSED, WORD_PUBLISHED, Geometry

Fence = Callable[[], None]


class Words(Protocol):
    """Aligned 8-byte words: a memoryview of format Q, or a list in a test."""

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...


class ProducerRing:
    """The producer's side. A successor of a dead producer goes on after the last message that was published."""

    def __init__(self, words: Words, geometry: Geometry, fence: Fence) -> None:
        self._words = words
        self._geometry = geometry
        self._fence = fence
        self._claimed: set[int] = set()
        self._free: list[int] = []
        published = words[WORD_PUBLISHED]
        for slot in range(geometry.num_slots):
            # A predecessor died within publish: its sequence will be another slot's.
            if words[geometry.holds_word(slot)] > published:
                words[geometry.holds_word(slot)] = 0

    def claim(self) -> int | None:
        """A free slot's index, or None. Raises ChannelClosedError when closed or when every consumer is gone."""
        self._check_open()
        if not self._free:
            self._free = self._find_free()
        if not self._free:
            return None
        slot = self._free.pop()
        self._claimed.add(slot)
        return slot

    def publish(self, slot: int) -> int:
        """Hand a claimed slot, whose bytes and record are written, to every consumer; returns its sequence.

        Raises SlotStateError for a slot that is not claimed, ChannelClosedError.
        """
        if slot not in self._claimed:
            raise SlotStateError(f"channel {self._geometry.channel_id}: slot {slot} was not claimed")
        self._check_open()
        sequence = self._words[WORD_PUBLISHED] + 1
        self._words[self._geometry.holds_word(slot)] = sequence
        self._words[self._geometry.queue_word(sequence)] = slot
        self._fence()
        self._words[WORD_PUBLISHED] = sequence
        self._claimed.discard(slot)
        return sequence

    @property
    def num_free(self) -> int:
        """Slots that ``claim`` would find now."""
        self._free = self._find_free()
        return len(self._free)

    def _find_free(self) -> list[int]:
        """Highest first, so that the lowest is claimed first and pages that were never used stay untouched."""
        words, geometry = self._words, self._geometry
        present = [index for index in range(geometry.num_consumers) if not words[geometry.gone_word(index)]]
        free = []
        for slot in range(geometry.num_slots - 1, -1, -1):
            if slot in self._claimed:
                continue
            holds = words[geometry.holds_word(slot)]
            if holds == 0 or all(words[geometry.released_word(index, slot)] == holds for index in present):
                free.append(slot)
        # What the consumers read in these slots, they read before they released.
        self._fence()
        return free

    def _check_open(self) -> None:
        geometry = self._geometry
        if self._words[WORD_CLOSED]:
            raise ChannelClosedError(f"channel {geometry.channel_id}: the producer's side is closed")
        if all(self._words[geometry.gone_word(index)] for index in range(geometry.num_consumers)):
            raise ChannelClosedError(f"channel {geometry.channel_id}: every consumer is gone")


class ConsumerRing:
    """One consumer's side. A successor at the same index first finds what its predecessor did not release, in order."""

    def __init__(self, words: Words, geometry: Geometry, index: int, fence: Fence) -> None:
        """Raises ChannelError for an unknown consumer, ChannelClosedError for one that left or was dropped."""
        if not 0 <= index < geometry.num_consumers:
            raise ChannelError(f"channel {geometry.channel_id} has consumers 0..{geometry.num_consumers - 1}, not {index}")
        self._words = words
        self._geometry = geometry
        self._index = index
        self._fence = fence
        self._held: dict[int, int] = {}
        self._check_present()
        self._taken = words[WORD_PUBLISHED]
        fence()
        self._left_over = deque(self._find_left_over())

    def take(self) -> tuple[int, int] | None:
        """Slot and sequence of the next message, or None.

        Raises ChannelClosedError when none can follow or this consumer was dropped, ChannelError when the memory holds
        what no producer writes.
        """
        self._check_present()
        if self._left_over:
            sequence, slot = self._left_over.popleft()
            self._held[sequence] = slot
            return slot, sequence
        # Closed is read first: whatever was published before the close is seen after it.
        is_closed = self._words[WORD_CLOSED]
        self._fence()
        published = self._words[WORD_PUBLISHED]
        self._fence()
        if published == self._taken:
            if is_closed:
                raise ChannelClosedError(f"channel {self._geometry.channel_id}: the producer is gone, everything was taken")
            return None
        sequence = self._taken + 1
        slot = self._words[self._geometry.queue_word(sequence)]
        if slot >= self._geometry.num_slots or self._words[self._geometry.holds_word(slot)] != sequence:
            raise ChannelError(f"channel {self._geometry.channel_id}: message {sequence} is not in slot {slot}")
        self._taken = sequence
        self._held[sequence] = slot
        return slot, sequence

    def release(self, sequence: int) -> None:
        """Give up this consumer's count. Raises SlotStateError for a message that is not held."""
        slot = self._held.pop(sequence, None)
        if slot is None:
            raise SlotStateError(f"channel {self._geometry.channel_id}: consumer {self._index} holds no message {sequence}")
        # What was read from the slot stays ahead of the store that lets it be written again.
        self._fence()
        self._words[self._geometry.released_word(self._index, slot)] = sequence

    def _find_left_over(self) -> list[tuple[int, int]]:
        words, geometry = self._words, self._geometry
        left_over = []
        for slot in range(geometry.num_slots):
            sequence = words[geometry.holds_word(slot)]
            if 0 < sequence <= self._taken and words[geometry.released_word(self._index, slot)] != sequence:
                left_over.append((sequence, slot))
        return sorted(left_over)

    def _check_present(self) -> None:
        if self._words[self._geometry.gone_word(self._index)]:
            raise ChannelClosedError(f"channel {self._geometry.channel_id}: consumer {self._index} left or was dropped")


def close_producer(words: Words, fence: Fence) -> None:
    """No message follows. By the producer itself, or by the owner once the producer is dead."""
    fence()
    words[WORD_CLOSED] = 1


def drop_consumer(words: Words, geometry: Geometry, index: int, fence: Fence) -> None:
    """Give up every count of a consumer. By the consumer itself, or by the owner once it is dead.

    Raises ChannelError for an unknown consumer.
    """
    if not 0 <= index < geometry.num_consumers:
        raise ChannelError(f"channel {geometry.channel_id} has consumers 0..{geometry.num_consumers - 1}, not {index}")
    fence()
    words[geometry.gone_word(index)] = 1
