"""The plan against the torch twin: every rank's moves, run on a plain arena, yield what plain torch yields."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ithaka.comm_ext.ulysses.errors import UlyssesErrorCode, UlyssesInputError
from ithaka.comm_ext.ulysses.grouped_heads import key_value_head_splits
from ithaka.comm_ext.ulysses.plan import (
    Direction,
    ExchangePlan,
    aligned,
    balanced_splits,
    output_shape,
    plan_exchange,
    signature,
)
from ithaka.comm_ext.ulysses.reference import gather_heads_reference, scatter_heads_reference


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[Direction, int, list[int], list[int], int]:
    """Direction, batch, tokens per rank, heads per rank, head dim."""
    ranks = draw(st.integers(1, 8))
    counts = st.lists(st.integers(1, 5), min_size=ranks, max_size=ranks)
    even = st.integers(1, 4).map(lambda share: [share] * ranks)
    return (
        draw(st.sampled_from(Direction)),
        draw(st.integers(1, 2)),
        draw(st.one_of(counts, even)),
        draw(st.one_of(counts, even)),
        draw(st.sampled_from([1, 3, 8])),
    )


def plans_of(direction: Direction, batch: int, seq: list[int], heads: list[int], dim: int) -> list[ExchangePlan]:
    ranks = len(seq)
    shape = [
        (batch, seq[r], sum(heads), dim) if direction is Direction.SCATTER else (batch, sum(seq), heads[r], dim)
        for r in range(ranks)
    ]
    return [
        plan_exchange(
            direction,
            shape[rank],
            rank=rank,
            num_ranks=ranks,
            dtype="int32",
            item_bytes=4,
            seq_splits=seq,
            head_splits=heads,
        )
        for rank in range(ranks)
    ]


@given(exchanges())
@settings(max_examples=200, deadline=None)
def test_moves_equal_plain_torch(case: tuple[Direction, int, list[int], list[int], int]) -> None:
    direction, batch, seq, heads, dim = case
    plans = plans_of(*case)
    whole = torch.arange(1, batch * sum(seq) * sum(heads) * dim + 1, dtype=torch.int32)
    whole = whole.view(batch, sum(seq), sum(heads), dim)
    if direction is Direction.SCATTER:
        inputs = [part.contiguous() for part in torch.split(whole, seq, dim=1)]
        expected = scatter_heads_reference(inputs, heads)
    else:
        inputs = [part.contiguous() for part in torch.split(whole, heads, dim=2)]
        expected = gather_heads_reference(inputs, seq)
    window_bytes = plans[0].slot_bytes + 64
    arena = torch.zeros(window_bytes // 4 * len(plans), dtype=torch.int32)
    writes = torch.zeros_like(arena)
    for plan, x in zip(plans, inputs, strict=True):
        for move in plan.moves(window_bytes):
            source = x.view(move.shape) if move.axis is None else x.narrow(move.axis, move.start, move.length)
            arena.as_strided(move.shape, move.strides, move.offset).copy_(source)
            writes.as_strided(move.shape, move.strides, move.offset).add_(1)
    for rank, plan in enumerate(plans):
        assert plan.output_shape == tuple(expected[rank].shape)
        start, count = rank * (window_bytes // 4), math.prod(plan.output_shape)
        assert torch.equal(arena[start : start + count].view(plan.output_shape), expected[rank])
        # Each element is written once, and nothing beyond the result.
        assert writes[start : start + count].eq(1).all()
        assert not writes[start + count : start + window_bytes // 4].any()


@given(exchanges())
@settings(deadline=None)
def test_ranks_share_facts_and_slot_bytes(case: tuple[Direction, int, list[int], list[int], int]) -> None:
    plans = plans_of(*case)
    assert len({plan.facts() for plan in plans}) == 1
    assert len({plan.slot_bytes for plan in plans}) == 1
    assert plans[0].slot_bytes >= max(math.prod(plan.output_shape) * 4 for plan in plans)
    assert plans[0].slot_bytes % 64 == 0


@given(exchanges())
@settings(deadline=None)
def test_traceable_shape_equals_the_plan(case: tuple[Direction, int, list[int], list[int], int]) -> None:
    direction, batch, seq, heads, dim = case
    gather = direction is Direction.GATHER
    for rank, plan in enumerate(plans_of(*case)):
        shape = (batch, sum(seq), heads[rank], dim) if gather else (batch, seq[rank], sum(heads), dim)
        assert output_shape(gather, shape, rank, len(seq), seq, heads) == plan.output_shape
        if len(set(seq)) == len(set(heads)) == 1:
            assert output_shape(gather, shape, rank, len(seq), None, None) == plan.output_shape


def test_even_axis_needs_one_move() -> None:
    even = plans_of(Direction.SCATTER, 1, [5, 7], [2, 2], 8)[0]
    uneven = plans_of(Direction.SCATTER, 1, [5, 7], [3, 1], 8)[0]
    assert len(even.moves(4096)) == 1
    assert len(uneven.moves(4096)) == 2


@pytest.mark.parametrize(
    ("direction", "shape", "splits", "needle"),
    [
        (Direction.SCATTER, (32, 4, 64), {}, "[B, S, H, D]"),
        (Direction.SCATTER, (1, 0, 4, 64), {}, "at least one"),
        (Direction.SCATTER, (1, 32, 3, 64), {}, "head_splits, for example [2, 1]"),
        (Direction.SCATTER, (1, 32, 1, 64), {}, "can't be shared by 2 ranks"),
        (Direction.GATHER, (1, 65, 2, 64), {}, "seq_splits, for example [33, 32]"),
        (Direction.SCATTER, (1, 32, 3, 64), {"head_splits": (2, 1, 0)}, "needs 2 counts"),
        (Direction.SCATTER, (1, 32, 3, 64), {"head_splits": (3, 0)}, "at least 1"),
        (Direction.SCATTER, (1, 32, 3, 64), {"head_splits": (2, 2)}, "takes 32 tokens x 4 heads"),
        (Direction.SCATTER, (1, 32, 4, 64), {"seq_splits": (33, 32)}, "takes 33 tokens x 4 heads"),
        (Direction.GATHER, (1, 64, 2, 64), {"seq_splits": (33, 32)}, "takes 65 tokens x 2 heads"),
        (Direction.GATHER, (1, 64, 1, 64), {"head_splits": (2, 1)}, "takes 64 tokens x 2 heads"),
    ],
)
def test_bad_shapes_say_what_to_do(
    direction: Direction, shape: tuple[int, ...], splits: dict[str, tuple[int, ...]], needle: str
) -> None:
    with pytest.raises(UlyssesInputError) as caught:
        plan_exchange(
            direction,
            shape,
            rank=0,
            num_ranks=2,
            dtype="float32",
            item_bytes=4,
            seq_splits=splits.get("seq_splits"),
            head_splits=splits.get("head_splits"),
        )
    assert caught.value.code is UlyssesErrorCode.BAD_SHAPE
    assert needle in str(caught.value)


@given(st.integers(0, 500), st.integers(1, 16))
def test_balanced_splits(total: int, parts: int) -> None:
    splits = balanced_splits(total, parts)
    assert sum(splits) == total
    assert len(splits) == parts
    assert splits == tuple(sorted(splits, reverse=True))
    assert max(splits) - min(splits) <= 1


def test_twelve_heads_on_eight_ranks() -> None:
    assert balanced_splits(12, 8) == (2, 2, 2, 2, 1, 1, 1, 1)


def test_key_value_heads_keep_the_ratio() -> None:
    assert key_value_head_splits(12, 4, (6, 3, 3)) == (2, 1, 1)
    assert key_value_head_splits(12, 12, (8, 4)) == (8, 4)
    for kv_heads, splits in ((4, (7, 5)), (5, (6, 6))):
        with pytest.raises(UlyssesInputError) as caught:
            key_value_head_splits(12, kv_heads, splits)
        assert caught.value.code is UlyssesErrorCode.BAD_SHAPE


def test_signature_tells_every_fact_apart() -> None:
    plan = plans_of(Direction.SCATTER, 1, [3, 2], [2, 2], 8)[0]
    others = [
        replace(plan, direction=Direction.GATHER),
        replace(plan, batch=2),
        replace(plan, seq_splits=(2, 3)),
        replace(plan, head_splits=(1, 3)),
        replace(plan, head_dim=4),
        replace(plan, dtype="float32"),
    ]
    signatures = {signature(other.facts()) for other in (plan, *others)}
    assert len(signatures) == 1 + len(others)
    assert 0 not in signatures
    assert signature(plan.facts()) == signature(replace(plan, rank=1).facts())


@given(st.integers(0, 10**6))
def test_aligned_is_the_next_multiple(num_bytes: int) -> None:
    assert aligned(num_bytes) % 64 == 0
    assert num_bytes <= aligned(num_bytes) < num_bytes + 64
