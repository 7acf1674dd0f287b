"""Descriptors and mappings of a channel in host memory: what every side of ``host_shm`` stands on."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import warnings
from collections.abc import Iterable, Sequence

from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelError
from ithaka.comm_ext.channel.layout import RECORD_BYTES, WORD_BYTES, WORD_PUBLISHED, Geometry, record_stream

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def clear_event(fd: int) -> None:
    """Read an eventfd that is, or is no longer, readable."""
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(fd)


class Descriptors:
    """The channel's descriptors, owned: arena, the producer's eventfd, each consumer's."""

    def __init__(self, geometry: Geometry, fds: Sequence[int]) -> None:
        self.geometry = geometry
        self._fds = tuple(fds)

    @property
    def memory(self) -> int:
        return self.all()[0]

    @property
    def free(self) -> int:
        return self.all()[1]

    @property
    def ready(self) -> tuple[int, ...]:
        return self.all()[2:]

    def all(self) -> tuple[int, ...]:
        if not self._fds:
            raise ChannelClosedError(f"channel {self.geometry.channel_id} is closed")
        return self._fds

    @property
    def is_closed(self) -> bool:
        return not self._fds

    def close(self) -> None:
        fds, self._fds = self._fds, ()
        close_all(fds)


class Arena:
    """The mapped memory. Slots are mapped read-only for a reader, so that a stray write can't reach another process; slots
    on a device are empty here."""

    def __init__(self, memory_fd: int, geometry: Geometry, *, is_writer: bool) -> None:
        self._geometry = geometry
        protection = mmap.PROT_READ | mmap.PROT_WRITE if is_writer else mmap.PROT_READ
        self._control = memoryview(mmap.mmap(memory_fd, geometry.control_bytes))
        self._slots = memoryview(b"")
        if not geometry.on_device:
            slots = mmap.mmap(memory_fd, geometry.slots_bytes, prot=protection, offset=geometry.control_bytes)
            self._slots = memoryview(slots)
        self.words = self._control[: geometry.num_words * WORD_BYTES].cast("Q")

    def slot(self, index: int) -> memoryview:
        start = self._geometry.slot_offset_bytes(index)
        return self._slots[start : start + self._geometry.slot_bytes]

    def read_record(self, index: int) -> bytes:
        start = self._geometry.record_offset_bytes(index)
        return bytes(self._control[start : start + RECORD_BYTES])

    def read_card(self) -> bytes:
        """What the producer wrote about its device memory."""
        return self.read_record(self._geometry.num_slots)

    def write_card(self, card: bytes) -> None:
        self.write_record(self._geometry.num_slots, card)

    def read_stream(self, index: int) -> int:
        """The stream of the message that the slot was last written for."""
        start = self._geometry.record_offset_bytes(index)
        return record_stream(self._control[start : start + RECORD_BYTES])

    def write_record(self, index: int, record: bytes) -> None:
        start = self._geometry.record_offset_bytes(index)
        self._control[start : start + len(record)] = record

    def close(self) -> None:
        # The mappings go with their last view: an encoder may still be reading a slot.
        for view in (self.words, self._control, self._slots):
            view.release()


def adopt(fds: Sequence[int], *, on_device: bool) -> Descriptors:
    """Take over what ``HostChannel.describe`` gave.

    Raises ChannelError, with all of them closed, when that is no channel, or one whose slots lie elsewhere.
    """
    try:
        if not fds:
            raise ChannelError("a channel needs its descriptors, none given")
        head = os.pread(fds[0], WORD_PUBLISHED * WORD_BYTES, 0)
        words = [int.from_bytes(head[at : at + WORD_BYTES], "little") for at in range(0, len(head), WORD_BYTES)]
        geometry = Geometry.from_words(words)
        if geometry.on_device != on_device:
            memory = "a device: open it with cuda_ipc" if geometry.on_device else "the host: open it with host_shm"
            raise ChannelError(f"the slots of channel {geometry.channel_id} lie in memory of {memory}")
        if len(fds) != 2 + geometry.num_consumers:
            raise ChannelError(f"channel {geometry.channel_id} has {2 + geometry.num_consumers} descriptors, {len(fds)} given")
        if os.fstat(fds[0]).st_size != geometry.arena_bytes or fcntl.fcntl(fds[0], fcntl.F_GET_SEALS) != SEALS:
            raise ChannelError(f"channel {geometry.channel_id}: the arena is not as its owner made it")
    except OSError as error:
        close_all(fds)
        raise ChannelError(f"these descriptors are no tensor channel: {error}") from error
    except BaseException:
        close_all(fds)
        raise
    return Descriptors(geometry, fds)


def wake(fds: Iterable[int]) -> None:
    """Make eventfds readable."""
    for fd in fds:
        # Full only after 2**64 - 2 wake-ups that nobody read; it is readable then as well.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(fd, 1)


def let_go(view: memoryview) -> None:
    """Release a view that was handed out."""
    # A view that something was built on (a numpy array, a frame) goes with it.
    with contextlib.suppress(BufferError):
        view.release()


def warn_unclosed(descriptors: Descriptors, side: str) -> None:
    """For a side that is collected: a ResourceWarning unless it was closed. Nobody else is told, as if it had died."""
    if not descriptors.is_closed:
        descriptors.close()
        warnings.warn(f"channel {descriptors.geometry.channel_id}: {side} was never closed", ResourceWarning, stacklevel=3)


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors, whatever they are."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
