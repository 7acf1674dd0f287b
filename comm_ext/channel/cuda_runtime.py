"""CUDA for the channel: the driver API by ctypes, on the devices' primary contexts, which torch and the runtime API use too.

The driver comes with the GPU, so nothing has to be compiled or found beside it, and torch need not be loaded. Memory is plain
``cuMemAlloc``: it can be exported whatever torch's allocator is set to.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from types import TracebackType
from typing import Any

from ithaka.comm_ext.channel.device import HANDLE_BYTES, IDENTITY_BYTES, DeviceError

_SUCCESS, _NOT_READY, _PEER_ALREADY_ENABLED = 0, 600, 704
_LAZY_PEER_ACCESS = 1
_NON_BLOCKING_STREAM = 1
_EVENT_SLEEPS, _EVENT_NO_TIMING = 1, 2
_MEMORY_IS_DEVICE = 2
_SPIN_NS = 100_000
"""Longer waits are left to the driver."""

_Address = ctypes.c_uint64


class _Handle(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char * HANDLE_BYTES),)


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (
        *(
            field
            for side in ("source", "target")
            for field in (
                (f"{side}_x_bytes", ctypes.c_size_t),
                (f"{side}_y", ctypes.c_size_t),
                (f"{side}_type", ctypes.c_uint),
                (f"{side}_host", ctypes.c_void_p),
                (f"{side}_device", _Address),
                (f"{side}_array", ctypes.c_void_p),
                (f"{side}_pitch", ctypes.c_size_t),
            )
        ),
        ("width_bytes", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


class CudaRuntime:
    """``DeviceRuntime`` on CUDA devices. Any thread may call."""

    def __init__(self) -> None:
        """Raises DeviceError when there is no driver or no device."""
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DeviceError(f"no CUDA driver on this machine: {error}") from error
        # Of calls that never wait: the interpreter is not let go for them, so that no other thread takes it in between.
        self._prompt = ctypes.PyDLL("libcuda.so.1")
        self._lock = threading.Lock()
        self._contexts: dict[int, int] = {}
        self._spare_events: dict[tuple[int, bool], list[int]] = {}
        self._event_sleeps: dict[int, bool] = {}
        self._call("cuInit", 0)

    def __del__(self) -> None:
        # At the end of the process the driver may be gone, and all of this with it.
        with contextlib.suppress(DeviceError, AttributeError):
            for (device, _), events in self._spare_events.items():
                with self.on(device):
                    for event in events:
                        self._call("cuEventDestroy_v2", ctypes.c_void_p(event))

    def identity(self, device: int) -> bytes:
        """Raises DeviceError for an ordinal that is no device."""
        uuid = (ctypes.c_char * IDENTITY_BYTES)()
        self._call("cuDeviceGetUuid_v2", uuid, self._device(device))
        return bytes(uuid.raw)

    def find(self, identity: bytes) -> int:
        """Raises DeviceError when this process does not see the device."""
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        for device in range(count.value):
            if self.identity(device) == identity:
                return device
        raise DeviceError(f"device {identity.hex()} is not among the {count.value} that this process sees")

    def allocate(self, device: int, num_bytes: int) -> int:
        address = _Address()
        with self.on(device):
            self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(num_bytes))
        return address.value

    def free(self, device: int, address: int) -> None:
        with self.on(device):
            self._call("cuMemFree_v2", _Address(address))

    def export(self, device: int, address: int) -> bytes:
        handle = _Handle()
        with self.on(device):
            self._call("cuIpcGetMemHandle", ctypes.byref(handle), _Address(address))
        return ctypes.string_at(ctypes.addressof(handle), HANDLE_BYTES)

    def map_handle(self, device: int, handle: bytes) -> int:
        address = _Address()
        with self.on(device):
            structure = _Handle.from_buffer_copy(handle)
            self._call("cuIpcOpenMemHandle_v2", ctypes.byref(address), structure, ctypes.c_uint(_LAZY_PEER_ACCESS))
        return address.value

    def unmap(self, device: int, address: int) -> None:
        with self.on(device):
            self._call("cuIpcCloseMemHandle", _Address(address))

    def reach(self, device: int, peer: int) -> None:
        if device == peer:
            return
        can = ctypes.c_int()
        self._call("cuDeviceCanAccessPeer", ctypes.byref(can), self._device(device), self._device(peer))
        if not can.value:
            raise DeviceError(f"device {device} can't reach memory of device {peer}")
        context = self._context(peer)
        with self.on(device):
            self._call("cuCtxEnablePeerAccess", ctypes.c_void_p(context), 0, allow=(_PEER_ALREADY_ENABLED,))

    def open_stream(self, device: int) -> int:
        lowest, highest, stream = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        with self.on(device):
            self._call("cuCtxGetStreamPriorityRange", ctypes.byref(lowest), ctypes.byref(highest))
            self._call("cuStreamCreateWithPriority", ctypes.byref(stream), _NON_BLOCKING_STREAM, highest)
        return stream.value or 0

    def close_stream(self, device: int, stream: int) -> None:
        with self.on(device):
            self._call("cuStreamDestroy_v2", ctypes.c_void_p(stream))

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
        if row_bytes == 0 or num_rows == 0:
            return
        with self.on(device):
            if num_rows == 1 or target_pitch == source_pitch == row_bytes:
                size = ctypes.c_size_t(row_bytes * num_rows)
                self._call("cuMemcpyDtoDAsync_v2", _Address(target), _Address(source), size, ctypes.c_void_p(stream))
                return
            copy = _Copy2D(
                source_type=_MEMORY_IS_DEVICE,
                source_device=source,
                source_pitch=source_pitch,
                target_type=_MEMORY_IS_DEVICE,
                target_device=target,
                target_pitch=target_pitch,
                width_bytes=row_bytes,
                height=num_rows,
            )
            self._call("cuMemcpy2DAsync_v2", ctypes.byref(copy), ctypes.c_void_p(stream))

    def record(self, device: int, stream: int, *, sleeps: bool) -> int:
        with self.on(device):
            event = self._take_event(device, sleeps)
            self._call("cuEventRecord", ctypes.c_void_p(event), ctypes.c_void_p(stream))
        return event

    def is_idle(self, device: int, stream: int, *, within_us: int = 0) -> bool:
        with self.on(device):
            return self._is_over(self._prompt.cuStreamQuery, stream, 1000 * within_us)

    def finish(self, device: int, stream: int) -> None:
        with self.on(device):
            # The driver's own spinning lets go of the interpreter, and may have to wait to get it back.
            if not self._is_over(self._prompt.cuStreamQuery, stream, _SPIN_NS):
                self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def wait(self, device: int, event: int) -> None:
        with self.on(device):
            # The driver's sleep costs a wake-up of its own; most waits are over before.
            if self._event_sleeps[event] and self._is_over(self._driver.cuEventQuery, event, _SPIN_NS):
                return
            self._call("cuEventSynchronize", ctypes.c_void_p(event))

    def _is_over(self, query: Any, handle: int, within_ns: int) -> bool:
        """Whether a stream or an event is over, asked again and again for so long."""
        pointer = ctypes.c_void_p(handle)
        end_ns = time.monotonic_ns() + within_ns
        while (status := query(pointer)) == _NOT_READY:
            if time.monotonic_ns() >= end_ns:
                return False
        self._check(query.__name__, status)
        return True

    def close_event(self, device: int, event: int) -> None:
        with self._lock:
            self._spare_events.setdefault((device, self._event_sleeps[event]), []).append(event)

    def _take_event(self, device: int, sleeps: bool) -> int:
        with self._lock:
            spare = self._spare_events.get((device, sleeps))
            if spare:
                return spare.pop()
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), _EVENT_NO_TIMING | (_EVENT_SLEEPS if sleeps else 0))
        number = event.value or 0
        with self._lock:
            self._event_sleeps[number] = sleeps
        return number

    def on(self, device: int) -> _OnDevice:
        """The device's primary context is the thread's current one; whatever was current before comes back."""
        return _OnDevice(self, self._context(device))

    def enter(self, context: int) -> bool:
        """Make a context the thread's current one; False where it is already."""
        current = ctypes.c_void_p()
        self._check("cuCtxGetCurrent", self._prompt.cuCtxGetCurrent(ctypes.byref(current)))
        if current.value == context:
            return False
        self._check("cuCtxPushCurrent", self._prompt.cuCtxPushCurrent_v2(ctypes.c_void_p(context)))
        return True

    def leave(self) -> None:
        """What was current before is so again."""
        self._check("cuCtxPopCurrent", self._prompt.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))

    def _context(self, device: int) -> int:
        context = self._contexts.get(device)
        if context is not None:
            return context
        with self._lock:
            context = self._contexts.get(device)
            if context is None:
                # Retained for good: a process that uses a device keeps its context.
                retained = ctypes.c_void_p()
                self._call("cuDevicePrimaryCtxRetain", ctypes.byref(retained), self._device(device))
                context = self._contexts[device] = retained.value or 0
            return context

    def _device(self, device: int) -> ctypes.c_int:
        number = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(number), device)
        return number

    def _call(self, name: str, *arguments: Any, allow: tuple[int, ...] = ()) -> None:
        self._check(name, getattr(self._driver, name)(*arguments), allow)

    def _check(self, name: str, status: int, allow: tuple[int, ...] = ()) -> None:
        if status != _SUCCESS and status not in allow:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorName(status, ctypes.byref(text))
            raise DeviceError(f"{name} failed: {(text.value or b'unknown').decode()} ({status})")


class _OnDevice:
    """See ``CudaRuntime.on``."""

    __slots__ = ("_context", "_is_entered", "_runtime")

    def __init__(self, runtime: CudaRuntime, context: int) -> None:
        self._runtime = runtime
        self._context = context
        self._is_entered = False

    def __enter__(self) -> None:
        self._is_entered = self._runtime.enter(self._context)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._is_entered:
            self._runtime.leave()
