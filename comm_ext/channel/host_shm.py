"""The channel in host memory: a memfd for the bytes, eventfds for the wake-ups; nothing has a name, nothing is left behind.

The owner (the server) creates a channel and hands its descriptors to both sides; everything else stands in the arena's
first words. Producer and consumer may die at any instruction: the owner then ends the producer's side, drops the consumer,
or hands the same descriptors to a successor, which goes on where the dead one stopped (``ring``).

Pages that were never written take no memory, so that wide slots for a rare large message are free.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Sequence
from typing import Self

from ithaka.comm_ext.channel import progress, ring
from ithaka.comm_ext.channel.base import (
    ChannelClosedError,
    ChannelMessage,
    Delivery,
    LayoutError,
    Policy,
    Slot,
    SlotStateError,
)
from ithaka.comm_ext.channel.fence import make_fence
from ithaka.comm_ext.channel.held import HeldDeliveries
from ithaka.comm_ext.channel.host_memory import (
    SEALS,
    Arena,
    Descriptors,
    adopt,
    clear_event,
    close_all,
    let_go,
    wake,
    warn_unclosed,
)
from ithaka.comm_ext.channel.layout import (
    WORD_ANNOUNCED,
    WORD_BYTES,
    WORD_PUBLISHED,
    Geometry,
    decode_record,
    encode_record,
    newest_mask,
)

__all__ = ["HostChannel", "HostConsumer", "HostProducer", "clear_event", "open_consumer", "open_producer"]


class HostChannel:
    """The owner's grip: it makes the channel, hands it out, and speaks for the dead."""

    def __init__(self, geometry: Geometry, fds: Sequence[int]) -> None:
        """Takes over ``fds``; see ``create``."""
        self._descriptors = Descriptors(geometry, fds)
        self._arena = Arena(self._descriptors.memory, geometry, is_writer=False)
        self._fence = make_fence(is_full=geometry.newest_mask != 0)

    @classmethod
    def create(
        cls,
        channel_id: int,
        num_slots: int,
        slot_bytes: int,
        num_consumers: int,
        policies: Sequence[Policy] = (),
        *,
        on_device: bool = False,
    ) -> Self:
        """A new channel; ``policies`` one a consumer, or none for fifo everywhere. With ``on_device`` its slots lie in the
        memory of the producer's device, and ``cuda_ipc`` opens its sides; the owner needs no device.

        Raises ChannelError for numbers out of range and for unknown policies, OSError when the machine refuses.
        """
        mask = newest_mask(channel_id, num_consumers, policies)
        geometry = Geometry(channel_id, num_slots, slot_bytes, num_consumers, mask, int(on_device))
        fds: list[int] = []
        try:
            fds.append(os.memfd_create(f"ithaka-channel-{channel_id}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            os.ftruncate(fds[0], geometry.arena_bytes)
            # Nobody can shrink it under a reader, who would die of SIGBUS.
            fcntl.fcntl(fds[0], fcntl.F_ADD_SEALS, SEALS)
            os.pwrite(fds[0], b"".join(word.to_bytes(WORD_BYTES, "little") for word in geometry.fixed_words()), 0)
            for _ in range(1 + num_consumers):
                fds.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        except BaseException:
            close_all(fds)
            raise
        return cls(geometry, fds)

    @property
    def channel_id(self) -> int:
        return self._descriptors.geometry.channel_id

    def describe(self) -> tuple[int, ...]:
        """The descriptors that a side needs, in order: arena, the producer's eventfd, each consumer's. The owner keeps them."""
        return self._descriptors.all()

    def open_producer(self) -> HostProducer:
        """The producer's side in this process."""
        return open_producer([os.dup(fd) for fd in self.describe()])

    def open_consumer(self, index: int) -> HostConsumer:
        """A consumer's side in this process."""
        return open_consumer([os.dup(fd) for fd in self.describe()], index)

    def close_producer(self) -> None:
        """End the channel for a producer that is dead: what it published can be taken, then ChannelClosedError. Idempotent."""
        ready = self._descriptors.ready
        ring.close_producer(self._arena.words, self._fence)
        wake(ready)

    def drop_consumer(self, index: int) -> None:
        """Release all that a dead consumer held, now and later, and wake the producer. Idempotent.

        Never for a living one: the producer would write under its eyes. Raises ChannelError for an unknown index.
        """
        free = self._descriptors.free
        ring.drop_consumer(self._arena.words, self._descriptors.geometry, index, self._fence)
        wake((free,))

    def num_dropped(self, consumer: int) -> int:
        """As ``Producer.num_dropped``."""
        self._descriptors.all()
        ring.check_consumer(self._descriptors.geometry, consumer)
        return progress.num_dropped(self._arena.words, self._descriptors.geometry, consumer, self._fence)

    def close(self) -> None:
        """Let go of the descriptors; open sides go on. Idempotent."""
        self._arena.close()
        self._descriptors.close()

    def __del__(self) -> None:
        warn_unclosed(self._descriptors, "owner")


class HostProducer:
    """``base.Producer`` over host memory. Any thread may call; see ``open_producer``."""

    def __init__(self, descriptors: Descriptors) -> None:
        self._descriptors = descriptors
        self._geometry = descriptors.geometry
        self._arena = Arena(descriptors.memory, self._geometry, is_writer=True)
        self._fence = make_fence(is_full=self._geometry.newest_mask != 0)
        self._ring = ring.ProducerRing(self._arena.words, self._geometry, self._fence)
        self._claimed: dict[int, Slot] = {}
        self._lock = threading.RLock()
        self._is_closed = False

    @property
    def channel_id(self) -> int:
        return self._geometry.channel_id

    @property
    def slot_bytes(self) -> int:
        return self._geometry.slot_bytes

    def claim(self) -> Slot | None:
        """A free slot, or None when every slot is in use. Raises ChannelClosedError."""
        with self._lock:
            self._check_open()
            index = self._ring.claim()
            if index is None:
                return None
            slot = Slot(index, self._arena.slot(index))
            self._claimed[index] = slot
            return slot

    def publish(self, slot: Slot, message: ChannelMessage) -> int:
        """Hand the slot to every consumer; returns the sequence.

        Raises LayoutError (the slot stays claimed), SlotStateError, ChannelClosedError.
        """
        with self._lock:
            self.prepare(slot, message)
            return self.hand_over(slot)

    def prepare(self, slot: Slot, message: ChannelMessage) -> None:
        """The first half of ``publish``: all that can be refused for slot and message is refused here."""
        with self._lock:
            if self._is_closed:
                raise ChannelClosedError(
                    f"channel {self.channel_id}, slot {slot.index}: this producer is closed, {message.tensors} not sent"
                )
            if self._claimed.get(slot.index) is not slot:
                raise SlotStateError(
                    f"channel {self.channel_id}: slot {slot.index} is not claimed here, or was published; {message.tensors}"
                )
            self._arena.write_record(slot.index, encode_record(self._geometry, slot.index, message))

    def hand_over(self, slot: Slot, *, is_discarded: bool = False) -> int:
        """The second half, for a slot that was prepared; ``is_discarded``: it was cancelled. Raises ChannelClosedError."""
        with self._lock:
            self._check_open()
            sequence = self._ring.publish(slot.index, is_discarded=is_discarded)
            del self._claimed[slot.index]
            let_go(slot.data)
            wake(self._descriptors.ready)
            return sequence

    def announce(self) -> None:
        """Wake the consumers: a message is on its way. Raises ChannelClosedError."""
        with self._lock:
            self._check_open()
            self._arena.words[WORD_ANNOUNCED] += 1
            wake(self._descriptors.ready)

    @property
    def num_free(self) -> int:
        """Slots that claim would find now."""
        with self._lock:
            return 0 if self._is_closed else self._ring.num_free

    def discard(self, stream: int) -> None:
        """Cancel what was published of ``stream`` and not taken yet. Raises ChannelClosedError."""
        with self._lock:
            self._check_open()
            self._ring.discard(lambda slot: self._arena.read_stream(slot) == stream)

    def num_dropped(self, consumer: int) -> int:
        """See ``base.Producer``. Raises ChannelClosedError, ChannelError for an unknown consumer."""
        with self._lock:
            self._check_open()
            ring.check_consumer(self._geometry, consumer)
            return progress.num_dropped(self._arena.words, self._geometry, consumer, self._fence)

    def free_fd(self) -> int:
        """An eventfd, readable after a release; read it (``clear_event``) before trying again. Raises ChannelClosedError."""
        self._check_open()
        return self._descriptors.free

    def close(self) -> None:
        """Tell the consumers that no message follows; claimed slots are given back. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            ring.close_producer(self._arena.words, self._fence)
            wake(self._descriptors.ready)
            for slot in self._claimed.values():
                let_go(slot.data)
            self._claimed.clear()
            self._arena.close()
            self._descriptors.close()

    def abandon(self) -> None:
        """Let go of the channel as if this side had died: another producer may go on."""
        with self._lock:
            self._is_closed = True
            self._arena.close()
            self._descriptors.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ChannelClosedError(f"channel {self.channel_id}: this producer is closed")

    def __del__(self) -> None:
        warn_unclosed(self._descriptors, "producer")


class HostConsumer:
    """``base.Consumer`` over host memory. Any thread may call; see ``open_consumer``."""

    def __init__(self, descriptors: Descriptors, index: int) -> None:
        self._descriptors = descriptors
        self._geometry = descriptors.geometry
        self._index = index
        self._arena = Arena(descriptors.memory, self._geometry, is_writer=False)
        self._fence = make_fence(is_full=self._geometry.newest_mask != 0)
        free = descriptors.free
        self._ring = ring.ConsumerRing(self._arena.words, self._geometry, index, self._fence, lambda: wake((free,)))
        self._num_announced = self._arena.words[WORD_ANNOUNCED]
        self._held: HeldDeliveries[Delivery, memoryview] = HeldDeliveries(
            f"channel {self._geometry.channel_id}, consumer {index}"
        )
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def channel_id(self) -> int:
        return self._geometry.channel_id

    @property
    def num_slots(self) -> int:
        return self._geometry.num_slots

    @property
    def policy(self) -> Policy:
        return "newest" if self._geometry.is_newest(self._index) else "fifo"

    @property
    def num_dropped(self) -> int:
        """See ``base.Consumer``. Raises ChannelClosedError."""
        with self._lock:
            self._check_open()
            return progress.num_dropped(self._arena.words, self._geometry, self._index, self._fence)

    def take(self) -> Delivery | None:
        """The next message, or None when there is none yet. Raises ChannelClosedError when none can follow.

        A message whose record is damaged raises LayoutError and counts as released.
        """
        with self._lock:
            self._check_open()
            taken = self._ring.take()
            if taken is None:
                return None
            index, sequence = taken
            try:
                message = decode_record(self._geometry, index, self._arena.read_record(index))
            except LayoutError:
                self._ring.release(sequence)
                raise
            delivery = Delivery(index, sequence, message, self._arena.slot(index))
            self._held.add(delivery, delivery.data)
            return delivery

    def was_announced(self) -> bool:
        """Whether a message was announced since this was asked last, and is still to come. Raises ChannelClosedError."""
        with self._lock:
            self._check_open()
            words = self._arena.words
            before, self._num_announced = self._num_announced, words[WORD_ANNOUNCED]
            return before != self._num_announced > words[WORD_PUBLISHED]

    def await_news(self, within_us: int) -> bool:
        """Stay awake so long for a message or the end; whether there is one. Raises ChannelClosedError."""
        with self._lock:
            self._check_open()
            end_ns = time.monotonic_ns() + 1000 * within_us
            while not self._ring.has_news and time.monotonic_ns() < end_ns:
                pass
            return self._ring.has_news

    def release(self, delivery: Delivery) -> None:
        """Give up this consumer's count. Raises SlotStateError on a second release, ChannelClosedError."""
        with self._lock:
            self._check_open()
            let_go(self._held.remove(delivery))
            self._ring.release(delivery.sequence)

    def ready_fd(self) -> int:
        """An eventfd, readable after a publish or a close; read it (``clear_event``) before trying again.

        Raises ChannelClosedError.
        """
        self._check_open()
        return self._descriptors.ready[self._index]

    def close(self) -> None:
        """Release what is held, leave the channel for good. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            ring.drop_consumer(self._arena.words, self._geometry, self._index, self._fence)
            wake((self._descriptors.free,))
            for data in self._held.clear():
                let_go(data)
            self._arena.close()
            self._descriptors.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ChannelClosedError(f"channel {self.channel_id}: consumer {self._index} is closed")

    def __del__(self) -> None:
        warn_unclosed(self._descriptors, f"consumer {self._index}")


def open_producer(fds: Sequence[int], *, on_device: bool = False) -> HostProducer:
    """The producer's side over the descriptors of ``HostChannel.describe``, which it takes over, even when it fails.

    After a producer that died, its successor goes on with the next sequence. ``on_device``: the slots are empty here
    (``cuda_ipc``). Raises ChannelError when the descriptors are not those of one such channel.
    """
    descriptors = adopt(fds, on_device=on_device)
    try:
        return HostProducer(descriptors)
    except BaseException:
        descriptors.close()
        raise


def open_consumer(fds: Sequence[int], index: int, *, on_device: bool = False) -> HostConsumer:
    """Consumer ``index``'s side over the descriptors of ``HostChannel.describe``, which it takes over, even when it fails.

    After a consumer that died, its successor first takes again what was not released, in order. ``on_device``: the slots are
    empty here (``cuda_ipc``). Raises ChannelError when the descriptors are not those of one such channel or the index is
    unknown, ChannelClosedError when that consumer left or was dropped.
    """
    descriptors = adopt(fds, on_device=on_device)
    try:
        consumer = HostConsumer(descriptors, index)
    except BaseException:
        descriptors.close()
        raise
    # The dead one may have cleared its event, or released without waking the producer.
    wake((descriptors.free, descriptors.ready[index]))
    return consumer
