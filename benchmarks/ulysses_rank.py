"""One rank of the exchange benchmark: a process with a GPU. Started by ``benchmarks/ulysses.py``."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from tests.gpu.exchange_checks import check_alternation, check_cases, check_graphs, check_tagged_group

from benchmarks.ulysses_choice import choose_table
from benchmarks.ulysses_peers import find_peers
from ithaka.comm_ext.ulysses.communicator import Backend, UlyssesCommunicator
from ithaka.comm_ext.ulysses.cuda_calibration import Calibration, Launch, Row
from ithaka.comm_ext.ulysses.group import RankGroup
from ithaka.comm_ext.ulysses.plan import Direction

HEAD_DIM = 128
SHAPES = ((256, 8), (4680, 12), (6240, 40), (32760, 12), (32760, 40), (37888, 56))  # tokens and heads of all ranks
FLOOR_SHAPE = (32, 2)  # hardly any bytes: what a call costs at least
JOINT_SHAPES = ((4680, 12), (6240, 40))
GRAPH_CALLS = 20
SHORT_ROWS = ((655200, 2), (163800, 8))  # the bytes of SHAPES[4] in rows of 256 and 1024 bytes between two ranks
SWEPT_SHAPES = (FLOOR_SHAPE, SHAPES[0], (1024, 16), *SHAPES[1:], *SHORT_ROWS)
KERNEL_ALONE = ((8, 8), (16, 8), (16, 16), (32, 16), (32, 32), (64, 32), (64, 64), (100, 32), (132, 132))
WITH_COPIES = (
    (0, 32, 1.0),
    (0, 64, 1.0),
    (0, 100, 1.0),
    (4, 64, 0.98),
    (8, 64, 0.95),
    (16, 64, 0.9),
    (32, 64, 0.75),
    (32, 64, 0.5),
    (64, 64, 0.5),
    (64, 64, 0.25),
    (64, 64, 0.75),
    (16, 32, 0.8),
)
SWEPT = tuple(Launch(remote, local, 0.0) for remote, local in KERNEL_ALONE) + tuple(Launch(*one) for one in WITH_COPIES)


@dataclass(frozen=True, slots=True)
class Job:
    """What the parent asks of each rank."""

    rank: int
    num_ranks: int
    mode: str
    fds: tuple[tuple[int, int], ...]
    port: int
    directory: str | None


class Processes:
    """Ranks in processes of their own meet through torch and need no turns (see tests.gpu.exchange_checks.Together)."""

    def meet(self) -> None:
        """Return when all ranks have come here."""
        torch.cuda.synchronize()
        dist.barrier()

    def alone(self) -> AbstractContextManager[object]:
        """Nothing to keep others from."""
        return nullcontext()


class Timer:
    """Median over samples of the slower rank, in µs a call."""

    def __init__(self) -> None:
        self.stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def eager(self, call: Callable[[], object], samples: int = 30) -> float:
        """Ten calls in a row."""
        with torch.cuda.stream(self.stream):
            for _ in range(8):
                call()
        torch.cuda.synchronize()
        dist.barrier()

        def run() -> None:
            for _ in range(10):
                call()  # results are dropped at once: a lease that is held would end the run

        return self._median(run, 10, samples)

    def graph(self, call: Callable[[], object], samples: int = 20) -> float:
        """A graph of GRAPH_CALLS calls."""
        with torch.cuda.stream(self.stream):
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        dist.barrier()
        with torch.cuda.stream(self.stream):  # torch.cuda.graph would collect garbage first, for a tenth of a second
            graph.capture_begin()
            for _ in range(GRAPH_CALLS):
                call()
            graph.capture_end()
        torch.cuda.synchronize()
        dist.barrier()
        graph.replay()
        torch.cuda.synchronize()
        return self._median(graph.replay, GRAPH_CALLS, samples)

    def host(self, call: Callable[[], object]) -> float:
        """The thread's own time for a call, the device kept from falling behind."""
        times = []
        with torch.cuda.stream(self.stream):
            for _ in range(20):
                torch.cuda.synchronize()
                dist.barrier()
                began = time.perf_counter()
                for _ in range(20):
                    call()
                times.append((time.perf_counter() - began) / 20 * 1e6)
        return self._slower(times)

    def _median(self, run: Callable[[], object], calls: int, samples: int) -> float:
        times = []
        for _ in range(samples):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            with torch.cuda.stream(self.stream):
                start.record()
                run()
                end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) / calls * 1e3)
        return self._slower(times)

    def _slower(self, times: Sequence[float]) -> float:
        slower = torch.tensor(statistics.median(times))
        dist.all_reduce(slower, op=dist.ReduceOp.MAX)
        return round(float(slower), 1)


