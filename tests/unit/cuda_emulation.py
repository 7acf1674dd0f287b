"""The CUDA engine compiled for the CPU, and ranks as threads that use it: its own host code and kernels, run for real."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from ithaka.comm_ext.build import SOURCES
from ithaka.comm_ext.ulysses import call_sites, cuda_member
from ithaka.comm_ext.ulysses.call_counters import Ranges
from ithaka.comm_ext.ulysses.cuda_arena import WINDOW_OFFSET, WORDS_BYTES, Arena
from ithaka.comm_ext.ulysses.cuda_binding import Placement, Seat, bind
from ithaka.comm_ext.ulysses.cuda_calibration import Launch
from ithaka.comm_ext.ulysses.cuda_library import REGION_BYTES, CudaLibrary, PlanStruct, TurnStruct
from ithaka.comm_ext.ulysses.cuda_window import Window
from ithaka.comm_ext.ulysses.plan import ExchangePlan

T = TypeVar("T")
DEADLINE_S = 60
SHIM = Path(__file__).parent / "cuda_on_cpu"
THREADS_OF_A_BLOCK = 8


def compile_engine(folder: Path, threads_of_a_block: int = THREADS_OF_A_BLOCK, trial: Sequence[str] = ()) -> Path:
    """The engine for this CPU; blocks of few threads, since each is a thread. Half of a block is a warp."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    assert compiler, "these tests need a C++ compiler"
    target = folder / "engine.so"
    flags = ["-std=c++20", "-O1", "-Wall", "-Werror", "-Wno-unknown-pragmas", "-shared", "-fPIC", "-pthread"]
    stand_ins = ['-DUL_INTRINSICS="intrinsics.h"', '-DUL_FUSED_INTRINSICS="fused_intrinsics.h"']
    defines = [
        f"-DUL_THREADS={threads_of_a_block}",
        *stand_ins,
        *(f"-D{define}" for define in trial),
        f"-I{SHIM}",
        f"-I{SOURCES}",
    ]
    subprocess.run([compiler, *flags, *defines, str(SHIM / "engine.cpp"), "-o", str(target)], check=True)
    return target


@dataclass(slots=True)
class EmulatedSite:
    """A call site as the exchange keeps it."""

    plans: Sequence[ExchangePlan]
    placement: Placement
    launch: Launch
    turn: TurnStruct = field(default_factory=TurnStruct)
    uses: int = 0
    structs: list[PlanStruct] = field(default_factory=list)

    @property
    def slot(self) -> int:
        """Of the newest use."""
        return (self.uses - 1) % self.placement.num_slots


class EmulatedRank:
    """One rank: its arena, its words, its calls."""

    def __init__(self, library: CudaLibrary, path: Path, rank: int, window_bytes: int, timeout_s: float) -> None:
        self.library, self.rank = library, rank
        self.arena = library.create_arena(0, WINDOW_OFFSET + window_bytes, WINDOW_OFFSET)
        self.host_words, mapped = library.create_host_words(0)
        self.words = memoryview((ctypes.c_char * 16).from_address(self.host_words)).cast("B").cast("Q")
        self.lane = library.create_lane(0)
        self._mapped, self._timeout_ns = mapped, int(timeout_s * 1e9)
        self._runtime = _runtime_of(path)
        self.seat = Seat(0, rank, (), mapped, self._timeout_ns)
        self._graphs: list[int] = []

    def meet(self, arenas: tuple[int, ...]) -> None:
        """Learn where everybody's arena is."""
        self.seat = Seat(0, self.rank, arenas, self._mapped, self._timeout_ns)

    def record(self, recording: int, body: Callable[[], None]) -> int:
        """What ``body`` calls, recorded under a number of its own; for ``replay``."""
        graph: int = self._runtime.cpu_record_begin(recording)
        body()
        self._runtime.cpu_record_end()
        self._graphs.append(graph)
        return graph

    def replay(self, graph: int) -> None:
        """Make the recorded calls."""
        self._runtime.cpu_replay(graph)

    def exchange(self, site: EmulatedSite, tensors: Sequence[torch.Tensor], targets: Sequence[torch.Tensor] = ()) -> int:
        """Send and wait; the slot."""
        struct, sources = self._begin(site, tensors)
        out = (ctypes.c_uint64 * 3)(*[target.data_ptr() for target in targets])
        status = self.library.exchange(
            ctypes.addressof(struct),
            self.lane,
            ctypes.addressof(site.turn),
            site.slot,
            ctypes.addressof(sources),
            ctypes.addressof(out) if targets else None,
            None,
        )
        self.library.check(status)
        return site.slot

    def send(self, site: EmulatedSite, tensors: Sequence[torch.Tensor]) -> None:
        """Send only."""
        struct, sources = self._begin(site, tensors)
        arguments = (ctypes.addressof(struct), self.lane, ctypes.addressof(site.turn), site.slot, ctypes.addressof(sources))
        self.library.check(self.library.send(*arguments, None))

    def wait(self, sites: Sequence[EmulatedSite]) -> None:
        """One wait for all."""
        plans = (ctypes.c_void_p * len(sites))(*[ctypes.addressof(site.structs[-1]) for site in sites])
        lanes = (ctypes.c_void_p * len(sites))(*[self.lane] * len(sites))
        self.library.check(self.library.wait(plans, lanes, len(sites), None))

    def result(self, site: EmulatedSite, tensor: int) -> torch.Tensor:
        """A tensor on the newest slot's bytes."""
        plan = site.plans[tensor]
        offset = sum(earlier.slot_bytes for earlier in site.plans[:tensor])
        count = torch.Size(plan.output_shape).numel() * plan.item_bytes
        address = self.arena + site.placement.window + site.slot * site.placement.slot_bytes + offset
        flat = torch.frombuffer((ctypes.c_char * count).from_address(address), dtype=torch.uint8)
        return flat.view(getattr(torch, plan.dtype)).view(plan.output_shape)

    def free(self) -> None:
        """Give all of it back."""
        self.words.release()
        self.library.destroy_lane(0, self.lane)
        for graph in self._graphs:
            self._runtime.cpu_record_free(graph)
        self.library.free_host_words(self.host_words)
        self.library.free_arena(0, self.arena)

    def _begin(self, site: EmulatedSite, tensors: Sequence[torch.Tensor]) -> tuple[PlanStruct, ctypes.Array[ctypes.c_uint64]]:
        struct = bind(site.plans, [tensor.stride() for tensor in tensors], 16, self.seat, site.placement, site.launch)
        assert struct is not None
        site.structs = [struct]
        site.uses += 1
        return struct, (ctypes.c_uint64 * 3)(*[tensor.data_ptr() for tensor in tensors])


