"""Ranks as threads of this process, each on a stream of its own, all on one GPU.

A device has few queues (CUDA_DEVICE_MAX_CONNECTIONS), and streams that share one wait for each other though nothing in their
work does: a rank's wait would then stand before the very work of another rank that it waits for. So streams and lanes are made
once and used by all tests, never more than there are queues; torch's own streams, over a hundred at the first use, stay away.
Memory is taken ahead too: to get some, a rank may have to wait for all that runs there, and so for one that waits for it. To
give some back is no better, and an error that a test has caught keeps its frames, and with them an arena, until a collection.
"""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, TypeVar
from unittest.mock import patch

import torch

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.cuda_calibration import Calibration, Launch, Row
from ithaka.comm_ext.ulysses.cuda_library import CudaLibrary
from ithaka.comm_ext.ulysses.group import GroupDescriptors, RankGroup

JOIN_DEADLINE_S = 40
_NON_BLOCKING = 1
T = TypeVar("T")


@cache
def stream_of(rank: int) -> torch.cuda.ExternalStream:
    """The stream of one rank, the same in all tests."""
    runtime = ctypes.CDLL(f"libcudart.so.{str(torch.version.cuda).split('.')[0]}")
    stream = ctypes.c_void_p()
    with torch.cuda.device(0):
        torch.cuda.init()  # type: ignore[no-untyped-call]
        status = runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), _NON_BLOCKING)
    assert status == 0 and stream.value, f"CUDA error {status}"
    made = torch.cuda.ExternalStream(stream.value, device=0)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(made):  # torch keeps what it took from the device, for this stream
        taken = [torch.empty(num_bytes, dtype=torch.uint8, device="cuda:0") for num_bytes in (*[1 << 20] * 64, 1 << 29)]
        del taken
    return made


class LaneStruct(ctypes.Structure):
    """UlLane."""

    _fields_ = (
        ("stream", ctypes.c_void_p),
        ("begun", ctypes.c_void_p),
        ("sent", ctypes.c_void_p),
    )


class Lanes:
    """Lanes of closed communicators serve the next ones. ``in_line``: copies are issued on their rank's own stream."""

    def __init__(self, *, in_line: bool) -> None:
        self._free: list[int] = []
        self._in_line = in_line
        self._lock, self._create = threading.Lock(), CudaLibrary.create_lane

    def create(self, library: CudaLibrary, device: int) -> int:
        """In place of CudaLibrary.create_lane."""
        with self._lock:
            lane = self._free.pop() if self._free else self._create(library, device)
            if self._in_line:
                LaneStruct.from_address(lane).stream = torch.cuda.current_stream().cuda_stream
            return lane

    def destroy(self, library: CudaLibrary, device: int, lane: int) -> None:
        """In place of CudaLibrary.destroy_lane."""
        with self._lock:
            self._free.append(lane)


_LANES = {in_line: Lanes(in_line=in_line) for in_line in (False, True)}


class Threads:
    """See exchange_checks.Together."""

    def __init__(self, num_ranks: int) -> None:
        self._barrier, self._lock = threading.Barrier(num_ranks, timeout=JOIN_DEADLINE_S), threading.Lock()

    def meet(self) -> None:
        """See Together."""
        self._barrier.wait()

    def alone(self) -> AbstractContextManager[object]:
        """See Together."""
        return self._lock


def only(launch: Launch) -> Calibration:
    """A table that makes every call this way."""
    return Calibration("test", (Row(2, 1 << 60, launch),))


def engines(num_ranks: int) -> dict[str, Calibration]:
    """Each engine with so few blocks that all ranks fit on one GPU at once."""
    remote = max(4, 64 // num_ranks)
    return {
        "sm": only(Launch(remote, 4, 0.0)),
        "hybrid": only(Launch(remote, 4, 0.5)),
        "copy_engine": only(Launch(0, 4, 1.0)),
    }


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Garbage of earlier tests goes before, by a thread that nobody waits for; none while ranks wait for each other."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def on_every_seat(num_ranks: int, body: Callable[[RankGroup], T], *, in_line: bool = False) -> list[T | Exception]:
    """``body`` in one thread per rank, each on its own stream; what each returned or raised, by rank."""
    descriptors = GroupDescriptors.create(num_ranks)
    outcomes: list[T | Exception] = [RuntimeError("did not run")] * num_ranks

    streams = [stream_of(rank) for rank in range(num_ranks)]

    def run(seat: RankGroup) -> None:
        try:
            with torch.cuda.device(0), torch.cuda.stream(streams[seat.rank]):
                outcomes[seat.rank] = body(seat)
        except Exception as error:
            outcomes[seat.rank] = error

    threads = [threading.Thread(target=run, args=(descriptors.seat(rank),), daemon=True) for rank in range(num_ranks)]
    descriptors.close()
    lanes = _LANES[in_line]
    patched = patch.multiple(
        CudaLibrary,
        create_lane=lambda *arguments: lanes.create(*arguments),
        destroy_lane=lambda *arguments: lanes.destroy(*arguments),
    )
    with nothing_collected(), patched:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(JOIN_DEADLINE_S)
            assert not thread.is_alive(), "a rank hangs"
    return outcomes


def on_every_rank(num_ranks: int, body: Callable[[UlyssesCommunicator], T], **options: Any) -> list[T]:
    """With a communicator that is closed afterwards; all failures are raised."""

    def run(seat: RankGroup) -> T:
        options_of_rank = {"max_bytes": 1 << 28, "timeout_s": 10.0, "device": torch.device("cuda", 0), **options}
        with UlyssesCommunicator(seat, **options_of_rank) as communicator:
            result = body(communicator)
            torch.cuda.current_stream().synchronize()
            communicator.check()
            return result

    in_line = options.pop("in_line", False)
    results = []
    outcomes = on_every_seat(num_ranks, run, in_line=in_line)
    failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    if failures:
        raise ExceptionGroup("; ".join(str(failure)[:300] for failure in failures), failures)
    for outcome in outcomes:
        assert not isinstance(outcome, Exception)
        results.append(outcome)
    return results
