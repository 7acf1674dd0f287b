"""What the fused call must get right between GPUs, written for one rank: see exchange_checks.py.

Values are equal bit by bit. Queries and keys of 16 bits are at most one unit in the last place from the definition computed in
float64: sums in another order decide which way a number rounds. Those of float32 may be eight units away.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.plan import balanced_splits
from tests.fused_cases import Case, Drawn, draw, furthest
from tests.gpu.exchange_checks import POISON, Together, assert_none, mismatches

UNITS_APART = {torch.bfloat16: 1, torch.float16: 1, torch.float32: 8}


def cases(num_ranks: int) -> list[Case]:
    """Norms, positions, dtypes, head dims, head counts that divide and that don't, skewed sequences, strides."""
    even, skewed = (64,) * num_ranks, tuple(17 + 40 * (rank % 3) for rank in range(num_ranks))
    wan, small = balanced_splits(40, num_ranks), balanced_splits(12, num_ranks)
    grouped, kv = balanced_splits(4 * num_ranks, num_ranks), balanced_splits(num_ranks, num_ranks)
    return [
        Case(even, wan, wan, 128, torch.bfloat16, "row", "interleaved"),
        Case(even, wan, wan, 128, torch.bfloat16, "row", "interleaved", 1, "parts"),
        Case(skewed, small, small, 128, torch.bfloat16, "row", "interleaved", 2),
        Case(skewed, small, small, 128, torch.bfloat16, "head", "halves", 1, "permuted"),
        Case(even, small, small, 64, torch.float16, "head", "interleaved"),
        Case(skewed, wan, wan, 64, torch.float16, "row", "halves", 2),
        Case(even, wan, wan, 128, torch.float32, "row", "interleaved"),
        Case(even, small, small, 64, torch.float32, "head", "halves", 1, "parts"),
        Case(skewed, grouped, kv, 128, torch.bfloat16, "row", "interleaved"),
        Case(even, small, small, 128, torch.bfloat16, "row", None),
        Case(even, small, small, 128, torch.bfloat16, None, "halves"),
        Case(even, balanced_splits(57, num_ranks), balanced_splits(57, num_ranks), 128, torch.bfloat16, "row", "interleaved"),
    ]


def call(communicator: UlyssesCommunicator, case: Case, drawn: Drawn, tag: str | None) -> tuple[torch.Tensor, ...]:
    """The case's fused call."""
    norm, rope = drawn.transform.norm, drawn.transform.rope
    return communicator.fused_qk_norm_rope_scatter(
        *drawn.qkv, norm=norm, rope=rope, tag=tag, seq_splits=case.seq_splits, head_splits=case.head_splits
    )


def check_fused_cases(communicator: UlyssesCommunicator, rounds: int) -> None:
    """Every case, tagged and not, with fresh data and poisoned leases."""
    for index, case in enumerate(cases(communicator.num_ranks)):
        for turn in range(rounds):
            for tag in (None, f"case {index}"):
                drawn = draw(case, communicator.rank, communicator.device, 1000 * index + turn)
                received = call(communicator, case, drawn, tag)
                assert_none(mismatches(received[2], drawn.wanted[2]), communicator, f"values of {case}")
                for name, got, wanted in zip("qk", received, drawn.wanted, strict=False):
                    apart = furthest(got, wanted)
                    assert apart <= UNITS_APART[case.dtype], f"{name} of {case}: {apart} units apart"
                for got in received:
                    got.view(torch.uint8).fill_(POISON)
                del received, got


def check_fused_graphs(
    communicator: UlyssesCommunicator, replays: int, delay: Callable[[int], None], together: Together
) -> None:
    """An odd number of calls in a graph, replayed with new data between eager calls of its site, single ranks held back."""
    device, ranks = communicator.device, communicator.num_ranks
    splits = balanced_splits(16, ranks)
    case = Case((200,) * ranks, splits, splits, 128, torch.bfloat16, "row", "interleaved")
    data = [draw(case, communicator.rank, device, seed) for seed in range(4)]
    first = call(communicator, case, data[0], None)
    bits = [[x.clone() for x in call(communicator, case, drawn, None)] for drawn in data]  # what the kernel makes of them
    assert furthest(first[0], data[0].wanted[0]) <= 1
    here = draw(case, communicator.rank, device, 0)
    wanted = [x.clone() for x in bits[0]]
    wrong = torch.zeros((), dtype=torch.int64, device=device)

    def body(calls: int) -> None:
        for _ in range(calls):
            for tag in ("graph", None):
                received = call(communicator, case, here, tag)
                for got, expected in zip(received, wanted, strict=True):
                    wrong.add_(mismatches(got, expected))
                    got.view(torch.uint8).fill_(POISON)
                del received, got

    body(2)
    torch.cuda.current_stream().synchronize()
    together.meet()
    graph = torch.cuda.CUDAGraph()
    with together.alone(), torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
        body(3)
    together.meet()
    for turn in range(replays):
        drawn = data[turn % 4]
        assert here.transform.rope is not None and drawn.transform.rope is not None
        assert here.transform.norm is not None and drawn.transform.norm is not None
        for mine, fresh in (
            *zip(here.qkv, drawn.qkv, strict=True),
            *zip(wanted, bits[turn % 4], strict=True),
            (here.transform.rope.phases, drawn.transform.rope.phases),
            (here.transform.norm.q_weight, drawn.transform.norm.q_weight),
            (here.transform.norm.k_weight, drawn.transform.norm.k_weight),
        ):
            mine.copy_(fresh)
        delay(turn)
        graph.replay()
        if turn % 3 == 0:
            body(1)
    assert_none(wrong, communicator, f"{replays} replays")
