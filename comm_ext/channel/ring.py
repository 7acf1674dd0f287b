"""Slots, counts and the order of messages, over any memory of 8-byte words. Pure: no mapping, no descriptor, no clock.

Every word has one writer, and each step that others may see is one aligned 8-byte store, so that a side may die between any
two of them:

- *publish* writes the slot's sequence and the queue, which nobody reads yet, then ``published``.
- *release* stores the sequence into the consumer's own word of that slot. A slot's count is the number of fifo consumers whose
  word differs from the sequence that the slot holds, and of newest-wins consumers for whom it is the newest or that hold it.
- *announce* counts ``announced`` up, and nothing depends on it: whoever is awake for it finds the message sooner, or does not.
- *claim* writes nothing. A slot that a dead producer had claimed is as free as before; what a dead consumer had taken is still
  counted, until the owner drops the consumer or a successor opens the same index and takes it again.
- *take* of a newest-wins consumer writes ``taken``, then looks whether the message is still the newest; the producer stores
  ``published``, then looks at ``taken`` before it writes over what is no longer the newest. One of them sees the other.

``fence`` keeps stores (and loads) before it ahead of those after it, and with a newest-wins consumer also stores ahead of later
loads; see ``fence.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelError, SlotStateError
from ithaka.comm_ext.channel.layout import WORD_ANNOUNCED, WORD_CLOSED, WORD_PUBLISHED, Geometry
from ithaka.comm_ext.channel.progress import Fence, Progress, Words


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

    def announce(self) -> None:
        """Say that a message follows for a slot that was claimed; it need not come."""
        self._words[WORD_ANNOUNCED] += 1

    def publish(self, slot: int, *, is_discarded: bool = False) -> int:
        """Hand a claimed slot, whose bytes and record are written, to every consumer; returns its sequence.

        With ``is_discarded`` it takes its turn and is never given to anybody. Raises SlotStateError for a slot that is not
        claimed, ChannelClosedError.
        """
        if slot not in self._claimed:
            raise SlotStateError(f"channel {self._geometry.channel_id}: slot {slot} was not claimed")
        self._check_open()
        sequence = self._words[WORD_PUBLISHED] + 1
        self._words[self._geometry.holds_word(slot)] = sequence
        self._words[self._geometry.queue_word(sequence)] = slot
        if is_discarded:
            self._words[self._geometry.discarded_word(slot)] = sequence
        self._fence()
        self._words[WORD_PUBLISHED] = sequence
        self._claimed.discard(slot)
        return sequence

    def discard(self, is_cancelled: Callable[[int], bool]) -> None:
        """Cancel the published messages of the slots for which ``is_cancelled`` says so; one that was taken stays taken."""
        for slot in range(self._geometry.num_slots):
            holds = self._words[self._geometry.holds_word(slot)]
            if holds and slot not in self._claimed and is_cancelled(slot):
                self._words[self._geometry.discarded_word(slot)] = holds

    @property
    def num_free(self) -> int:
        """Slots that ``claim`` would find now."""
        self._free = self._find_free()
        return len(self._free)

    def _find_free(self) -> list[int]:
        """Highest first, so that the lowest is claimed first and pages that were never used stay untouched."""
        words, geometry = self._words, self._geometry
        published = words[WORD_PUBLISHED]
        # What is the newest was said before it is asked who holds the others.
        self._fence()
        present = [index for index in range(geometry.num_consumers) if not words[geometry.gone_word(index)]]
        free = []
        for slot in range(geometry.num_slots - 1, -1, -1):
            if slot in self._claimed:
                continue
            holds = words[geometry.holds_word(slot)]
            if holds == 0 or not any(self._is_counted(index, slot, holds, published) for index in present):
                free.append(slot)
        # What the consumers read in these slots, they read before they released.
        self._fence()
        return free

    def _is_counted(self, consumer: int, slot: int, holds: int, published: int) -> bool:
        words, geometry = self._words, self._geometry
        if words[geometry.released_word(consumer, slot)] == holds:
            return False
        if not geometry.is_newest(consumer) or holds == published:
            return True
        return words[geometry.taken_word(consumer, slot)] == holds

    def _check_open(self) -> None:
        geometry = self._geometry
        if self._words[WORD_CLOSED]:
            raise ChannelClosedError(f"channel {geometry.channel_id}: the producer's side is closed")
        if all(self._words[geometry.gone_word(index)] for index in range(geometry.num_consumers)):
            raise ChannelClosedError(f"channel {geometry.channel_id}: every consumer is gone")


class ConsumerRing:
    """One consumer's side. A successor at the same index first finds what its predecessor did not release, in order; a
    newest-wins one only if nothing newer was published."""

    def __init__(
        self, words: Words, geometry: Geometry, index: int, fence: Fence, on_freed: Callable[[], None] = lambda: None
    ) -> None:
        """``on_freed`` is called after each slot that this consumer gave up.

        Raises ChannelError for an unknown consumer, ChannelClosedError for one that left or was dropped.
        """
        check_consumer(geometry, index)
        self._words = words
        self._geometry = geometry
        self._index = index
        self._fence = fence
        self._on_freed = on_freed
        self._held: dict[int, int] = {}
        self._check_present()
        self._num_announced = words[WORD_ANNOUNCED]
        self._progress = Progress(words, geometry, index, fence)
        fence()
        self._left_over = deque(self._find_left_over())

    def take(self) -> tuple[int, int] | None:
        """Slot and sequence of the next message, or None.

        Raises ChannelClosedError when none can follow or this consumer was dropped, ChannelError when the memory holds
        what no producer writes.
        """
        self._check_present()
        while self._left_over:
            sequence, slot = self._left_over.popleft()
            if self._is_to_be_given(slot, sequence):
                self._held[sequence] = slot
                return slot, sequence
            self._give_up(slot, sequence)
        while (following := self._next_sequence()) is not None:
            sequence, slot = following, self._words[self._geometry.queue_word(following)]
            if slot >= self._geometry.num_slots:
                raise ChannelError(f"channel {self._geometry.channel_id}: message {sequence} is in no slot, but in {slot}")
            if self._geometry.is_newest(self._index) and not self._hold_newest(slot, sequence):
                continue
            if self._words[self._geometry.holds_word(slot)] != sequence:
                raise ChannelError(f"channel {self._geometry.channel_id}: message {sequence} is not in slot {slot}")
            is_discarded = self._words[self._geometry.discarded_word(slot)] == sequence
            self._progress.advance(sequence, is_delivered=not is_discarded)
            if not is_discarded:
                self._held[sequence] = slot
                return slot, sequence
            self._give_up(slot, sequence)
        return None

    def was_announced(self) -> bool:
        """Whether a message was announced since this was asked last, and is still to come."""
        before, self._num_announced = self._num_announced, self._words[WORD_ANNOUNCED]
        return before != self._num_announced > self._words[WORD_PUBLISHED]

    @property
    def has_news(self) -> bool:
        """Whether something was published or closed that ``take`` has not seen."""
        return self._words[WORD_PUBLISHED] != self._progress.passed or self._words[WORD_CLOSED] != 0

    def release(self, sequence: int) -> None:
        """Give up this consumer's count. Raises SlotStateError for a message that is not held."""
        slot = self._held.pop(sequence, None)
        if slot is None:
            raise SlotStateError(f"channel {self._geometry.channel_id}: consumer {self._index} holds no message {sequence}")
        self._give_up(slot, sequence)

    def _next_sequence(self) -> int | None:
        # Closed is read first: whatever was published before the close is seen after it.
        is_closed = self._words[WORD_CLOSED]
        self._fence()
        published = self._words[WORD_PUBLISHED]
        self._fence()
        if published == self._progress.passed:
            if is_closed:
                raise ChannelClosedError(f"channel {self._geometry.channel_id}: the producer is gone, everything was taken")
            return None
        return published if self._geometry.is_newest(self._index) else self._progress.passed + 1

    def _hold_newest(self, slot: int, sequence: int) -> bool:
        """Say that the newest message is held; False when it was no longer the newest: the producer may not have seen it."""
        taken_word = self._geometry.taken_word(self._index, slot)
        self._words[taken_word] = sequence
        self._fence()
        if self._words[WORD_PUBLISHED] == sequence:
            return True
        self._words[taken_word] = 0
        self._on_freed()
        return False

    def _give_up(self, slot: int, sequence: int) -> None:
        # What was read from the slot stays ahead of the store that lets it be written again.
        self._fence()
        self._words[self._geometry.released_word(self._index, slot)] = sequence
        self._on_freed()

    def _find_left_over(self) -> list[tuple[int, int]]:
        words, geometry, passed = self._words, self._geometry, self._progress.passed
        left_over = []
        for slot in range(geometry.num_slots):
            taken_word = geometry.taken_word(self._index, slot)
            if words[taken_word] > passed:
                # The predecessor died before it knew whether it held that one.
                words[taken_word] = 0
            sequence = words[geometry.holds_word(slot)]
            is_taken = not geometry.is_newest(self._index) or words[taken_word] == sequence
            if 0 < sequence <= passed and is_taken and words[geometry.released_word(self._index, slot)] != sequence:
                left_over.append((sequence, slot))
        return sorted(left_over)

    def _is_to_be_given(self, slot: int, sequence: int) -> bool:
        if self._words[self._geometry.discarded_word(slot)] == sequence:
            return False
        return not self._geometry.is_newest(self._index) or self._words[WORD_PUBLISHED] == sequence

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
    check_consumer(geometry, index)
    fence()
    if not words[geometry.gone_word(index)]:
        words[geometry.gone_word(index)] = words[WORD_PUBLISHED] + 1


def check_consumer(geometry: Geometry, index: int) -> None:
    """Raises ChannelError for an unknown consumer."""
    if not 0 <= index < geometry.num_consumers:
        raise ChannelError(f"channel {geometry.channel_id} has consumers 0..{geometry.num_consumers - 1}, not {index}")
