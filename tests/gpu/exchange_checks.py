"""What every group of GPUs must get right, written for one rank: loopback threads and real processes run the same checks.

All ranks draw the same whole tensor from the same seed, so each knows what it must receive. Mismatches are counted on the
device, so that calls follow each other without a synchronisation in between.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.plan import Direction, balanced_splits

POISON = 0xA5
Splits = tuple[int, ...]


class Together(Protocol):
    """What ranks that share a process and a GPU need around a recording, which synchronises the whole device."""

    def meet(self) -> None:
        """Return when all ranks have come here."""
        ...

    def alone(self) -> AbstractContextManager[object]:
        """Inside, no other rank of this process is inside."""
        ...


@dataclass(frozen=True, slots=True)
class Case:
    """One exchange, in whole shapes."""

    direction: Direction
    batch: int
    seq_splits: Splits
    head_splits: Splits
    dim: int
    dtype: torch.dtype
    arrangement: str = "contiguous"


@dataclass(frozen=True, slots=True)
class Drawn:
    """One rank's view of a case."""

    x: torch.Tensor
    wanted: torch.Tensor


def cases(num_ranks: int) -> list[Case]:
    """Head dims, head counts that divide and that don't, skewed sequences, batches, strides, element sizes."""
    scatter, gather = Direction.SCATTER, Direction.GATHER
    even, skewed = (64,) * num_ranks, tuple(17 + 40 * (rank % 3) for rank in range(num_ranks))
    found = [
        Case(direction, 1, even, balanced_splits(heads, num_ranks), dim, torch.bfloat16)
        for direction in (scatter, gather)
        for heads, dim in ((12, 128), (24, 64), (30, 80), (40, 96), (56, 256), (8, 128))
    ]
    for direction in (scatter, gather):
        found += [
            Case(direction, 1, skewed, balanced_splits(12, num_ranks), 128, torch.bfloat16),
            Case(direction, 2, skewed, balanced_splits(24, num_ranks), 64, torch.float32),
            Case(direction, 2, even, balanced_splits(16, num_ranks), 72, torch.float8_e4m3fn),
            Case(direction, 1, skewed, balanced_splits(9, num_ranks), 3, torch.int8),
            Case(direction, 1, even, balanced_splits(16, num_ranks), 128, torch.float16, "permuted"),
            Case(direction, 2, even, balanced_splits(16, num_ranks), 128, torch.bfloat16, "permuted"),
            Case(direction, 1, skewed, balanced_splits(16, num_ranks), 128, torch.bfloat16, "projection"),
        ]
    return found


def draw(case: Case, rank: int, device: torch.device, seed: int) -> Drawn:
    """The rank's input and its wanted result, bytes equal on all ranks for a seed."""
    generator = torch.Generator(device=device).manual_seed(seed)
    shape = (case.batch, sum(case.seq_splits), sum(case.head_splits), case.dim)
    size = (*shape[:3], shape[3] * case.dtype.itemsize)
    whole = torch.randint(0, 256, size, dtype=torch.uint8, device=device, generator=generator).view(case.dtype)
    by_sequence = torch.split(whole, list(case.seq_splits), 1)[rank]
    by_heads = torch.split(whole, list(case.head_splits), 2)[rank]
    x, wanted = (by_sequence, by_heads) if case.direction is Direction.SCATTER else (by_heads, by_sequence)
    return Drawn(_arranged(x, case.arrangement), wanted.contiguous())


def call(communicator: UlyssesCommunicator, case: Case, x: torch.Tensor, tag: str | None) -> torch.Tensor:
    """The case's exchange."""
    exchange = communicator.scatter_heads if case.direction is Direction.SCATTER else communicator.gather_heads
    return exchange(x, tag=tag, seq_splits=case.seq_splits, head_splits=case.head_splits)


