"""The fused kernel on the CPU: norms and positions against torch in every form, and the words that all kernels share."""

from __future__ import annotations

import ctypes
import random
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.fused_cases import Case, Drawn, draw, furthest
from tests.unit.cuda_emulation import EmulatedRank, EmulatedSite, compile_engine, on_every_rank, place

from ithaka.comm_ext.ulysses.cuda_calibration import Launch
from ithaka.comm_ext.ulysses.cuda_library import CudaLibrary
from ithaka.comm_ext.ulysses.fused_plan import MIRROR, refusal
from ithaka.comm_ext.ulysses.fused_site import FusedSite, readable
from ithaka.comm_ext.ulysses.plan import Direction, ExchangePlan, plan_exchange

LANES = 16
LAUNCH = Launch(3, 0, 0.0)
POISON = 0xA5
CASES = {
    "wan": Case((2, 3), (2, 2), (2, 2), 64, torch.bfloat16, "row", "interleaved"),
    "heads, halves": Case((3, 2), (3, 2), (3, 2), 64, torch.bfloat16, "head", "halves"),
    "half precision": Case((2, 2), (1, 2), (1, 2), 128, torch.float16, "row", "halves"),
    "single precision": Case((1, 4), (2, 1), (2, 1), 64, torch.float32, "head", "interleaved"),
    "grouped queries": Case((2, 2, 2), (2, 4, 2), (1, 2, 1), 64, torch.bfloat16, "row", "interleaved", batch=2),
    "norm only": Case((3, 3), (2, 2), (2, 2), 64, torch.bfloat16, "row", None),
    "positions only": Case((3, 3), (2, 2), (2, 2), 64, torch.bfloat16, None, "halves"),
    "a projection's parts": Case(
        (3, 2), (2, 2), (2, 2), 64, torch.bfloat16, "row", "interleaved", batch=2, arrangement="parts"
    ),
    "as attention leaves it": Case((3, 2), (2, 2), (2, 2), 64, torch.bfloat16, "head", "halves", arrangement="permuted"),
    "longer than registers": Case((2, 2), (22, 21), (22, 21), 64, torch.bfloat16, "row", "interleaved"),
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_engine(tmp_path_factory.mktemp("engine"), threads_of_a_block=2 * LANES)


@dataclass(slots=True)
class FusedCall:
    """A call site with its fused part."""

    site: EmulatedSite
    fused: FusedSite


def plans_of(case: Case, rank: int) -> tuple[ExchangePlan, ...]:
    return tuple(
        plan_exchange(
            Direction.SCATTER,
            (case.batch, case.seq_splits[rank], sum(splits), case.dim),
            rank=rank,
            num_ranks=len(case.seq_splits),
            dtype=str(case.dtype).removeprefix("torch."),
            item_bytes=case.dtype.itemsize,
            seq_splits=case.seq_splits,
            head_splits=splits,
        )
        for splits in (case.head_splits, case.kv_head_splits, case.kv_head_splits)
    )


def prepare(rank: EmulatedRank, case: Case, index: int = 0) -> FusedCall:
    plans = plans_of(case, rank.rank)
    return FusedCall(EmulatedSite(plans, place(plans, index, index * (1 << 20), 3, 7 + index), LAUNCH), FusedSite(plans))


def exchange(rank: EmulatedRank, call: FusedCall, drawn: Drawn) -> list[torch.Tensor]:
    """As CudaExchange.exchange_fused; the newest slot's tensors."""
    tensors = readable(drawn.qkv)
    struct, _ = rank._begin(call.site, tensors)
    plan, sources, _ = call.fused.bind(tensors, drawn.transform)
    rank.library.check(rank.library.fused_exchange(ctypes.addressof(struct), plan, call.site.slot, sources, None, None))
    return [rank.result(call.site, index) for index in range(3)]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_equal_to_torch(engine: Path, case: Case) -> None:
    def body(rank: EmulatedRank) -> None:
        call = prepare(rank, case)
        for turn in range(2):
            drawn = draw(case, rank.rank, torch.device("cpu"), turn)
            q, k, v = exchange(rank, call, drawn)
            assert torch.equal(v, drawn.wanted[2]), f"values, rank {rank.rank}"
            for name, got, wanted in zip("qk", (q, k), drawn.wanted, strict=False):
                assert furthest(got, wanted) <= 1, f"{name}, rank {rank.rank}, turn {turn}"
                got.view(torch.uint8).fill_(POISON)

    on_every_rank(engine, len(case.seq_splits), body, window_bytes=1 << 24)


def test_a_slot_that_a_replay_reuses_is_opened_first(engine: Path) -> None:
    case = CASES["wan"]

    def body(rank: EmulatedRank) -> None:
        call = prepare(rank, case)
        delays = random.Random(rank.rank)
        for turn in range(6):
            drawn = draw(case, rank.rank, torch.device("cpu"), turn)
            call.site.uses = 0  # a replay knows nothing of earlier ones
            received = exchange(rank, call, drawn)
            threading.Event().wait(delays.random() * 0.01)
            for got, wanted in zip(received, drawn.wanted, strict=True):
                assert furthest(got, wanted) <= 1, f"rank {rank.rank}, turn {turn}"
                got.view(torch.uint8).fill_(POISON)

    on_every_rank(engine, 2, body, window_bytes=1 << 24)


def test_a_peer_that_does_not_come_ends_the_wait(engine: Path) -> None:
    case = CASES["wan"]

    def body(rank: EmulatedRank) -> int:
        if rank.rank == 0:
            exchange(rank, prepare(rank, case), draw(case, 0, torch.device("cpu"), 0))
        return rank.words[1]

    assert on_every_rank(engine, 2, body, window_bytes=1 << 24, timeout_s=0.2)[0] == 1 << 8 | 1


def test_sizes_agree_with_the_build(engine: Path) -> None:
    CudaLibrary(engine).check_sizes("ul_fused_abi", MIRROR)


@pytest.mark.parametrize(
    ("dim", "dtype", "reason"), [(80, torch.bfloat16, "head dims 64 and 128, not 80"), (64, torch.int8, "not int8")]
)
def test_what_the_kernel_does_not_serve_is_said(dim: int, dtype: torch.dtype, reason: str) -> None:
    plans = plans_of(Case((2, 2), (2, 2), (2, 2), dim, dtype, None, None), 0)
    assert reason in str(refusal(plans))