def pretend_devices(monkeypatch: pytest.MonkeyPatch, engine: Path) -> None:
    """Communicators on cuda:0 use this engine, and their tensors stay on the CPU."""
    construct: Callable[..., None] = Window.__init__

    def constructed(self: Window, arena: Arena, device: torch.device, max_bytes: int) -> None:
        construct(self, arena, torch.device("cpu"), max_bytes)

    def flat(self: Window, offset: int, num_bytes: int) -> torch.Tensor:
        memory = (ctypes.c_char * num_bytes).from_address(self._arena.address + offset)
        memory.arena = self._arena  # type: ignore[attr-defined]
        return torch.frombuffer(memory, dtype=torch.uint8)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: None, raising=False)
    monkeypatch.setattr(cuda_member, "find_library", lambda: engine)
    monkeypatch.setattr(call_sites, "check_input", lambda x, device: None)
    monkeypatch.setattr(call_sites, "Ranges", lambda device: Ranges(torch.device("cpu")))
    monkeypatch.setattr("ithaka.comm_ext.ulysses.validation.check_input", lambda x, device: None)
    monkeypatch.setattr(Window, "__init__", constructed)
    monkeypatch.setattr(Window, "flat", flat)


def _runtime_of(path: Path) -> ctypes.CDLL:
    runtime = ctypes.CDLL(str(path))
    runtime.cpu_record_begin.argtypes, runtime.cpu_record_begin.restype = (ctypes.c_ulonglong,), ctypes.c_void_p
    for function in (runtime.cpu_replay, runtime.cpu_record_free):
        function.argtypes = (ctypes.c_void_p,)
    return runtime


def place(plans: Sequence[ExchangePlan], index: int, offset: int, num_slots: int, signature: int) -> Placement:
    """Region number ``index``, its slots ``offset`` bytes into the window."""
    slot_bytes = sum(plan.slot_bytes for plan in plans)
    return Placement(WORDS_BYTES + index * REGION_BYTES, WINDOW_OFFSET + offset, slot_bytes, num_slots, signature)


def on_every_rank(
    path: Path, num_ranks: int, body: Callable[[EmulatedRank], T], *, window_bytes: int = 1 << 22, timeout_s: float = 20.0
) -> list[T]:
    """``body`` in one thread per rank; results by rank, the first failure is raised."""
    library = CudaLibrary(path)
    ranks = [EmulatedRank(library, path, rank, window_bytes, timeout_s) for rank in range(num_ranks)]
    arenas = tuple(rank.arena for rank in ranks)
    outcomes: list[T | BaseException] = [RuntimeError("did not run")] * num_ranks

    def run(rank: EmulatedRank) -> None:
        rank.meet(arenas)
        try:
            outcomes[rank.rank] = body(rank)
        except BaseException as error:
            outcomes[rank.rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "a rank hangs"
    for rank in ranks:
        rank.free()
    results = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results
