"""The copy engine alone: every way to ask the runtime for a pitched copy to a peer, timed without the exchange around it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ithaka.comm_ext.build import find_library
from ithaka.comm_ext.ulysses.cuda_arena import Arena, PeerArenas
from ithaka.comm_ext.ulysses.cuda_library import CudaLibrary

DEFAULT_KIND, DEVICE_TO_DEVICE = 4, 3
ROW_BYTES = (1536, 5120, 7168)
SIZES = (8 << 20, 84 << 20)
Copy = Callable[[int, "Pitched"], int]


class Position(ctypes.Structure):
    """cudaPos."""

    _fields_ = (("x", ctypes.c_size_t), ("y", ctypes.c_size_t), ("z", ctypes.c_size_t))


class PitchedPointer(ctypes.Structure):
    """cudaPitchedPtr."""

    _fields_ = (
        ("pointer", ctypes.c_void_p),
        ("pitch", ctypes.c_size_t),
        ("x_bytes", ctypes.c_size_t),
        ("y_rows", ctypes.c_size_t),
    )


class Extent(ctypes.Structure):
    """cudaExtent."""

    _fields_ = (("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("depth", ctypes.c_size_t))


class Copy3D(ctypes.Structure):
    """cudaMemcpy3DParms."""

    _fields_ = (
        ("source_array", ctypes.c_void_p),
        ("source_position", Position),
        ("source", PitchedPointer),
        ("target_array", ctypes.c_void_p),
        ("target_position", Position),
        ("target", PitchedPointer),
        ("extent", Extent),
        ("kind", ctypes.c_int),
    )


class Copy3DPeer(ctypes.Structure):
    """cudaMemcpy3DPeerParms."""

    _fields_ = (
        ("source_array", ctypes.c_void_p),
        ("source_position", Position),
        ("source", PitchedPointer),
        ("source_device", ctypes.c_int),
        ("target_array", ctypes.c_void_p),
        ("target_position", Position),
        ("target", PitchedPointer),
        ("target_device", ctypes.c_int),
        ("extent", Extent),
    )


@dataclass(frozen=True, slots=True)
class Pitched:
    """Rows from here to the next rank."""

    source: int
    target: int
    source_pitch: int
    target_pitch: int
    width: int
    height: int

    def part(self, index: int, parts: int) -> Pitched:
        """One of ``parts`` of its rows."""
        rows = self.height // parts
        return Pitched(
            self.source + index * rows * self.source_pitch,
            self.target + index * rows * self.target_pitch,
            self.source_pitch,
            self.target_pitch,
            self.width,
            rows,
        )


class Copies:
    """The calls, and the memory they work on. One rank of two or more."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self._rank, self._peer = rank, (rank + 1) % num_ranks
        path = find_library()
        assert path is not None, "build the engine first: python -m ithaka.comm_ext.build"
        library = CudaLibrary(path)
        self._runtime: Any = ctypes.CDLL(f"libcudart.so.{str(torch.version.cuda).split('.')[0]}")
        address, size = ctypes.c_void_p, ctypes.c_size_t
        self._runtime.cudaMemcpy2DAsync.argtypes = (address, size, address, size, size, size, ctypes.c_int, address)
        self._source = torch.zeros(2 * SIZES[-1], dtype=torch.uint8, device="cuda")
        self._arena = Arena(library, rank, 2 * SIZES[-1])
        cards: list[Any] = [None] * num_ranks
        dist.all_gather_object(cards, {"pid": os.getpid(), "handle": self._arena.export().hex()})
        self._peers = PeerArenas(library, rank)
        self._target = self._peers.open(rank, self._arena, cards)[self._peer] + (1 << 20)
        self._streams = [torch.cuda.Stream(priority=-1) for _ in range(4)]  # type: ignore[no-untyped-call]

    def all(self) -> Iterator[tuple[str, int, Callable[[], None]]]:
        """Name, bytes and call of everything to time; what may not be recordable comes last."""
        flat = partial(self._flat, DEFAULT_KIND)
        ways: dict[str, tuple[Copy, int]] = {
            "2D default": (flat, 1),
            "2D device to device": (partial(self._flat, DEVICE_TO_DEVICE), 1),
            "3D": (self._deep, 1),
            "2D default on 2 streams": (flat, 2),
            "2D default on 4 streams": (flat, 4),
            "3D peer": (self._deep_peer, 1),
        }
        for way, (copy, parts) in ways.items():
            for size in SIZES:
                for name, job in self._jobs(size).items():
                    yield f"{name}, {way}", job.width * job.height, partial(self._on_streams, copy, job, parts)

    def _jobs(self, size: int) -> dict[str, Pitched]:
        source, target = self._source.data_ptr(), self._target
        jobs = {"contiguous": Pitched(source, target, size // 4, size // 4, size // 4, 4)}
        for width in ROW_BYTES:
            height = size // width // 4 * 4
            jobs[f"from every second {width} bytes"] = Pitched(source, target, 2 * width, width, width, height)
            jobs[f"to every second {width} bytes"] = Pitched(source, target, width, 2 * width, width, height)
        return jobs

    def close(self) -> None:
        """Unmap; all ranks."""
        torch.cuda.synchronize()
        self._peers.close()
        dist.barrier()

    def _on_streams(self, copy: Copy, job: Pitched, parts: int) -> None:
        current = torch.cuda.current_stream()
        for index, stream in enumerate(self._streams[:parts]):
            stream.wait_stream(current)
            status = copy(stream.cuda_stream, job.part(index, parts))
            assert status == 0, f"CUDA error {status}"
        for stream in self._streams[:parts]:
            current.wait_stream(stream)

    def _flat(self, kind: int, stream: int, job: Pitched) -> int:
        return int(
            self._runtime.cudaMemcpy2DAsync(
                job.target, job.target_pitch, job.source, job.source_pitch, job.width, job.height, kind, stream
            )
        )

    def _deep(self, stream: int, job: Pitched) -> int:
        copy = Copy3D(
            source=PitchedPointer(job.source, job.source_pitch, job.width, job.height),
            target=PitchedPointer(job.target, job.target_pitch, job.width, job.height),
            extent=Extent(job.width, job.height, 1),
            kind=DEFAULT_KIND,
        )
        return int(self._runtime.cudaMemcpy3DAsync(ctypes.byref(copy), ctypes.c_void_p(stream)))

    def _deep_peer(self, stream: int, job: Pitched) -> int:
        copy = Copy3DPeer(
            source=PitchedPointer(job.source, job.source_pitch, job.width, job.height),
            source_device=self._rank,
            target=PitchedPointer(job.target, job.target_pitch, job.width, job.height),
            target_device=self._peer,
            extent=Extent(job.width, job.height, 1),
        )
        return int(self._runtime.cudaMemcpy3DPeerAsync(ctypes.byref(copy), ctypes.c_void_p(stream)))
