"""The integers that the CUDA engine consumes move the right bytes: run on the CPU, thread by thread, against plain slicing."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ithaka.comm_ext.build import SOURCES
from ithaka.comm_ext.ulysses.cuda_binding import Placement, Seat, bind
from ithaka.comm_ext.ulysses.cuda_calibration import Launch
from ithaka.comm_ext.ulysses.cuda_library import PieceStruct, PlanStruct
from ithaka.comm_ext.ulysses.cuda_rows import magic_of, rotation
from ithaka.comm_ext.ulysses.plan import Direction, ExchangePlan, plan_exchange

Place = Callable[[PieceStruct, int, int], tuple[int, int]]
Splits = tuple[int, ...]
POISON = 0xA5
_PROGRAM = r"""
#include "ulysses_rows.h"
void run_piece(const UlPiece* piece, uint32_t unit_bytes, uint32_t threads) {
  for (uint32_t first = 0; first < threads; ++first)
    for (uint32_t unit = first; unit < piece->units; unit += threads) {
      const UlPlace place = ul_place(piece, unit, unit_bytes);
      for (uint32_t byte = 0; byte < unit_bytes; ++byte)
        ((uint8_t*)place.target)[byte] = ((const uint8_t*)place.source)[byte];
    }
}
"""


@pytest.fixture(scope="module")
def run_piece(tmp_path_factory: pytest.TempPathFactory) -> Callable[[PieceStruct, int, int], None]:
    """The kernel's own arithmetic, compiled for the CPU."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler, "this test needs a C compiler"
    folder = tmp_path_factory.mktemp("rows")
    (folder / "rows.c").write_text(_PROGRAM)
    library = folder / "rows.so"
    command = [
        compiler,
        "-O1",
        "-Wall",
        "-Werror",
        "-shared",
        "-fPIC",
        f"-I{SOURCES}",
        str(folder / "rows.c"),
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True)
    function = ctypes.CDLL(str(library)).run_piece
    function.argtypes, function.restype = (ctypes.POINTER(PieceStruct), ctypes.c_uint32, ctypes.c_uint32), None
    return lambda piece, unit_bytes, threads: function(ctypes.byref(piece), unit_bytes, threads)


def make_plan(
    direction: Direction, rank: int, batch: int, seq: Splits, heads: Splits, dim: int, dtype: torch.dtype
) -> ExchangePlan:
    tokens, width = (seq[rank], sum(heads)) if direction is Direction.SCATTER else (sum(seq), heads[rank])
    return plan_exchange(
        direction,
        (batch, tokens, width, dim),
        rank=rank,
        num_ranks=len(seq),
        dtype=str(dtype).removeprefix("torch."),
        item_bytes=dtype.itemsize,
        seq_splits=seq,
        head_splits=heads,
    )


def share_of(whole: torch.Tensor, direction: Direction, rank: int, seq: Splits, heads: Splits, *, before: bool) -> torch.Tensor:
    by_sequence = (direction is Direction.SCATTER) == before
    splits, axis = (seq, 1) if by_sequence else (heads, 2)
    return torch.split(whole, list(splits), axis)[rank]


class Arenas:
    """Windows of all ranks in ordinary memory, and the calls of all ranks on them, one after the other."""

    def __init__(self, ranks: int, window: int, slot_bytes: int, run_piece: Callable[[PieceStruct, int, int], None]) -> None:
        self.window, self.slot_bytes, self.run_piece = window, slot_bytes, run_piece
        self.memory = [torch.full((window + slot_bytes + 64,), POISON, dtype=torch.uint8) for _ in range(ranks)]
        self.bases = tuple(-(-memory.data_ptr() // 64) * 64 for memory in self.memory)

    def send(self, struct: PlanStruct, tensors: Sequence[torch.Tensor]) -> None:
        call = struct.call
        for step in range(call.ranks):
            target = self.bases[(call.rank + 1 + step) % call.ranks] + struct.window
            for index in range(call.tensors):
                piece = PieceStruct.from_buffer_copy(struct.piece[step * call.tensors + index])
                piece.source += tensors[piece.tensor].data_ptr()
                piece.target += target
                self.run_piece(piece, struct.unit_bytes, 96)
        for copy in struct.copy[: struct.copies]:
            source = tensors[copy.tensor].data_ptr() + copy.source
            target = self.bases[copy.peer] + struct.window + copy.target
            for row in range(copy.height):
                ctypes.memmove(target + row * copy.target_pitch, source + row * copy.source_pitch, copy.width)

    def result(self, rank: int, plan: ExchangePlan, offset: int) -> torch.Tensor:
        start = self.bases[rank] - self.memory[rank].data_ptr() + self.window + offset
        numel = torch.Size(plan.output_shape).numel()
        data = self.memory[rank][start : start + numel * plan.item_bytes]
        return data.clone().view(getattr(torch, plan.dtype)).view(plan.output_shape)

    def stray_bytes(self, rank: int, used: Sequence[tuple[int, int]]) -> int:
        start = self.bases[rank] - self.memory[rank].data_ptr() + self.window
        left = self.memory[rank][start : start + self.slot_bytes].clone()
        for offset, length in used:
            left[offset : offset + length] = POISON
        return int((left != POISON).sum())


def exchange_on_cpu(
    run_piece: Callable[[PieceStruct, int, int], None],
    direction: Direction,
    wholes: Sequence[torch.Tensor],
    seq: Splits,
    heads: Sequence[Splits],
    launch: Launch,
    arrange: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Run the exchange of all ranks and compare every byte of every window."""
    ranks = len(seq)
    plans = [
        [
            make_plan(direction, rank, whole.shape[0], seq, split, whole.shape[3], whole.dtype)
            for whole, split in zip(wholes, heads, strict=True)
        ]
        for rank in range(ranks)
    ]
    offsets = [sum(plan.slot_bytes for plan in plans[0][:index]) for index in range(len(wholes))]
    slot_bytes = sum(plan.slot_bytes for plan in plans[0])
    arenas = Arenas(ranks, 192, slot_bytes, run_piece)
    placement = Placement(region=0, window=192, slot_bytes=slot_bytes, num_slots=3, signature=1)
    for rank in range(ranks):
        inputs = [
            arrange(share_of(whole, direction, rank, seq, split, before=True))
            for whole, split in zip(wholes, heads, strict=True)
        ]
        seat = Seat(0, rank, arenas.bases, 0, 1)
        alignment = min(tensor.data_ptr() & -tensor.data_ptr() for tensor in inputs)
        struct = bind(plans[rank], [tensor.stride() for tensor in inputs], alignment, seat, placement, launch)
        if struct is None:
            inputs = [tensor.contiguous() for tensor in inputs]
            alignment = min(tensor.data_ptr() & -tensor.data_ptr() for tensor in inputs)
            struct = bind(plans[rank], [tensor.stride() for tensor in inputs], alignment, seat, placement, launch)
        assert struct is not None, "contiguous inputs always bind"
        arenas.send(struct, inputs)
    for rank in range(ranks):
        used = []
        for whole, split, plan, offset in zip(wholes, heads, plans[rank], offsets, strict=True):
            wanted = share_of(whole, direction, rank, seq, split, before=False)
            torch.testing.assert_close(arenas.result(rank, plan, offset), wanted, rtol=0, atol=0)
            used.append((offset, wanted.numel() * plan.item_bytes))
        assert arenas.stray_bytes(rank, used) == 0


def random_bytes(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    data = torch.randint(0, 120, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
    return data.view(dtype).view(shape) if dtype.itemsize > 1 else data.view(shape)


def permuted_heads(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, laid out as attention leaves them: [B, H, S, D] in memory."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def fused_projection(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as a slice of a wider row: the output of one projection for Q, K and V."""
    batch, tokens, heads, dim = tensor.shape
    wide = torch.zeros(batch, tokens, 3, heads, dim, dtype=tensor.dtype)
    wide[:, :, 1] = tensor
    return wide[:, :, 1]


def interleaved_heads(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with a gap after each head."""
    batch, tokens, heads, dim = tensor.shape
    wide = torch.zeros(batch, tokens, heads, 2, dim, dtype=tensor.dtype)
    wide[:, :, :, 0] = tensor
    return wide[:, :, :, 0]


ARRANGEMENTS = (torch.Tensor.contiguous, permuted_heads, fused_projection, interleaved_heads)
SM, HYBRID, COPIES = Launch(16, 4, 0.0), Launch(16, 4, 0.4), Launch(0, 4, 1.0)


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[Direction, int, Splits, Splits, int, torch.dtype, Launch, int]:
    ranks = draw(st.integers(2, 8))
    splits = st.lists(st.integers(1, 4), min_size=ranks, max_size=ranks).map(tuple)
    return (
        draw(st.sampled_from(Direction)),
        draw(st.integers(1, 3)),
        draw(splits),
        draw(splits),
        draw(st.sampled_from((1, 3, 8, 16, 64, 80, 96, 128))),
        draw(st.sampled_from((torch.uint8, torch.bfloat16, torch.float32))),
        draw(st.sampled_from((SM, HYBRID, COPIES))),
        draw(st.integers(0, len(ARRANGEMENTS) - 1)),
    )


@settings(max_examples=120, deadline=None)
@given(exchange=exchanges(), seed=st.integers(0, 2**16))
def test_any_exchange_is_bit_exact(
    run_piece: Callable[[PieceStruct, int, int], None],
    exchange: tuple[Direction, int, Splits, Splits, int, torch.dtype, Launch, int],
    seed: int,
) -> None:
    direction, batch, seq, heads, dim, dtype, launch, arrangement = exchange
    whole = random_bytes((batch, sum(seq), sum(heads), dim), dtype, seed)
    exchange_on_cpu(run_piece, direction, [whole], seq, [heads], launch, ARRANGEMENTS[arrangement])


@pytest.mark.parametrize("launch", [SM, HYBRID, COPIES])
@pytest.mark.parametrize(
    ("seq", "heads", "dim"),
    [
        ((16, 16), (6, 6), 128),
        ((9, 9, 9, 9), (6, 6, 6, 6), 64),
        ((5,) * 8, (2, 2, 2, 2, 1, 1, 1, 1), 128),
        ((7,) * 8, (7,) * 8, 80),
        ((3, 11), (10, 20), 96),
    ],
)
def test_query_key_value_in_one_call(
    run_piece: Callable[[PieceStruct, int, int], None], launch: Launch, seq: Splits, heads: Splits, dim: int
) -> None:
    kv_heads = tuple(max(1, share // 2) for share in heads)
    wholes = [
        random_bytes((1, sum(seq), sum(split), dim), torch.bfloat16, 7 + at)
        for at, split in enumerate((heads, kv_heads, kv_heads))
    ]
    exchange_on_cpu(run_piece, Direction.SCATTER, wholes, seq, [heads, kv_heads, kv_heads], launch, torch.Tensor.contiguous)


def test_whole_rows_take_16_byte_units_and_one_copy_each() -> None:
    plan = make_plan(Direction.SCATTER, 0, 1, (128, 128), (4, 4), 128, torch.bfloat16)
    seat, placement = Seat(0, 0, (0, 1 << 30), 0, 1), Placement(0, 192, plan.slot_bytes, 3, 1)
    strides = [(128 * 8 * 128, 8 * 128, 128, 1)]
    kernel = bind([plan], strides, 256, seat, placement, SM)
    copies = bind([plan], strides, 256, seat, placement, COPIES)
    assert kernel is not None and copies is not None
    assert (kernel.unit_bytes, kernel.piece[0].units, kernel.piece[0].row_units) == (16, 128 * 64, 64)
    assert copies.unit_bytes == 16, "rows that the copy engine moves do not bind the kernel's units"
    assert (kernel.call.copies, copies.call.copies, copies.copies) == (0, 1, 1)
    assert (copies.copy[0].width, copies.copy[0].height, copies.copy[0].source_pitch, copies.copy[0].target_pitch) == (
        1024,
        128,
        2048,
        1024,
    )


def test_inputs_that_two_levels_cannot_reach_are_refused() -> None:
    plan = make_plan(Direction.SCATTER, 0, 2, (8, 8), (2, 2), 16, torch.bfloat16)
    seat, placement = Seat(0, 0, (0, 1 << 30), 0, 1), Placement(0, 192, plan.slot_bytes, 3, 1)
    assert bind([plan], [(8 * 4 * 16, 16, 8 * 16, 1)], 256, seat, placement, SM) is None


@given(divisor=st.integers(1, 2**31 - 1), number=st.integers(0, 2**31 - 1))
def test_division_by_multiplication_is_exact(divisor: int, number: int) -> None:
    magic, shift = magic_of(divisor)
    assert magic < 2**32
    assert (number * magic) >> shift == number // divisor
    for edge in (number // divisor * divisor, number // divisor * divisor - 1):
        if edge >= 0:
            assert (edge * magic) >> shift == edge // divisor


@pytest.mark.parametrize("num_ranks", range(1, 9))
def test_no_two_ranks_serve_the_same_one_at_a_time(num_ranks: int) -> None:
    orders = [rotation(rank, num_ranks) for rank in range(num_ranks)]
    assert all(order[-1] == rank for rank, order in enumerate(orders))
    assert all(len(set(step)) == num_ranks for step in zip(*orders, strict=True))
