"""The reading side of a channel in device memory; see ``cuda_ipc``."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelError, Delivery
from ithaka.comm_ext.channel.completion import Completions
from ithaka.comm_ext.channel.device import DeviceDelivery, DeviceError, DeviceRuntime
from ithaka.comm_ext.channel.device_memory import OwnSlots, Source
from ithaka.comm_ext.channel.held import HeldDeliveries
from ithaka.comm_ext.channel.layout import tensor_bytes

_MAX_PULLS = 2
"""Copies under way at once: one that is waited for, one that keeps the copy engine busy behind it."""

_AWAKE_US = 200
"""For a message that the producer is writing."""
_REHEARSED_BYTES = 16


@dataclass(slots=True)
class _Pull:
    """A message on its way into a slot of the consumer."""

    message: Delivery
    own_index: int
    is_started: bool = False
    """False when the device refused the copy."""
    event: int | None = None
    """After the copy, once another one is queued behind it; until then it ends with the stream."""
    is_complete: bool = False


class DeviceConsumer:
    """``base.Consumer`` on a device. Any thread may call; see ``cuda_ipc.open_consumer``."""

    def __init__(self, fds: Sequence[int], index: int, device: int, runtime: DeviceRuntime, num_own_slots: int | None) -> None:
        """Takes over ``fds``."""
        self._runtime, self.device = runtime, device
        self._source = Source(runtime, device, fds, index)
        self._geometry = self._source.geometry
        self._num_own_slots = num_own_slots or self._geometry.num_slots
        self._own: OwnSlots | None = None
        self._pulls: deque[_Pull] = deque()
        self._held: HeldDeliveries[DeviceDelivery, _Pull | Delivery] = HeldDeliveries(self._source.place)
        self._pulled = Completions(runtime, device, "channel-pull", self._fail)
        self._read = Completions(runtime, device, "channel-release", self._fail)
        self._fault: ChannelError | None = None
        self._is_starved = False
        self._lock = threading.RLock()
        self._is_closed = False

    @property
    def channel_id(self) -> int:
        return self._geometry.channel_id

    @property
    def num_dropped(self) -> int:
        """See ``base.Consumer``. Raises ChannelClosedError."""
        return self._source.messages.num_dropped

    def take(self) -> DeviceDelivery | None:
        """The next message, complete on this device, or None when there is none yet or every own slot is held.

        From another device it waits for its own copy, never for the producer. Raises ChannelClosedError when none can follow,
        DeviceError when the producer's memory can't be reached or the device failed.
        """
        delivery = self._take()
        if delivery is None and self._source.messages.was_announced():
            self._rehearse()
            if self._source.messages.await_news(_AWAKE_US):
                delivery = self._take()
        return delivery

    def _take(self) -> DeviceDelivery | None:
        with self._lock:
            self._check_open()
            if self._own is None:
                message = self._source.take()
                if message is None:
                    return None
                if self._source.memory.is_local:
                    delivery = DeviceDelivery(message.index, message.sequence, message.message, self._source.bytes_of(message))
                    self._held.add(delivery, message)
                    return delivery
                self._own = self._allocate(message)
                self._pulls.append(_Pull(message, self._own.free.pop()))
            try:
                self._pull_what_is_there(self._own)
                return self._take_pulled(self._own)
            except DeviceError as error:
                self._fail(error)
                self._check_open()
                raise

    def release(self, delivery: DeviceDelivery, stream: int = 0) -> None:
        """Give up this consumer's count once all that ``stream`` has queued, which reads the delivery, is done.

        Raises SlotStateError on a second release, ChannelClosedError, DeviceError.
        """
        with self._lock:
            self._check_open()
            kept = self._held.remove(delivery)
            self._read.follow(stream, functools.partial(self._give_up, kept))

    def ready_fd(self) -> int:
        """An eventfd, readable after a publish or a close; read it (``clear_event``) before trying again.

        Raises ChannelClosedError.
        """
        return self._source.messages.ready_fd()

    def close(self) -> None:
        """Release what is held, once what was released before has been read, and leave the channel for good. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            # A device that failed copies nothing any more.
            with contextlib.suppress(DeviceError):
                for pull in self._pulls:
                    self._complete(pull)
            self._read.follow_all(self._leave)
            self._read.close()
            self._pulled.close()

    def _allocate(self, message: Delivery) -> OwnSlots:
        try:
            return OwnSlots(self._runtime, self.device, self._geometry.slot_offset_bytes(1), self._num_own_slots)
        except DeviceError as error:
            self._source.messages.release(message)
            raise DeviceError(f"{self._source.place}: no slots of its own on device {self.device}: {error}") from error

    def _pull_what_is_there(self, own: OwnSlots) -> None:
        for pull in self._pulls:
            if not pull.is_started:
                self._start(own, pull)
        self._is_starved = not own.free
        most = 1 if self._source.messages.policy == "newest" else _MAX_PULLS
        while own.free and len(self._pulls) < most:
            try:
                message = self._source.take()
            except ChannelClosedError:
                if self._pulls:
                    return
                raise
            if message is None:
                return
            self._pulls.append(_Pull(message, own.free.pop()))
            self._start(own, self._pulls[-1])

    def _rehearse(self) -> None:
        """Copy a little into a slot that is free: what the copy engine, the link and the caches need to wake is over then."""
        with self._lock:
            if self._own is not None and self._own.free and self._fault is None:
                source = self._source.memory.address
                target = self._own.slot(self._own.free[-1], _REHEARSED_BYTES, "").address
                with contextlib.suppress(DeviceError):
                    self._copy(target, source, _REHEARSED_BYTES, self._own.stream)
                    self._runtime.finish(self.device, self._own.stream)

    def _start(self, own: OwnSlots, pull: _Pull) -> None:
        message = pull.message
        source = self._source.bytes_of(message)
        num_bytes = max((tensor.offset_bytes + tensor_bytes(tensor) for tensor in message.message.tensors), default=0)
        target = own.slot(pull.own_index, num_bytes, source.place)
        for before in self._pulls:
            if before.is_started and not before.is_complete and before.event is None:
                before.event = self._runtime.record(self.device, own.stream, sleeps=False)
        self._copy(target.address, source.address, num_bytes, own.stream)
        pull.is_started = True

    def _copy(self, target: int, source: int, num_bytes: int, stream: int) -> None:
        self._runtime.copy(self.device, target, num_bytes, source, num_bytes, row_bytes=num_bytes, num_rows=1, stream=stream)

    def _take_pulled(self, own: OwnSlots) -> DeviceDelivery | None:
        if not self._pulls:
            return None
        pull = self._pulls[0]
        message = pull.message
        # Made while it is copied.
        data = own.slot(pull.own_index, self._geometry.slot_bytes, f"channel {self.channel_id}, slot {message.index}")
        delivery = DeviceDelivery(message.index, message.sequence, message.message, data)
        self._complete(pull)
        self._pulls.popleft()
        for later in self._pulls:
            # Its slot is the producer's again when the copy is done, whenever the next take comes.
            self._pulled.follow(own.stream, functools.partial(self._complete, later))
        self._held.add(delivery, pull)
        return delivery

    def _complete(self, pull: _Pull) -> None:
        """Wait for the copy, give the producer's slot back. Idempotent."""
        with self._lock:
            if pull.is_complete or not pull.is_started or self._own is None:
                return
            if pull.event is None:
                self._runtime.finish(self.device, self._own.stream)
            else:
                self._runtime.wait(self.device, pull.event)
                self._runtime.close_event(self.device, pull.event)
            pull.is_complete = True
            if not self._source.is_closed:
                self._source.messages.release(pull.message)

    def _give_up(self, kept: _Pull | Delivery) -> None:
        with self._lock:
            if isinstance(kept, Delivery):
                if not self._source.is_closed:
                    self._source.messages.release(kept)
            elif self._own is not None:
                self._own.free.append(kept.own_index)
                if self._is_starved:
                    self._source.wake()

    def _leave(self) -> None:
        with self._lock:
            self._source.close()
            self._held.clear()
            self._pulls.clear()
            # Its traceback would keep the producer's memory mapped.
            self._fault = None
            if self._own is not None:
                self._own.close()
                self._own = None

    def _fail(self, error: ChannelError) -> None:
        with self._lock:
            if self._fault is None:
                self._fault = error
                if not self._source.is_closed:
                    self._source.wake()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ChannelClosedError(f"{self._source.place} is closed")
        if self._fault is not None:
            raise DeviceError(f"{self._source.place}: the device failed: {self._fault}") from self._fault
