"""The channel of encoded packets, as the sessions' threads write it."""

from __future__ import annotations

import select
import threading
from collections.abc import Sequence

from ithaka.comm_ext.channel.base import ChannelMessage, TensorLayout
from ithaka.comm_ext.channel.host_shm import clear_event, open_producer
from ithaka.workers import wire
from ithaka.workers.contract import PacketHeader
from ithaka.workers.encoding.errors import PacketTooLargeError


class PacketChannel:
    """Full policy: wait. The server takes packets whatever its clients do, so a wait is short."""

    def __init__(self, fds: Sequence[int]) -> None:
        """Takes over ``fds``. Raises ChannelError."""
        self._producer = open_producer(fds)
        self._lock = threading.Lock()
        self._freed = select.poll()
        self._freed.register(self._producer.free_fd(), select.POLLIN)

    @property
    def channel_id(self) -> int:
        return self._producer.channel_id

    def publish(self, header: PacketHeader, data: memoryview) -> None:
        """Copy one access unit into a slot and publish it. Any thread.

        Raises PacketTooLargeError, ChannelClosedError.
        """
        if data.nbytes > self._producer.slot_bytes:
            raise PacketTooLargeError(f"frame {header.seq} has {data.nbytes} bytes, a packet slot {self._producer.slot_bytes}")
        message = ChannelMessage(wire.encode(header), (TensorLayout((data.nbytes,), "uint8"),))
        with self._lock:
            while (slot := self._producer.claim()) is None:
                self._freed.poll()
                clear_event(self._producer.free_fd())
            slot.data[: data.nbytes] = data
            self._producer.publish(slot, message)

    def close(self) -> None:
        """No packet follows."""
        self._producer.close()
