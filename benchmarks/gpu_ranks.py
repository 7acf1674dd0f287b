"""Ranks of a benchmark as processes with a GPU each: the parent's end and the rank's."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.cuda_calibration import Calibration
from ithaka.comm_ext.ulysses.group import GroupDescriptors, RankGroup

Call = Callable[[], object]
Backend = Literal["auto", "copy_engine", "sm"]


def start_ranks(module: str, num_groups: int) -> int:
    """Run ``module`` once per GPU with a description of its seats, for ``num_groups`` communicators; 0 if all ended well."""
    num_ranks = torch.cuda.device_count()
    if num_ranks < 2:
        sys.stderr.write("an exchange needs two GPUs at least\n")
        return 1
    groups = [GroupDescriptors.create(num_ranks) for _ in range(num_groups)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    seats = {"num_ranks": num_ranks, "port": port, "fds": [list(group.fds) for group in groups]}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", module, json.dumps({**seats, "rank": rank})],
            pass_fds=[fd for group in groups for fd in group.fds],
        )
        for rank in range(num_ranks)
    ]
    for group in groups:
        group.close()
    return 1 if any([rank.wait() for rank in ranks]) else 0


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank's end."""

    rank: int
    num_ranks: int
    device: torch.device
    stream: torch.cuda.Stream
    fds: Iterator[list[int]]

    def open(self, max_bytes: int, *, backend: Backend = "auto", calibration: Calibration | None = None) -> UlyssesCommunicator:
        """A communicator on the next group."""
        group = RankGroup.from_fds(rank=self.rank, num_ranks=self.num_ranks, fds=next(self.fds))
        return UlyssesCommunicator(
            group, max_bytes=max_bytes, backend=backend, device=self.device, calibration=calibration, timeout_s=10.0
        )

    def say(self, text: str) -> None:
        """Print once for all ranks."""
        if self.rank == 0:
            print(text, flush=True)

    def eager_us(self, call: Call, calls: int = 10, samples: int = 20) -> float:
        """A call's time when ``calls`` follow each other; median of the slower rank."""

        def run() -> None:
            for _ in range(calls):
                call()  # results are dropped at once: a lease that is held would end the run

        run()
        return self._median_us(run, calls, samples)

    def graph_us(self, call: Call, calls: int = 20, samples: int = 20) -> float:
        """The same in a graph of ``calls``."""
        return self._median_us(recorded(call, calls), calls, samples)

    def _median_us(self, run: Call, calls: int, samples: int) -> float:
        times = []
        torch.cuda.synchronize()
        dist.barrier()
        for _ in range(samples):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            run()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) / calls * 1e3)
        slower = torch.tensor(statistics.median(times))
        dist.all_reduce(slower, op=dist.ReduceOp.MAX)
        return round(float(slower), 1)


@contextmanager
def enter_rank(description: str) -> Iterator[Rank]:
    """This process as one rank: device, current stream, torch's own group; ends the process."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no rank outlives its parent
    seats = json.loads(description)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(seats["port"]))
    device = torch.device("cuda", seats["rank"])
    torch.cuda.set_device(device)
    dist.init_process_group("gloo", rank=seats["rank"], world_size=seats["num_ranks"])
    stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream), torch.inference_mode():
        yield Rank(seats["rank"], seats["num_ranks"], device, stream, iter(seats["fds"]))
    torch.cuda.synchronize()
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def recorded(call: Call, calls: int) -> Call:
    """``calls`` calls as one graph, replayed once: its replay. All ranks."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    dist.barrier()
    graph.capture_begin(capture_error_mode="thread_local")
    for _ in range(calls):
        call()
    graph.capture_end()
    torch.cuda.synchronize()
    dist.barrier()
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay
