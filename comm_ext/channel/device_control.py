"""Who has the producer's device memory mapped: what producer and consumers say to each other beside the messages.

The producer frees its arena only when nothing in it can be read any more and nobody has it mapped. It says that it is gone,
then looks who has it mapped; a consumer says that it maps it, then looks whether it is gone. One of them sees the other.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Sequence

from ithaka.comm_ext.channel import ring
from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelError
from ithaka.comm_ext.channel.device_card import DeviceCard
from ithaka.comm_ext.channel.fence import make_fence
from ithaka.comm_ext.channel.host_memory import Arena, adopt, clear_event, wake
from ithaka.comm_ext.channel.layout import WORD_CARD

_NO_CARD, _CARD_VALID, _CARD_GONE = range(3)


class DeviceControl:
    """One side's view of it, on descriptors of its own, which outlive the side as long as memory is in use."""

    def __init__(self, fds: Sequence[int]) -> None:
        """Takes over ``fds``. Raises ChannelError, with all of them closed."""
        self._descriptors = adopt(fds, on_device=True)
        self.geometry = self._descriptors.geometry
        self._arena = Arena(self._descriptors.memory, self.geometry, is_writer=False)
        self._fence = make_fence(is_full=True)

    def hand_out(self, card: DeviceCard) -> None:
        """The producer's memory can be mapped. Raises ChannelError when there was a producer before."""
        if self._arena.words[WORD_CARD] != _NO_CARD:
            raise ChannelError(
                f"channel {self.geometry.channel_id} had a producer, whose device memory went with it: make a new channel"
            )
        self._arena.write_card(card.encode())
        self._fence()
        self._arena.words[WORD_CARD] = _CARD_VALID

    def begin_mapping(self, consumer: int) -> DeviceCard:
        """Say that a consumer maps the memory. Raises ChannelClosedError when it is gone or was never there."""
        self._arena.words[self.geometry.mapped_word(consumer)] = os.getpid()
        self._fence()
        if self._arena.words[WORD_CARD] != _CARD_VALID:
            self.end_mapping(consumer)
            raise ChannelClosedError(f"channel {self.geometry.channel_id}: the producer's device memory is gone")
        return DeviceCard.decode(self._arena.read_card())

    def end_mapping(self, consumer: int) -> None:
        """It is unmapped."""
        self._arena.words[self.geometry.mapped_word(consumer)] = 0
        wake((self._descriptors.free,))

    def wake_consumer(self, consumer: int) -> None:
        """Let it look again."""
        wake((self._descriptors.ready[consumer],))

    def take_back(self) -> bool:
        """False while a message may still be read or the memory is mapped; once True nobody can map it."""
        words, geometry = self._arena.words, self.geometry
        if ring.ProducerRing(words, geometry, self._fence).num_free < geometry.num_slots:
            return False
        words[WORD_CARD] = _CARD_GONE
        self._fence()
        if any(is_alive(pid) for pid in self._mappers()):
            words[WORD_CARD] = _CARD_VALID
            return False
        return True

    def wait_for_change(self) -> None:
        """Until a count or a mapping may have been given up, or a process that maps the memory has ended."""
        poll = select.poll()
        poll.register(self._descriptors.free, select.POLLIN)
        with contextlib.ExitStack() as stack:
            for pid in {pid for pid in self._mappers() if pid != os.getpid()}:
                try:
                    fd = os.pidfd_open(pid)
                except ProcessLookupError:
                    continue
                stack.callback(os.close, fd)
                poll.register(fd, select.POLLIN)
            poll.poll()
        clear_event(self._descriptors.free)

    def close(self) -> None:
        """Let go of the descriptors. Idempotent."""
        self._arena.close()
        self._descriptors.close()

    def _mappers(self) -> list[int]:
        words, geometry = self._arena.words, self.geometry
        return [pid for index in range(geometry.num_consumers) if (pid := words[geometry.mapped_word(index)])]


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        return not select.select([fd], [], [], 0)[0]
    finally:
        os.close(fd)
