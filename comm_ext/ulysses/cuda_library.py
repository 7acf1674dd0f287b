"""The compiled engine through its C ABI: structures, checked against the build, and calls that raise on failure."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_int64, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path

ABI_VERSION = 3
MAX_RANKS = 8
MAX_TENSORS = 3
MAX_PIECES = MAX_RANKS * MAX_TENSORS
MAX_COPIES = MAX_PIECES * 4
MAX_SLOTS = 3
MAX_BLOCKS = 384
MAX_WAIT_SITES = 16
HANDLE_BYTES = 64


class CudaCallError(RuntimeError):
    """A CUDA call failed; the message is the runtime's."""


class PieceStruct(ctypes.Structure):
    """UlPiece."""

    _fields_ = (
        ("source", c_uint64),
        ("target", c_uint64),
        ("source_outer", c_int64),
        ("source_inner", c_int64),
        ("target_outer", c_int64),
        ("target_inner", c_int64),
        ("units", c_uint32),
        ("row_units", c_uint32),
        ("row_magic", c_uint32),
        ("row_shift", c_uint32),
        ("inner_rows", c_uint32),
        ("inner_magic", c_uint32),
        ("inner_shift", c_uint32),
        ("tensor", c_uint32),
    )


class CallStruct(ctypes.Structure):
    """UlCall."""

    _fields_ = (
        ("arena", c_uint64 * MAX_RANKS),
        ("region", c_uint64),
        ("timeout_ns", c_uint64),
        ("host_words", c_uint64),
        ("rank", c_uint32),
        ("ranks", c_uint32),
        ("tensors", c_uint32),
        ("signature", c_uint32),
        ("remote_blocks", c_uint32),
        ("local_blocks", c_uint32),
        ("slot", c_uint32),
        ("expiry", c_uint32),
        ("copies", c_uint32),
        ("waits", c_uint32),
    )


class CopyStruct(ctypes.Structure):
    """UlCopy."""

    _fields_ = (
        ("source", c_uint64),
        ("target", c_uint64),
        ("source_pitch", c_uint64),
        ("target_pitch", c_uint64),
        ("width", c_uint64),
        ("height", c_uint64),
        ("tensor", c_uint32),
        ("peer", c_uint32),
    )


class PlanStruct(ctypes.Structure):
    """UlPlan."""

    _fields_ = (
        ("call", CallStruct),
        ("piece", PieceStruct * MAX_PIECES),
        ("copy", CopyStruct * MAX_COPIES),
        ("window", c_uint64),
        ("slot_bytes", c_uint64),
        ("result_offset", c_uint64 * MAX_TENSORS),
        ("result_bytes", c_uint64 * MAX_TENSORS),
        ("copies", c_uint32),
        ("unit_bytes", c_uint32),
        ("device", c_uint32),
        ("pad", c_uint32),
    )


class TurnStruct(ctypes.Structure):
    """UlTurn."""

    _fields_ = (("recording", c_uint64), ("run", c_uint32), ("recorded", c_uint32))