class Bench:
    """The modes of the benchmark, on one rank."""

    def __init__(self, job: Job) -> None:
        self.job, self.timer = job, Timer()
        self.device = torch.device("cuda", job.rank)
        self._fds: Iterator[tuple[int, int]] = iter(job.fds)

    def communicator(self, backend: Backend = "auto", calibration: Calibration | None = None) -> UlyssesCommunicator:
        """A communicator on the next group of descriptors, large enough for every shape."""
        per_pair = [2 * 3 * tokens * heads * HEAD_DIM * 2 // self.job.num_ranks for tokens, heads in (*SHAPES, *SHORT_ROWS)]
        joint = [3 * 3 * tokens * heads * HEAD_DIM * 2 // self.job.num_ranks for tokens, heads in JOINT_SHAPES]
        group = RankGroup.from_fds(rank=self.job.rank, num_ranks=self.job.num_ranks, fds=next(self._fds))
        return UlyssesCommunicator(
            group,
            max_bytes=sum(per_pair) + sum(joint) + (1 << 28),
            backend=backend,
            device=self.device,
            calibration=calibration,
            timeout_s=5.0,
        )

    def check(self) -> None:
        """All engines against slicing, on real devices, with late ranks, tags and graphs."""
        rank, ranks = self.job.rank, self.job.num_ranks

        def delay(turn: int) -> None:
            if turn % (3 * ranks) == 3 * rank:
                torch.cuda._sleep(1_000_000)  # type: ignore[no-untyped-call]

        engines = {"sm": Launch(100, 32, 0.0), "hybrid": Launch(32, 16, 0.5), "copy_engine": Launch(0, 32, 1.0)}
        for name, launch in engines.items():
            began = time.monotonic()
            with torch.cuda.stream(self.timer.stream), self.communicator(calibration=_only(launch)) as ours:
                check_cases(ours, rounds=4)
                check_alternation(ours, 1000, delay)
                check_tagged_group(ours, 20)
                check_graphs(ours, 40, delay, Processes())
                torch.cuda.current_stream().synchronize()
                ours.check()
            self.say(f"check {name}: bit-exact, {time.monotonic() - began:.1f} s")

    def table(self) -> None:
        """Ours beside the peers for every shape, then Q+K+V in one call, host time, and one contiguous peer copy."""
        backends: tuple[Backend, ...] = ("auto", "sm", "copy_engine")
        ours: dict[Backend, UlyssesCommunicator] = {name: self.communicator(name) for name in backends}
        largest = max(tokens * heads for tokens, heads in SHAPES) * HEAD_DIM * 2 // self.job.num_ranks
        peers = find_peers(self.job.num_ranks, self.job.rank, largest)
        for direction in Direction:
            for tokens, heads in SHAPES:
                x, wanted = self._draw(direction, tokens, heads)
                calls: dict[str, Callable[[], torch.Tensor]] = {
                    name: _call(communicator, direction, x, "bench") for name, communicator in ours.items()
                }
                calls |= {name: makers[direction is Direction.GATHER](x) for name, makers in peers.items()}
                row = {name: self._measured(call, wanted) for name, call in calls.items()}
                self.say(f"{direction} {tokens}x{heads}: " + ", ".join(f"{name} {text}" for name, text in row.items()))
        self._joint(ours)
        x, _ = self._draw(Direction.SCATTER, *SHAPES[0])
        for name, communicator in ours.items():
            self.say(
                f"host time of an eager call, {name}: {self.timer.host(_call(communicator, Direction.SCATTER, x, 'bench'))} us"
            )
        for communicator in ours.values():
            communicator.close()

    def sweep(self) -> dict[str, dict[str, float]]:
        """Every launch of SWEPT for every shape, in a graph: what a calibration is chosen from."""
        number = torch.zeros(1, device=self.device)
        self.say(f"one tiny kernel in a graph: {self.timer.graph(partial(number.add_, 1))} us")
        found: dict[str, dict[str, float]] = {}
        for launch in SWEPT:
            for shape, time_us in self._times(launch, SWEPT_SHAPES).items():
                found.setdefault(shape, {})[launch.facts()] = time_us
        for shape, row in found.items():
            best = sorted(row.items(), key=lambda item: item[1])[:6]
            self.say(f"sweep {shape}: " + " | ".join(f"{_short(facts)} {time_us}" for facts, time_us in best))
        self._leave("ulysses_sweep.json", found)
        return found

    def calibrate(self) -> None:
        """Sweep, choose, leave the table."""
        table = choose_table(self.sweep(), self.job.num_ranks, HEAD_DIM * 2, self._machine())
        self._leave("cuda_calibration.json", table)
        self.say(json.dumps(table, indent=1))

    def say(self, text: str) -> None:
        """Print once for all ranks."""
        if self.job.rank == 0:
            print(text, flush=True)

    def _times(self, launch: Launch, shapes: Sequence[tuple[int, int]]) -> dict[str, float]:
        """µs of calls made this way, by direction and shape; launches that can't be best for a shape are left out."""
        times = {}
        with self.communicator(calibration=_only(launch)) as ours:
            for tokens, heads in shapes:
                wire = tokens * heads * HEAD_DIM * 2 // self.job.num_ranks**2 * (self.job.num_ranks - 1)
                if (launch.copied and wire < 3e6) or (0 < launch.remote_blocks <= 16 and wire > 8e6 and not launch.copied):
                    continue
                for direction in Direction:
                    x, _ = self._draw(direction, tokens, heads)
                    times[f"{direction} {tokens}x{heads}"] = self.timer.graph(_call(ours, direction, x, "sweep"), samples=6)
        return times

    def _machine(self) -> str:
        return f"{self.job.num_ranks} x {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"

    def _leave(self, name: str, plain: object) -> None:
        if self.job.directory and self.job.rank == 0:
            with open(os.path.join(self.job.directory, name), "w") as file:
                json.dump(plain, file, indent=1)

    def _joint(self, ours: dict[Backend, UlyssesCommunicator]) -> None:
        for tokens, heads in JOINT_SHAPES:
            qkv = [self._draw(Direction.SCATTER, tokens, heads)[0] for _ in range(3)]
            calls = {name: partial(communicator.scatter_qkv, *qkv) for name, communicator in ours.items()}
            row = {name: f"{self.timer.eager(call)} ({self.timer.graph(call)})" for name, call in calls.items()}
            self.say(f"Q+K+V {tokens}x{heads}: " + ", ".join(f"{name} {text}" for name, text in row.items()))
        for tokens, heads in (SHAPES[3], SHAPES[4], (3 * 6240, 40)):
            wire = tokens * heads * HEAD_DIM * 2 // self.job.num_ranks // self.job.num_ranks
            source = torch.empty(wire, dtype=torch.uint8, device=self.device)
            target = torch.empty(wire, dtype=torch.uint8, device=f"cuda:{(self.job.rank + 1) % self.job.num_ranks}")
            copied = self.timer.eager(partial(target.copy_, source, non_blocking=True))
            self.say(f"contiguous copy to the next device, {wire / 1e6:.1f} MB: {copied} us")

    def _measured(self, call: Callable[[], torch.Tensor], wanted: torch.Tensor) -> str:
        try:
            with torch.cuda.stream(self.timer.stream):
                equal = torch.equal(call().reshape(wanted.shape), wanted)
            torch.cuda.synchronize()
            return f"{self.timer.eager(call)} ({self.timer.graph(call)})" + ("" if equal else " WRONG")
        except Exception as error:  # the other columns are still wanted
            return repr(error)[:120]

    def _draw(self, direction: Direction, tokens: int, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator(device=self.device).manual_seed(tokens * heads)
        whole = torch.randn(1, tokens, heads, HEAD_DIM, device=self.device, dtype=torch.bfloat16, generator=generator)
        by_sequence = whole.chunk(self.job.num_ranks, 1)[self.job.rank].contiguous()
        by_heads = whole.chunk(self.job.num_ranks, 2)[self.job.rank].contiguous()
        torch.cuda.synchronize()
        return (by_sequence, by_heads) if direction is Direction.SCATTER else (by_heads, by_sequence)


def _call(communicator: UlyssesCommunicator, direction: Direction, x: torch.Tensor, tag: str) -> Callable[[], torch.Tensor]:
    exchange = communicator.scatter_heads if direction is Direction.SCATTER else communicator.gather_heads
    return lambda: exchange(x, tag=tag)


def _only(launch: Launch) -> Calibration:
    return Calibration("one launch", (Row(2, 1 << 60, launch),))


def _short(facts: str) -> str:
    return facts.replace("remote=", "").replace(" local=", "+").replace(" copied=0", "").replace(" copied=", "c")


def main() -> None:
    """Run one mode: ``python -m benchmarks.ulysses_rank JOB`` with the job as JSON."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no rank outlives its parent
    plain: dict[str, Any] = json.loads(sys.argv[1])
    job = Job(**{**plain, "fds": tuple(tuple(pair) for pair in plain["fds"])})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(job.port))
    torch.cuda.set_device(job.rank)
    device = torch.device("cuda", job.rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=job.rank, world_size=job.num_ranks, device_id=device)
    getattr(Bench(job), job.mode)()
    torch.cuda.synchronize()
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # the peers' libraries are not asked to tear down


if __name__ == "__main__":
    main()
