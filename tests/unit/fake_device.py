"""A device runtime without a device: "device memory" is shared host memory, copies happen when their event is asked for.

Handles work between processes, as CUDA's do, and memory outlives the process that allocated it while others map it.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from ithaka.comm_ext.channel.device import HANDLE_BYTES, DeviceError

NUM_DEVICES = 2


@dataclass
class FakeStream:
    queued: list[Callable[[], None]] = field(default_factory=list)
    is_held: bool = False
    """What is queued stays so until ``FakeRuntime.let_run``."""


@dataclass
class FakeRuntime:
    """``DeviceRuntime``; ``live`` says what is allocated, mapped and open, ``num_copied_bytes`` what was moved."""

    num_copied_bytes: int = 0
    fails: set[str] = field(default_factory=set)
    """Methods that raise."""

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)
        self._memory: dict[int, tuple[int, mmap.mmap, ctypes.Array[ctypes.c_char]]] = {}
        self._mapped: dict[int, tuple[mmap.mmap, ctypes.Array[ctypes.c_char]]] = {}
        self._streams: dict[int, FakeStream] = {0: FakeStream()}
        self._events: dict[int, list[Callable[[], None]]] = {}
        self._changed = threading.Condition(threading.RLock())

    @property
    def live(self) -> tuple[int, int, int, int]:
        """Allocations, mappings, streams, events."""
        with self._changed:
            return len(self._memory), len(self._mapped), len(self._streams) - 1, len(self._events)

    def hold(self, stream: int = 0) -> None:
        """What is queued on the stream from now on is not done before ``let_run``."""
        self._streams.setdefault(stream, FakeStream()).is_held = True

    def let_run(self, stream: int = 0) -> None:
        with self._changed:
            held = self._streams[stream]
            held.is_held = False
            for action in held.queued:
                action()
            held.queued.clear()
            self._changed.notify_all()

    def identity(self, device: int) -> bytes:
        self._check("identity")
        if not 0 <= device < NUM_DEVICES:
            raise DeviceError(f"device {device} is none of {NUM_DEVICES}")
        return bytes([device]) * 16

    def find(self, identity: bytes) -> int:
        return identity[0]

    def allocate(self, device: int, num_bytes: int) -> int:
        self._check("allocate")
        self.identity(device)
        fd = os.memfd_create("fake-device")
        os.ftruncate(fd, num_bytes)
        address, mapped, view = self._map(fd)
        with self._changed:
            self._memory[address] = fd, mapped, view
        return address

    def free(self, device: int, address: int) -> None:
        with self._changed:
            fd, mapped, view = self._memory.pop(address)
        del view
        mapped.close()
        os.close(fd)

    def export(self, device: int, address: int) -> bytes:
        self._check("export")
        return struct.pack("<QQ", os.getpid(), self._memory[address][0]).ljust(HANDLE_BYTES, b"\0")

    def map_handle(self, device: int, handle: bytes) -> int:
        self._check("map_handle")
        pid, number = struct.unpack_from("<QQ", handle)
        try:
            fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR)
        except OSError as error:
            raise DeviceError(f"the memory's process is gone: {error}") from error
        address, mapped, view = self._map(fd)
        os.close(fd)
        with self._changed:
            self._mapped[address] = mapped, view
        return address

    def unmap(self, device: int, address: int) -> None:
        with self._changed:
            mapped, view = self._mapped.pop(address)
        del view
        mapped.close()

    def reach(self, device: int, peer: int) -> None:
        self._check("reach")

    def open_stream(self, device: int) -> int:
        with self._changed:
            number = next(self._numbers)
            self._streams[number] = FakeStream()
            return number

    def close_stream(self, device: int, stream: int) -> None:
        with self._changed:
            del self._streams[stream]

    def copy(
        self,
        device: int,
        target: int,
        target_pitch: int,
        source: int,
        source_pitch: int,
        row_bytes: int,
        num_rows: int,
        stream: int,
    ) -> None:
        self._check("copy")

        def run() -> None:
            for row in range(num_rows):
                ctypes.memmove(target + row * target_pitch, source + row * source_pitch, row_bytes)
            self.num_copied_bytes += row_bytes * num_rows

        self._queue(stream, run)

    def record(self, device: int, stream: int, *, sleeps: bool) -> int:
        self._check("record")
        with self._changed:
            event = next(self._numbers)
            self._events[event] = [lambda: None]
            self._queue(stream, self._events[event].clear)
            return event

    def is_idle(self, device: int, stream: int, *, within_us: int = 0) -> bool:
        self._check("record")
        with self._changed:
            return not self._streams.setdefault(stream, FakeStream()).is_held

    def finish(self, device: int, stream: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._streams[stream].is_held)
        self._check("wait")

    def wait(self, device: int, event: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._events[event])
        self._check("wait")

    def close_event(self, device: int, event: int) -> None:
        with self._changed:
            del self._events[event]

    def _queue(self, stream: int, action: Callable[[], None]) -> None:
        with self._changed:
            held = self._streams.setdefault(stream, FakeStream())
            if held.is_held:
                held.queued.append(action)
            else:
                action()

    def _check(self, method: str) -> None:
        if method in self.fails:
            raise DeviceError(f"{method} failed: made to")

    @staticmethod
    def _map(fd: int) -> tuple[int, mmap.mmap, ctypes.Array[ctypes.c_char]]:
        mapped = mmap.mmap(fd, 0)
        view = (ctypes.c_char * len(mapped)).from_buffer(mapped)
        return ctypes.addressof(view), mapped, view
