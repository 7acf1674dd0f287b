"""The channel in host memory: a memfd for the bytes, eventfds for the wake-ups; nothing has a name, nothing is left behind.

The owner (the server) creates a channel and hands its descriptors to both sides; everything else stands in the arena's
first words. Producer and consumer may die at any instruction: the owner then ends the producer's side, drops the consumer,
or hands the same descriptors to a successor, which goes on where the dead one stopped (``ring``).

Pages that were never written take no memory, so that wide slots for a rare large message are free.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from typing import Self

from ithaka.comm_ext.channel import progress, ring
from ithaka.comm_ext.channel.base import Policy
from ithaka.comm_ext.channel.fence import make_fence
from ithaka.comm_ext.channel.host_consumer import HostConsumer, open_consumer
from ithaka.comm_ext.channel.host_memory import SEALS, Arena, Descriptors, clear_event, close_all, wake, warn_unclosed
from ithaka.comm_ext.channel.host_producer import HostProducer, open_producer
from ithaka.comm_ext.channel.layout import WORD_BYTES, Geometry, newest_mask

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