ARENA_WORDS_BYTES = 16 * 8
HOST_WORDS_BYTES = 8 * 8
REGION_BYTES = MAX_BLOCKS * 4 * (2 + MAX_SLOTS) + 2 * MAX_RANKS * MAX_BLOCKS * 8 + 3 * MAX_RANKS * 8 + 8 * 8
_MIRROR = (
    ABI_VERSION,
    *(ctypes.sizeof(kind) for kind in (PieceStruct, CallStruct, CopyStruct, PlanStruct)),
    REGION_BYTES,
    ARENA_WORDS_BYTES,
    HOST_WORDS_BYTES,
)
_SIGNATURES = {
    "ul_abi": (POINTER(c_uint64),),
    "ul_device_facts": (c_int, POINTER(c_int), POINTER(c_int), POINTER(c_int), POINTER(c_char)),
    "ul_load_kernels": (c_int,),
    "ul_arena_create": (c_int, c_uint64, c_uint64, POINTER(c_uint64)),
    "ul_arena_free": (c_int, c_uint64),
    "ul_handle_export": (c_int, c_uint64, POINTER(c_char)),
    "ul_handle_open": (c_int, c_char_p, POINTER(c_uint64)),
    "ul_handle_close": (c_int, c_uint64),
    "ul_peer_enable": (c_int, c_int),
    "ul_host_words_create": (c_int, POINTER(c_uint64), POINTER(c_uint64)),
    "ul_host_words_free": (c_uint64,),
    "ul_lane_create": (c_int, POINTER(c_void_p)),
    "ul_lane_destroy": (c_int, c_void_p),
    "ul_synchronize": (c_int,),
    "ul_finish": (c_int, c_void_p),
    "ul_exchange": (c_void_p, c_void_p, c_void_p, c_uint32, c_void_p, c_void_p, c_void_p),
    "ul_send": (c_void_p, c_void_p, c_void_p, c_uint32, c_void_p, c_void_p),
    "ul_wait": (c_void_p, c_void_p, c_uint32, c_void_p),
    "ul_fused_abi": (POINTER(c_uint64),),
    "ul_fused_exchange": (c_void_p, c_void_p, c_uint32, c_void_p, c_void_p, c_void_p),
}


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What ranks compare about their devices."""

    uuid: str
    capability: tuple[int, int]
    multiprocessors: int


class CudaLibrary:
    """The loaded engine. Its methods raise CudaCallError."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, c_int
        self._library.ul_error.argtypes, self._library.ul_error.restype = (c_int,), c_char_p
        self._library.ul_source_hash.restype = c_char_p
        self.check_sizes("ul_abi", _MIRROR)
        self.exchange = self._library.ul_exchange
        """The hot calls, bare: they return a status for ``check``."""
        self.send = self._library.ul_send
        self.wait = self._library.ul_wait
        self.fused_exchange = self._library.ul_fused_exchange

    @property
    def source_hash(self) -> str:
        """Of the sources that it was built from."""
        return str(self._library.ul_source_hash().decode())

    def check_sizes(self, name: str, mirror: tuple[int, ...]) -> None:
        """Raise unless the structures of this build have the sizes of their mirrors."""
        sizes = (c_uint64 * len(mirror))()
        getattr(self._library, name)(sizes)
        if tuple(sizes) != mirror:
            raise CudaCallError(f"{name} of this build says {tuple(sizes)}, expected {mirror}: build it again")

    def check(self, status: int) -> None:
        """Raise what a status says."""
        if status:
            raise CudaCallError(f"CUDA error {status}: {self._library.ul_error(status).decode()}")

    def device_facts(self, device: int) -> DeviceFacts:
        """Of one device of this process."""
        numbers, uuid = [c_int() for _ in range(3)], (c_char * 16)()
        self.check(self._library.ul_device_facts(device, *(byref(number) for number in numbers), uuid))
        multiprocessors, major, minor = (number.value for number in numbers)
        return DeviceFacts(bytes(uuid).hex(), (major, minor), multiprocessors)

    def load_kernels(self, device: int) -> None:
        """Have all kernels ready; raises if this build has none for the device."""
        self.check(self._library.ul_load_kernels(device))

    def create_arena(self, device: int, num_bytes: int, zeroed_bytes: int) -> int:
        """Device memory of its own; its address."""
        return self._address(self._library.ul_arena_create, device, num_bytes, zeroed_bytes)

    def free_arena(self, device: int, address: int) -> None:
        """Give it back."""
        self.check(self._library.ul_arena_free(device, address))

    def export_handle(self, device: int, address: int) -> bytes:
        """A handle that another process can open."""
        handle = (c_char * HANDLE_BYTES)()
        self.check(self._library.ul_handle_export(device, address, handle))
        return bytes(handle)

    def open_handle(self, device: int, handle: bytes) -> int:
        """The address of a peer's arena in this process."""
        return self._address(self._library.ul_handle_open, device, handle)

    def close_handle(self, device: int, address: int) -> None:
        """Unmap a peer's arena."""
        self.check(self._library.ul_handle_close(device, address))

    def enable_peer(self, device: int, peer: int) -> None:
        """Let ``device`` reach memory of ``peer``, both in this process."""
        self.check(self._library.ul_peer_enable(device, peer))

    def create_host_words(self, device: int) -> tuple[int, int]:
        """Pinned words: their address for the host and for the device."""
        host, mapped = c_uint64(), c_uint64()
        self.check(self._library.ul_host_words_create(device, byref(host), byref(mapped)))
        return host.value, mapped.value

    def free_host_words(self, host_address: int) -> None:
        """Give them back."""
        self.check(self._library.ul_host_words_free(host_address))

    def create_lane(self, device: int) -> int:
        """The copy engine's stream and events."""
        lane = c_void_p()
        self.check(self._library.ul_lane_create(device, byref(lane)))
        assert lane.value is not None
        return lane.value

    def destroy_lane(self, device: int, lane: int) -> None:
        """Give them back."""
        self.check(self._library.ul_lane_destroy(device, lane))

    def synchronize(self, device: int) -> None:
        """Wait for all work of this process on the device."""
        self.check(self._library.ul_synchronize(device))

    def finish(self, device: int, stream: int | None) -> None:
        """Wait for the work that one stream holds; not while it records."""
        self.check(self._library.ul_finish(device, stream))

    def _address(self, function: ctypes._NamedFuncPointer, *arguments: object) -> int:
        address = c_uint64()
        self.check(function(*arguments, byref(address)))
        return address.value
