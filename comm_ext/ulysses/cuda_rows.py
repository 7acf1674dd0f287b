"""A plan's bytes as rows: what one rank writes into each window, in numbers for kernels and copies. Pure; no torch.

A tensor's part for a peer is at most two levels of equally spaced rows of contiguous bytes. Inputs that need more levels
(say a batch of permuted heads) are made contiguous first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ithaka.comm_ext.ulysses.plan import Direction, ExchangePlan

MAX_UNIT_BYTES = 16
_MAGIC_BITS = 31


@dataclass(frozen=True, slots=True)
class Level:
    """``count`` rows, or groups of rows, and the bytes from one to the next on both sides."""

    count: int
    source_stride: int
    target_stride: int


@dataclass(frozen=True, slots=True)
class Landing:
    """Where one rank wants one tensor's result: bytes from its arena's start, and from batch to batch, token, head."""

    offset: int
    strides: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Rows:
    """What one tensor sends to one rank. ``source`` counts bytes from the tensor's first element, ``target`` from the slot."""

    tensor: int
    peer: int
    source: int
    target: int
    row_bytes: int
    outer: Level
    inner: Level

    @property
    def total_bytes(self) -> int:
        """Bytes of all rows."""
        return self.row_bytes * self.outer.count * self.inner.count

    def alignment(self) -> int:
        """The largest power of two, at most MAX_UNIT_BYTES, that divides every offset and length; no rows constrain nothing."""
        if self.total_bytes == 0:
            return MAX_UNIT_BYTES
        numbers = [self.source, self.target, self.row_bytes]
        for level in (self.outer, self.inner):
            if level.count > 1:
                numbers += [level.source_stride, level.target_stride]
        return math.gcd(MAX_UNIT_BYTES, *numbers)

    def copies(self) -> int | None:
        """How many pitched copies move it: one for each group; None if a pitch can't express the rows."""
        if self.inner.count > 1 and min(self.inner.source_stride, self.inner.target_stride) < self.row_bytes:
            return None
        return self.outer.count


def landing_in_slot(plan: ExchangePlan, peer: int, slot_offset: int) -> Landing:
    """A contiguous result, ``slot_offset`` bytes into the slot."""
    _, seq, heads, dim = plan.output_shape_of(peer)
    head = dim * plan.item_bytes
    return Landing(slot_offset, (seq * heads * head, heads * head, head))


def rows_of(
    plan: ExchangePlan, tensor: int, landing: Landing, strides: Sequence[int], peer: int, first: float, last: float
) -> Rows | None:
    """The rows of tensor number ``tensor`` for ``peer``: the tokens from the fraction ``first`` to ``last`` of its share.

    ``strides`` are the input's, in elements; ``landing`` is the peer's. None if two levels don't do. An empty range has rows
    of count 0.
    """
    item, dim = plan.item_bytes, plan.head_dim
    if plan.direction is Direction.SCATTER:
        tokens, heads = plan.seq_splits[plan.rank], plan.head_splits[peer]
        source_token, source_head = 0, plan.head_starts[peer]
        target_token, target_head = sum(plan.seq_splits[: plan.rank]), 0
    elif plan.replicates:
        tokens, heads = plan.replicated, plan.head_splits[plan.rank]
        source_token, source_head = 0, 0
        target_token, target_head = plan.seq_splits[peer], plan.head_starts[plan.rank]
    else:
        tokens, heads = plan.seq_splits[peer], plan.head_splits[plan.rank]
        source_token, source_head = sum(plan.seq_splits[:peer]), 0
        target_token, target_head = 0, plan.head_starts[plan.rank]
    begin, end = round(tokens * first), round(tokens * last)
    single = Level(1, 0, 0)
    if begin == end:
        return Rows(tensor, peer, 0, landing.offset, item, single, Level(0, 0, 0))
    source_strides = [stride * item for stride in strides]
    target_strides = [*landing.strides, item]
    counts = [plan.batch, end - begin, heads, dim]
    source = (source_token + begin) * source_strides[1] + source_head * source_strides[2]
    target = landing.offset + (target_token + begin) * target_strides[1] + target_head * target_strides[2]
    levels = _merge([Level(*numbers) for numbers in zip(counts, source_strides, target_strides, strict=True)])
    row_bytes = item
    if levels and (levels[-1].source_stride, levels[-1].target_stride) == (item, item):
        row_bytes = levels.pop().count * item
    if len(levels) > 2:
        return None
    outer, inner = [single] * (2 - len(levels)) + levels
    return Rows(tensor, peer, source, target, row_bytes, outer, inner)


def _merge(levels: list[Level]) -> list[Level]:
    """Fewer levels for the same bytes: levels of one vanish, neighbours that are spaced like one level become one."""
    merged: list[Level] = []
    for level in levels:
        if level.count == 1:
            continue
        if merged and (merged[-1].source_stride, merged[-1].target_stride) == (
            level.count * level.source_stride,
            level.count * level.target_stride,
        ):
            merged[-1] = Level(merged[-1].count * level.count, level.source_stride, level.target_stride)
        else:
            merged.append(level)
    return merged


def magic_of(divisor: int) -> tuple[int, int]:
    """``(magic, shift)`` with ``n // divisor == (n * magic) >> shift`` for all n < 2**31; magic fits 32 bits."""
    shift = _MAGIC_BITS + (divisor - 1).bit_length()
    return -(-(1 << shift) // divisor), shift


def rotation(rank: int, num_ranks: int) -> tuple[int, ...]:
    """The order in which a rank serves: the next rank first, itself last. No two ranks serve the same one at a time."""
    return tuple((rank + step) % num_ranks for step in range(1, num_ranks + 1))
