"""A channel of I420 frames as encode reads it: what is taken, what is done, and when all of it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ithaka.comm_ext.channel.base import ChannelClosedError, Delivery
from ithaka.comm_ext.channel.host_shm import clear_event, open_consumer
from ithaka.workers import wire
from ithaka.workers.contract import FrameHeader
from ithaka.workers.encoding.errors import FrameLayoutError

CONSUMER_INDEX = 0
"""Encode's place among the channel's consumers."""


@dataclass(frozen=True, slots=True)
class FrameTask:
    """A taken frame. Whoever holds it calls ``finish`` once; only then is its slot free again."""

    channel: FrameChannel
    delivery: Delivery
    header: FrameHeader

    def i420(self, width: int, height: int) -> memoryview:
        """The frame's bytes, in the slot. Raises FrameLayoutError unless it is one I420 frame of this size."""
        tensors = self.delivery.message.tensors
        if len(tensors) != 1 or tensors[0].dtype != "uint8" or tensors[0].shape != (height * 3 // 2, width):
            raise FrameLayoutError(f"frame {self.header.seq}: {tensors}, not one uint8 ({height * 3 // 2}, {width})")
        start = tensors[0].offset_bytes
        return self.delivery.data[start : start + height * 3 // 2 * width]

    def finish(self, *, is_published: bool) -> None:
        """Release the slot; ``is_published`` when the frame's packet is in the packet channel."""
        self.channel.finish(self, is_published=is_published)


class FrameChannel:
    """Takes on the main thread; tasks finish on the sessions' threads."""

    def __init__(self, fds: Sequence[int], on_drained: Callable[[], None]) -> None:
        """Takes over ``fds``. ``on_drained`` is called from any thread when ``is_drained`` has turned true.

        Raises ChannelError.
        """
        self._consumer = open_consumer(fds, CONSUMER_INDEX)
        self._on_drained = on_drained
        self._lock = threading.Lock()
        self._outstanding = 0
        self._is_detached = False
        self._is_exhausted = False
        self._last_seqs: dict[str, int] = {}

    @property
    def channel_id(self) -> int:
        return self._consumer.channel_id

    def ready_fd(self) -> int:
        return self._consumer.ready_fd()

    def clear_ready(self) -> None:
        clear_event(self._consumer.ready_fd())

    @property
    def is_exhausted(self) -> bool:
        """No frame follows."""
        return self._is_exhausted

    @property
    def is_drained(self) -> bool:
        """Detached, and every frame is finished."""
        with self._lock:
            return self._is_detached and self._is_exhausted and not self._outstanding

    @property
    def last_seqs(self) -> dict[str, int]:
        """By session, the last seq whose packet was published."""
        with self._lock:
            return dict(self._last_seqs)

    def take(self) -> FrameTask | None:
        """The next frame, or None. Raises LayoutError, WireError for a message that is none; it is released."""
        try:
            delivery = self._consumer.take()
        except ChannelClosedError:
            delivery = None
            self._set_exhausted()
        if delivery is None:
            if self._is_detached:
                self._set_exhausted()
            return None
        try:
            header = wire.decode_as(FrameHeader, delivery.message.header)
        except wire.WireError:
            self._consumer.release(delivery)
            raise
        with self._lock:
            self._outstanding += 1
        return FrameTask(self, delivery, header)

    def detach(self) -> None:
        """The producer is gone or closed: what ``take`` finds from now on is the rest."""
        with self._lock:
            self._is_detached = True
        self._tell_if_drained()

    def finish(self, task: FrameTask, *, is_published: bool) -> None:
        """See FrameTask."""
        self._consumer.release(task.delivery)
        with self._lock:
            if is_published:
                self._last_seqs[task.header.session_id] = task.header.seq
            self._outstanding -= 1
        self._tell_if_drained()

    def close(self) -> None:
        """Leave the channel."""
        self._consumer.close()

    def _set_exhausted(self) -> None:
        with self._lock:
            self._is_exhausted = True
        self._tell_if_drained()

    def _tell_if_drained(self) -> None:
        if self.is_drained:
            self._on_drained()
