"""One reading side of a channel in host memory; see ``host_shm``."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from ithaka.comm_ext.channel import progress, ring
from ithaka.comm_ext.channel.base import ChannelClosedError, Delivery, LayoutError, Policy
from ithaka.comm_ext.channel.fence import make_fence
from ithaka.comm_ext.channel.held import HeldDeliveries
from ithaka.comm_ext.channel.host_memory import Arena, Descriptors, adopt, let_go, wake, warn_unclosed
from ithaka.comm_ext.channel.layout import decode_record


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
            return self._ring.was_announced()

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
