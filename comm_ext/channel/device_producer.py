"""The writing side of a channel in device memory; see ``cuda_ipc``."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Sequence

from ithaka.comm_ext.channel import host_shm
from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelError, ChannelMessage, Slot, SlotStateError
from ithaka.comm_ext.channel.completion import Completions
from ithaka.comm_ext.channel.device import DeviceError, DeviceRuntime, DeviceSlot
from ithaka.comm_ext.channel.device_card import DeviceCard
from ithaka.comm_ext.channel.device_control import DeviceControl
from ithaka.comm_ext.channel.device_memory import Keeper, OwnMemory
from ithaka.comm_ext.channel.host_memory import close_all


class DeviceProducer:
    """``base.Producer`` on a device. Any thread may call; see ``open_producer``."""

    def __init__(
        self, messages: host_shm.HostProducer, memory: OwnMemory, control: DeviceControl, runtime: DeviceRuntime
    ) -> None:
        """Owns all of them but ``runtime``; see ``open_device_producer``."""
        self._messages = messages
        self.device = memory.device
        self._geometry = control.geometry
        self._memory: OwnMemory | None = memory
        self._keeper = Keeper(memory, control)
        self._claimed: dict[int, tuple[DeviceSlot, Slot]] = {}
        self._num_submitted = 0
        self._pending: dict[int, int] = {}
        self._cancelled: set[int] = set()
        self._completions = Completions(runtime, memory.device, "channel-publish", self._fail)
        self._fault: ChannelError | None = None
        self._lock = threading.RLock()
        self._is_closed = False

    @property
    def channel_id(self) -> int:
        return self._geometry.channel_id

    @property
    def slot_bytes(self) -> int:
        return self._geometry.slot_bytes

    def claim(self) -> DeviceSlot | None:
        """A free slot, or None when every slot is in use. Raises ChannelClosedError, DeviceError after the device failed."""
        with self._lock:
            self._check_open()
            claimed = self._messages.claim()
            if claimed is None or self._memory is None:
                return None
            place = f"channel {self.channel_id}, slot {claimed.index}"
            slot = DeviceSlot(claimed.index, self._memory.slot(claimed.index, self.slot_bytes, place))
            self._claimed[slot.index] = slot, claimed
            # Waking a consumer takes longer than writing a slot often does.
            self._messages.announce()
            return slot

    def publish(self, slot: DeviceSlot, message: ChannelMessage, stream: int = 0) -> int:
        """Hand the slot to every consumer once all that ``stream`` has queued is done, in the order of the calls.

        Returns the sequence. ``stream`` is the handle of the stream that writes the slot, 0 the legacy default stream. Raises
        LayoutError (the slot stays claimed), SlotStateError, ChannelClosedError, DeviceError for a stream of another device and
        after the device failed.
        """
        with self._lock:
            self._check_open(slot, message)
            found = self._claimed.get(slot.index)
            if found is None or found[0] is not slot:
                raise SlotStateError(
                    f"channel {self.channel_id}: slot {slot.index} is not claimed here, or was published; {message.tensors}"
                )
            claimed = found[1]
            self._messages.prepare(claimed, message)
            number = self._num_submitted + 1
            self._pending[number] = message.stream
            try:
                self._completions.follow(stream, functools.partial(self._hand_over, claimed, number))
            except DeviceError as error:
                self._pending.pop(number, None)
                raise DeviceError(f"channel {self.channel_id}, slot {slot.index}: {message.tensors}: {error}") from error
            del self._claimed[slot.index]
            self._num_submitted = number
            return number

    @property
    def num_free(self) -> int:
        """Slots that claim would find now."""
        return self._messages.num_free

    @property
    def num_waiting(self) -> int:
        """Messages that were handed over and whose data is not complete yet."""
        return self._completions.num_waiting

    def discard(self, stream: int) -> None:
        """Cancel what was published of the session ``stream``, whether or not its data is complete, and not taken yet.

        Raises ChannelClosedError.
        """
        with self._lock:
            self._check_open()
            self._cancelled.update(number for number, of_stream in self._pending.items() if of_stream == stream)
            self._messages.discard(stream)

    def num_dropped(self, consumer: int) -> int:
        """See ``base.Producer``. Raises ChannelClosedError, ChannelError for an unknown consumer."""
        return self._messages.num_dropped(consumer)

    def free_fd(self) -> int:
        """An eventfd, readable after a release; read it (``clear_event``) before trying again. Raises ChannelClosedError."""
        return self._messages.free_fd()

    def close(self) -> None:
        """Tell the consumers that no message follows, after those that wait for their data. Waits for nobody. Idempotent.

        The arena is freed when no consumer can read or has mapped any of it.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._claimed.clear()
            self._completions.follow_all(self._leave)
            self._completions.close()

    def _hand_over(self, claimed: Slot, number: int) -> None:
        with self._lock:
            self._pending.pop(number)
            is_cancelled = number in self._cancelled
            self._cancelled.discard(number)
            self._messages.hand_over(claimed, is_discarded=is_cancelled)

    def _leave(self) -> None:
        self._messages.close()
        self._memory = None
        self._keeper.let_go()

    def __del__(self) -> None:
        # The messages warn of a forgotten close; consumers may still read.
        if not self._is_closed:
            self._memory = None
            self._keeper.let_go()

    def _fail(self, error: ChannelError) -> None:
        with self._lock:
            # That every consumer left is no fault: the next claim says so by itself.
            if self._fault is None and not isinstance(error, ChannelClosedError):
                self._fault = error
                self._messages.close()

    def _check_open(self, slot: DeviceSlot | None = None, message: ChannelMessage | None = None) -> None:
        if not self._is_closed and self._fault is None:
            return
        place = f", slot {slot.index}: {message.tensors} can't be published" if slot and message else ""
        if self._is_closed:
            raise ChannelClosedError(f"channel {self.channel_id}{place}: this producer is closed")
        raise DeviceError(f"channel {self.channel_id}{place}: the device failed: {self._fault}") from self._fault


def open_device_producer(fds: Sequence[int], device: int, runtime: DeviceRuntime) -> DeviceProducer:
    """See ``cuda_ipc.open_producer``."""
    control_fds = [os.dup(fd) for fd in fds]
    try:
        messages = host_shm.open_producer(fds, on_device=True)
    except BaseException:
        close_all(control_fds)
        raise
    control = DeviceControl(control_fds)
    try:
        memory = OwnMemory(runtime, device, control.geometry.slot_offset_bytes(1), control.geometry.num_slots)
        handle = runtime.export(device, memory.address)
        control.hand_out(DeviceCard(os.getpid(), memory.address, runtime.identity(device), handle))
    except BaseException as error:
        control.close()
        messages.abandon()
        if isinstance(error, DeviceError):
            raise DeviceError(f"channel {messages.channel_id}: no arena on device {device}: {error}") from error
        raise
    return DeviceProducer(messages, memory, control, runtime)
