"""One consumer of several ranks' channels, who sees whole what they hold in shards; see ``cuda_ipc``."""

from __future__ import annotations

import contextlib
import functools
import select
import threading
from collections.abc import Sequence

from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelError, Delivery, LayoutError
from ithaka.comm_ext.channel.completion import Completions
from ithaka.comm_ext.channel.device import DeviceDelivery, DeviceError, DeviceRuntime
from ithaka.comm_ext.channel.device_memory import OwnSlots, Source
from ithaka.comm_ext.channel.held import HeldDeliveries
from ithaka.comm_ext.channel.host_memory import clear_event, close_all
from ithaka.comm_ext.channel.sharding import Assembly, assemble


class ShardedConsumer:
    """``base.Consumer`` of one channel a rank. Any thread may call; see ``cuda_ipc.open_sharded_consumer``.

    The ranks' messages of one sequence belong together; one whose counterpart was dropped or discarded is passed over.
    """

    def __init__(
        self, channels: Sequence[tuple[Sequence[int], int]], device: int, runtime: DeviceRuntime, num_own_slots: int
    ) -> None:
        """Takes over the descriptors."""
        self._runtime, self.device = runtime, device
        self._sources: list[Source] = []
        remaining = [fds for fds, _ in channels]
        with contextlib.ExitStack() as undo:
            undo.callback(lambda: close_all(fd for fds in remaining for fd in fds))
            for fds, index in channels:
                remaining.pop(0)
                source = Source(runtime, device, fds, index)
                undo.callback(source.close)
                self._sources.append(source)
            if not self._sources:
                raise ChannelError("a sharded consumer needs a channel of each rank, none given")
            self._slot_bytes = sum(source.geometry.slot_offset_bytes(1) for source in self._sources)
            self._own = OwnSlots(runtime, device, self._slot_bytes, num_own_slots)
            self._ready = select.epoll()
            undo.pop_all()
        for source in self._sources:
            self._ready.register(source.messages.ready_fd(), select.EPOLLIN)
        self._place = "channels " + ", ".join(str(source.geometry.channel_id) for source in self._sources)
        self._heads: list[Delivery | None] = [None] * len(self._sources)
        self._held: HeldDeliveries[DeviceDelivery, int] = HeldDeliveries(self._place)
        self._read = Completions(runtime, device, "channel-release", self._fail)
        self._fault: ChannelError | None = None
        self._is_starved = False
        self._lock = threading.RLock()
        self._is_closed = False

    @property
    def num_dropped(self) -> int:
        """The most that one of the channels dropped. Raises ChannelClosedError."""
        return max(source.messages.num_dropped for source in self._sources)

    def take(self) -> DeviceDelivery | None:
        """The next message that every rank has sent, whole on this device; None when there is none or every own slot is held.

        Waits for its own copies, never for a producer. Raises ShardError for parts that make no whole, which are released;
        ChannelClosedError when none can follow, DeviceError.
        """
        with self._lock:
            self._check_open()
            for source in self._sources:
                clear_event(source.messages.ready_fd())
            self._is_starved = not self._own.free
            if self._is_starved or not self._align():
                return None
            heads = [head for head in self._heads if head is not None]
            try:
                assembly = self._assemble(heads)
                own_index = self._own.free.pop()
                data = self._own.slot(own_index, self._slot_bytes, f"{self._place}, slot {own_index}")
                self._copy(assembly, heads, data.address)
            except DeviceError as error:
                self._fail(error)
                self._check_open()
                raise
            finally:
                for source, head in zip(self._sources, heads, strict=True):
                    source.messages.release(head)
                self._heads = [None] * len(self._sources)
            delivery = DeviceDelivery(own_index, heads[0].sequence, assembly.message, data)
            self._held.add(delivery, own_index)
            return delivery

    def release(self, delivery: DeviceDelivery, stream: int = 0) -> None:
        """As ``DeviceConsumer.release``."""
        with self._lock:
            self._check_open()
            self._read.follow(stream, functools.partial(self._give_up, self._held.remove(delivery)))

    def ready_fd(self) -> int:
        """A descriptor that is readable after a publish or a close of any rank, until the next take.

        Raises ChannelClosedError.
        """
        self._check_open()
        return self._ready.fileno()

    def close(self) -> None:
        """Release what is held and leave every channel for good. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._ready.close()
            self._read.follow_all(self._leave)
            self._read.close()

    def _align(self) -> bool:
        """Whether every rank's next message is there, all of one sequence."""
        while True:
            for rank, source in enumerate(self._sources):
                if self._heads[rank] is None:
                    self._heads[rank] = source.take()
            sequences = [head.sequence for head in self._heads if head is not None]
            if len(sequences) < len(self._sources):
                return False
            if len(set(sequences)) == 1:
                return True
            for rank, source in enumerate(self._sources):
                head = self._heads[rank]
                if head is not None and head.sequence < max(sequences):
                    source.messages.release(head)
                    self._heads[rank] = None

    def _assemble(self, heads: Sequence[Delivery]) -> Assembly:
        places = [source.bytes_of(head).place for source, head in zip(self._sources, heads, strict=True)]
        assembly = assemble(places, [head.message for head in heads])
        if assembly.num_bytes > self._slot_bytes:
            raise LayoutError(f"{places}: {assembly.message.tensors} end at {assembly.num_bytes}, {self._slot_bytes} fit")
        return assembly

    def _copy(self, assembly: Assembly, heads: Sequence[Delivery], target: int) -> None:
        sources = [source.bytes_of(head).address for source, head in zip(self._sources, heads, strict=True)]
        for copy in assembly.copies:
            self._runtime.copy(
                self.device,
                target + copy.target_offset_bytes,
                copy.target_pitch_bytes,
                sources[copy.rank] + copy.source_offset_bytes,
                copy.source_pitch_bytes,
                row_bytes=copy.row_bytes,
                num_rows=copy.num_rows,
                stream=self._own.stream,
            )
        self._runtime.finish(self.device, self._own.stream)

    def _give_up(self, own_index: int) -> None:
        with self._lock:
            self._own.free.append(own_index)
            if self._is_starved and not self._is_closed:
                self._sources[0].wake()

    def _leave(self) -> None:
        with self._lock:
            for source in self._sources:
                source.close()
            self._heads.clear()
            self._held.clear()
            # Its traceback would keep the producers' memory mapped.
            self._fault = None
            self._own.close()

    def _fail(self, error: ChannelError) -> None:
        with self._lock:
            if self._fault is None:
                self._fault = error
                if not self._is_closed:
                    self._sources[0].wake()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ChannelClosedError(f"{self._place}: this consumer is closed")
        if self._fault is not None:
            raise DeviceError(f"{self._place}: the device failed: {self._fault}") from self._fault
