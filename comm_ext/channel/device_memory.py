"""Device memory that lives as long as something stands on it: one's own, and a producer's as mapped here."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence

from ithaka.comm_ext.channel import host_shm
from ithaka.comm_ext.channel.base import ChannelError, Delivery
from ithaka.comm_ext.channel.device import DeviceBytes, DeviceError, DeviceRuntime
from ithaka.comm_ext.channel.device_control import DeviceControl
from ithaka.comm_ext.channel.host_memory import close_all, wake


class OwnMemory:
    """Slots in this process's device memory. Freed when it and everything on it are gone."""

    def __init__(self, runtime: DeviceRuntime, device: int, slot_stride_bytes: int, num_slots: int) -> None:
        """Raises DeviceError."""
        self._runtime, self.device = runtime, device
        self._slot_stride_bytes = slot_stride_bytes
        self.address = 0
        self.address = runtime.allocate(device, slot_stride_bytes * num_slots)

    def slot(self, index: int, num_bytes: int, place: str) -> DeviceBytes:
        return DeviceBytes(place, self.device, self.address + index * self._slot_stride_bytes, num_bytes, self)

    def __del__(self) -> None:
        if self.address:
            # At the end of the process the driver may be gone, and the memory with it.
            with contextlib.suppress(DeviceError):
                self._runtime.free(self.device, self.address)


class OwnSlots:
    """A consumer's own slots on its device, and the stream that fills them."""

    def __init__(self, runtime: DeviceRuntime, device: int, slot_stride_bytes: int, num_slots: int) -> None:
        """Raises DeviceError."""
        self._runtime, self._device = runtime, device
        self.stream = runtime.open_stream(device)
        try:
            self._memory: OwnMemory | None = OwnMemory(runtime, device, slot_stride_bytes, num_slots)
        except DeviceError:
            runtime.close_stream(device, self.stream)
            raise
        self.free = list(range(num_slots))

    def slot(self, index: int, num_bytes: int, place: str) -> DeviceBytes:
        assert self._memory is not None, "closed"
        return self._memory.slot(index, num_bytes, place)

    def close(self) -> None:
        """What stands on the memory keeps it."""
        self._memory = None
        # A device that failed closes nothing any more.
        with contextlib.suppress(DeviceError):
            self._runtime.close_stream(self._device, self.stream)


class PeerMemory:
    """A producer's arena as ``device`` reaches it. Unmapped, and the producer told, when it and everything on it are gone."""

    def __init__(self, runtime: DeviceRuntime, device: int, control: DeviceControl, consumer: int) -> None:
        """Takes over ``control``. Raises DeviceError, ChannelClosedError."""
        self._runtime, self.device = runtime, device
        self._control, self._consumer = control, consumer
        self._is_mapped = self._is_marked = False
        card = control.begin_mapping(consumer)
        self._is_marked = True
        self.is_local = card.identity == runtime.identity(device)
        self.address = card.address
        if card.pid == os.getpid():
            if not self.is_local:
                runtime.reach(device, runtime.find(card.identity))
        else:
            self.address = runtime.map_handle(device, card.handle)
            self._is_mapped = True

    def slot(self, index: int, num_bytes: int, place: str) -> DeviceBytes:
        address = self.address + self._control.geometry.slot_offset_bytes(index)
        return DeviceBytes(place, self.device, address, num_bytes, self)

    def __del__(self) -> None:
        if self._is_mapped:
            with contextlib.suppress(DeviceError):
                self._runtime.unmap(self.device, self.address)
        if self._is_marked:
            self._control.end_mapping(self._consumer)
        self._control.close()


class Source:
    """One channel as a consumer on a device reads it: its messages, and its memory, mapped with the first of them."""

    def __init__(self, runtime: DeviceRuntime, device: int, fds: Sequence[int], index: int) -> None:
        """Takes over ``fds``, even when it fails. Raises ChannelError as ``host_shm.open_consumer``."""
        self._runtime, self._device, self._index = runtime, device, index
        control_fds: list[int] = []
        try:
            runtime.identity(device)
            control_fds += [os.dup(fd) for fd in fds]
        except BaseException:
            close_all(fds)
            raise
        try:
            self.messages = host_shm.open_consumer(fds, index, on_device=True)
        except BaseException:
            close_all(control_fds)
            raise
        self._control: DeviceControl | None = DeviceControl(control_fds)
        self.geometry = self._control.geometry
        self.place = f"channel {self.geometry.channel_id}, consumer {index}"
        self._memory: PeerMemory | None = None
        self._is_closed = False

    @property
    def memory(self) -> PeerMemory:
        """Raises DeviceError, ChannelClosedError."""
        if self._memory is None:
            control = self._control
            if control is None:
                raise ChannelError(f"{self.place}: the producer's device memory can't be mapped")
            self._control = None
            try:
                self._memory = PeerMemory(self._runtime, self._device, control, self._index)
            except DeviceError as error:
                raise DeviceError(f"{self.place}: device {self._device} can't reach the producer's memory: {error}") from error
        return self._memory

    def take(self) -> Delivery | None:
        """The next message; its memory is mapped. Raises ChannelError; what can't be mapped is released."""
        delivery = self.messages.take()
        if delivery is not None:
            try:
                self.memory  # noqa: B018
            except ChannelError:
                self.messages.release(delivery)
                raise
        return delivery

    def bytes_of(self, delivery: Delivery) -> DeviceBytes:
        place = f"channel {self.geometry.channel_id}, slot {delivery.index}"
        return self.memory.slot(delivery.index, self.geometry.slot_bytes, place)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def wake(self) -> None:
        """Let the consumer look again."""
        wake((self.messages.ready_fd(),))

    def close(self) -> None:
        """Leave; what stands on the memory keeps it mapped."""
        self._is_closed = True
        self.messages.close()
        self._memory = None
        if self._control is not None:
            self._control.close()
            self._control = None


class Keeper:
    """The producer's arena after the producer: kept until nothing of it can be read."""

    def __init__(self, memory: OwnMemory, control: DeviceControl) -> None:
        self._memory: OwnMemory | None = memory
        self._control = control

    def let_go(self) -> None:
        """Free the memory, now or when the last consumer is done with it. Waits for nobody."""
        if not self._try():
            # At the end of the process no thread can start; the memory goes with the process.
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._wait, name="channel-arena", daemon=True).start()

    def _wait(self) -> None:
        while not self._try():
            self._control.wait_for_change()

    def _try(self) -> bool:
        if not self._control.take_back():
            return False
        self._memory = None
        self._control.close()
        return True
