"""Device memory that peers write into: this rank's arena, the peers' arenas as mapped here, and the pinned words beside them.

words (fault, told) | regions, REGION_BYTES each | window: the slots of all call sites
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ithaka.comm_ext.ulysses.cuda_library import HOST_WORDS_BYTES, REGION_BYTES, CudaCallError, CudaLibrary

MAX_REGIONS = 64
WORDS_BYTES = 4096
WINDOW_OFFSET = WORDS_BYTES + -(-MAX_REGIONS * REGION_BYTES // 4096) * 4096


class Arena:
    """One rank's device memory. Freed when it and every tensor on it are gone, so that a lease never dangles."""

    def __init__(self, library: CudaLibrary, device: int, max_bytes: int) -> None:
        self._library, self._device = library, device
        self.address = 0
        self.address = library.create_arena(device, WINDOW_OFFSET + max_bytes, WINDOW_OFFSET)

    def export(self) -> bytes:
        """The handle for other processes."""
        return self._library.export_handle(self._device, self.address)

    def lend(self, offset: int, num_bytes: int) -> ArenaBytes:
        """Bytes for a tensor to stand on; it keeps the arena alive."""
        return ArenaBytes(self, self.address + offset, num_bytes)

    def __del__(self) -> None:
        if self.address:
            self._library.free_arena(self._device, self.address)


class ArenaBytes:
    """A range of the arena as ``torch.as_tensor`` takes it."""

    def __init__(self, arena: Arena, address: int, num_bytes: int) -> None:
        self._arena = arena
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class PeerArenas:
    """The arenas of all ranks as addresses in this process. Raises CudaCallError if one can't be reached."""

    def __init__(self, library: CudaLibrary, device: int) -> None:
        self._library, self._device = library, device
        self._opened: list[int] = []

    def open(self, own_rank: int, own: Arena, cards: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """Map every peer's arena: by handle from another process, as it is from this one."""
        addresses = []
        for rank, card in enumerate(cards):
            if rank == own_rank:
                addresses.append(own.address)
            elif card["pid"] == os.getpid():
                self._library.enable_peer(self._device, card["device"])
                addresses.append(card["address"])
            else:
                address = self._library.open_handle(self._device, bytes.fromhex(card["handle"]))
                self._opened.append(address)
                addresses.append(address)
        return tuple(addresses)

    def close(self) -> list[str]:
        """Unmap them; what went wrong, in words."""
        faults = []
        while self._opened:
            try:
                self._library.close_handle(self._device, self._opened.pop())
            except CudaCallError as error:
                faults.append(str(error))
        return faults


class HostWords:
    """Words in pinned memory that the device reads (abort) and writes (fault); a look costs no CUDA call."""

    ABORT, FAULT = 0, 1

    def __init__(self, library: CudaLibrary, device: int) -> None:
        self._library = library
        self._address, self.device_address = library.create_host_words(device)
        buffer = (ctypes.c_char * HOST_WORDS_BYTES).from_address(self._address)
        self.words = memoryview(buffer).cast("B").cast("Q")

    def free(self) -> None:
        """Give them back; no kernel may be running that uses them."""
        self.words.release()
        self._library.free_host_words(self._address)