def mismatches(got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """How many bytes differ, on the device."""
    return (got.contiguous().view(torch.uint8) != wanted.view(torch.uint8)).sum()


def assert_none(wrong: torch.Tensor, communicator: UlyssesCommunicator, what: str) -> None:
    """No byte was wrong, and no fault kept the bytes from coming."""
    count = int(wrong)
    communicator.check()
    assert count == 0, f"{what}: {count} wrong bytes"


def check_cases(communicator: UlyssesCommunicator, *, rounds: int) -> None:
    """Every case, tagged and not, several times in a row with fresh data and poisoned leases."""
    device = communicator.device
    for index, case in enumerate(cases(communicator.num_ranks)):
        wrong = torch.zeros((), dtype=torch.int64, device=device)
        for turn in range(rounds):
            for tag in (None, f"case {index}"):
                drawn = draw(case, communicator.rank, device, 1000 * index + turn)
                got = call(communicator, case, drawn.x, tag)
                wrong += mismatches(got, drawn.wanted)
                got.view(torch.uint8).fill_(POISON)
                del got
        assert_none(wrong, communicator, str(case))


def check_alternation(communicator: UlyssesCommunicator, calls: int, delay: Callable[[int], None]) -> None:
    """Scatter, read, gather, read, over and over with changing shapes, while ``delay`` holds single ranks back."""
    device, ranks = communicator.device, communicator.num_ranks
    pairs = [
        (
            Case(Direction.SCATTER, 1, (tokens,) * ranks, balanced_splits(heads, ranks), 128, torch.bfloat16),
            Case(Direction.GATHER, 1, (tokens,) * ranks, balanced_splits(heads, ranks), 128, torch.bfloat16),
        )
        for tokens, heads in ((32, 16), (130, 12), (700, 24))
    ]
    drawn = [
        [[draw(case, communicator.rank, device, 7 * at + seed) for seed in range(5)] for case in pair]
        for at, pair in enumerate(pairs)
    ]
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for turn in range(calls // 2):
        which = turn % len(pairs)
        for side in (0, 1):
            delay(turn)
            data = drawn[which][side][turn % 5]
            got = call(communicator, pairs[which][side], data.x, f"pair {which}")
            wrong += mismatches(got, data.wanted)
            got.view(torch.uint8).fill_(POISON)
            del got
    assert_none(wrong, communicator, f"{calls} calls")


def check_tagged_group(communicator: UlyssesCommunicator, rounds: int) -> None:
    """V first, then Q and K, one wait for the three; then the three in one call."""
    device, ranks = communicator.device, communicator.num_ranks
    case = Case(Direction.SCATTER, 1, (300,) * ranks, balanced_splits(16, ranks), 128, torch.bfloat16)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for turn in range(rounds):
        drawn = {name: draw(case, communicator.rank, device, 31 * turn + at) for at, name in enumerate("vqk")}
        for name, data in drawn.items():
            communicator.scatter_heads_async(data.x, name, seq_splits=case.seq_splits, head_splits=case.head_splits)
        for got, name in zip(communicator.wait(("q", "k", "v")), "qkv", strict=True):
            wrong += mismatches(got, drawn[name].wanted)
        del got
        received = communicator.scatter_qkv(
            *(drawn[name].x for name in "qkv"), seq_splits=case.seq_splits, head_splits=case.head_splits
        )
        for got, name in zip(received, "qkv", strict=True):
            wrong += mismatches(got, drawn[name].wanted)
        del got, received
    assert_none(wrong, communicator, f"{rounds} rounds")


def check_graphs(communicator: UlyssesCommunicator, replays: int, delay: Callable[[int], None], together: Together) -> None:
    """Two graphs of odd numbers of calls, replayed in turn with new data, mixed with eager calls of the same sites."""
    device, ranks = communicator.device, communicator.num_ranks
    case = Case(Direction.SCATTER, 1, (200,) * ranks, balanced_splits(16, ranks), 128, torch.bfloat16)
    back = Case(Direction.GATHER, 1, (200,) * ranks, balanced_splits(16, ranks), 128, torch.bfloat16)
    drawn = [draw(case, communicator.rank, device, seed) for seed in range(4)]
    returned = [draw(back, communicator.rank, device, seed) for seed in range(4)]
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    x, wanted = drawn[0].x.clone(), drawn[0].wanted.clone()
    y, wanted_back = returned[0].x.clone(), returned[0].wanted.clone()

    def body(calls: int) -> None:
        for number in range(calls):
            got = call(communicator, case, x, "graph")
            wrong.add_(mismatches(got, wanted))
            got.view(torch.uint8).fill_(POISON)
            del got
            if number % 2:
                got = call(communicator, back, y, "graph back")
                wrong.add_(mismatches(got, wanted_back))
                del got
            got = call(communicator, case, x, None)
            wrong.add_(mismatches(got, wanted))
            del got

    body(2)
    torch.cuda.current_stream().synchronize()
    graphs = []
    for calls in (1, 4):
        together.meet()
        graph = torch.cuda.CUDAGraph()
        with (
            together.alone(),
            torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"),
        ):
            body(calls)
        graphs.append(graph)
    together.meet()
    for turn in range(replays):
        data, data_back = drawn[turn % 4], returned[turn % 4]
        x.copy_(data.x), wanted.copy_(data.wanted)
        y.copy_(data_back.x), wanted_back.copy_(data_back.wanted)
        delay(turn)
        graphs[turn % 2].replay()
        if turn % 3 == 0:
            body(1)
    assert_none(wrong, communicator, f"{replays} replays")


def _arranged(x: torch.Tensor, arrangement: str) -> torch.Tensor:
    if arrangement == "permuted":  # as attention leaves it: [B, H, S, D] in memory
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if arrangement == "projection":  # a part of a wider row
        batch, tokens, heads, dim = x.shape
        wide = torch.zeros(batch, tokens, 3, heads, dim, dtype=x.dtype, device=x.device)
        wide[:, :, 1] = x
        return wide[:, :, 1]
    return x.contiguous()
