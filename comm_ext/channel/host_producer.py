"""The writing side of a channel in host memory; see ``host_shm``."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ithaka.comm_ext.channel import progress, ring
from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelMessage, Slot, SlotStateError
from ithaka.comm_ext.channel.fence import make_fence
from ithaka.comm_ext.channel.host_memory import Arena, Descriptors, adopt, let_go, wake, warn_unclosed
from ithaka.comm_ext.channel.layout import encode_record


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
            self._ring.announce()
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
