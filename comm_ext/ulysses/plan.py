"""Where every row of an exchange goes, as numbers: shapes and splits in, offsets in the arena out. Pure; no torch.

Layout is [B, S, H, D] throughout. ``scatter`` turns a sequence shard with all heads into the whole sequence with a share of
the heads, ``gather`` turns it back. ``seq_splits[r]`` and ``head_splits[r]`` are the tokens and heads of rank r.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ithaka.comm_ext.ulysses.errors import UlyssesErrorCode, UlyssesInputError

SLOT_ALIGN_BYTES = 64
Shape4 = tuple[int, int, int, int]


class Direction(StrEnum):
    """Which way the tensor turns."""

    SCATTER = "scatter"
    GATHER = "gather"


@dataclass(frozen=True, slots=True)
class Move:
    """One strided copy. The source is ``x.narrow(axis, start, length)``, or for ``axis`` None ``x.view(shape)``.

    ``shape``, ``strides`` and ``offset`` describe the target in elements, counted from the slot's place in rank 0's window.
    """

    axis: int | None
    start: int
    length: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class ExchangePlan:
    """One tensor's exchange, seen from ``rank``; equal on all ranks but for ``rank``."""

    direction: Direction
    rank: int
    batch: int
    seq_splits: tuple[int, ...]
    head_splits: tuple[int, ...]
    head_dim: int
    dtype: str
    item_bytes: int

    @property
    def seq(self) -> int:
        """Tokens of all ranks."""
        return sum(self.seq_splits)

    @property
    def heads(self) -> int:
        """Heads of all ranks."""
        return sum(self.head_splits)

    @property
    def output_shape(self) -> Shape4:
        """What this rank receives."""
        return self.output_shape_of(self.rank)

    def output_shape_of(self, rank: int) -> Shape4:
        """What ``rank`` receives."""
        if self.direction is Direction.SCATTER:
            return (self.batch, self.seq, self.head_splits[rank], self.head_dim)
        return (self.batch, self.seq_splits[rank], self.heads, self.head_dim)

    @property
    def slot_bytes(self) -> int:
        """Bytes of the largest rank's result, aligned: every rank reserves the same, so that offsets agree."""
        rows = self.seq * max(self.head_splits) if self.direction is Direction.SCATTER else self.heads * max(self.seq_splits)
        return aligned(self.batch * rows * self.head_dim * self.item_bytes)

    def facts(self) -> str:
        """All that the ranks must agree on, in words."""
        return (
            f"{self.direction} batch={self.batch} seq={list(self.seq_splits)} heads={list(self.head_splits)} "
            f"dim={self.head_dim} dtype={self.dtype}"
        )

    def moves(self, window_bytes: int) -> tuple[Move, ...]:
        """The copies that this rank makes, its own share included.

        One when the split axis is even (all peers at once, the windows as a dimension), else one per peer.
        """
        splits = self.head_splits if self.direction is Direction.SCATTER else self.seq_splits
        window = window_bytes // self.item_bytes
        if len(set(splits)) == 1:
            return (self._move_to_all(splits[0], window),)
        return tuple(self._move_to(peer, splits, window) for peer in range(len(splits)))

    def _move_to_all(self, share: int, window: int) -> Move:
        ranks, dim = len(self.seq_splits), self.head_dim
        if self.direction is Direction.SCATTER:
            shape = (self.batch, self.seq_splits[self.rank], ranks, share, dim)
            strides = (self.seq * share * dim, share * dim, window, dim, 1)
            return Move(None, 0, 0, shape, strides, self._seq_start * share * dim)
        shape = (self.batch, ranks, share, self.head_splits[self.rank], dim)
        strides = (share * self.heads * dim, window, self.heads * dim, dim, 1)
        return Move(None, 0, 0, shape, strides, self._head_start * dim)

    def _move_to(self, peer: int, splits: tuple[int, ...], window: int) -> Move:
        start, share, dim = sum(splits[:peer]), splits[peer], self.head_dim
        if self.direction is Direction.SCATTER:
            shape = (self.batch, self.seq_splits[self.rank], share, dim)
            strides = (self.seq * share * dim, share * dim, dim, 1)
            return Move(2, start, share, shape, strides, peer * window + self._seq_start * share * dim)
        shape = (self.batch, share, self.head_splits[self.rank], dim)
        strides = (share * self.heads * dim, self.heads * dim, dim, 1)
        return Move(1, start, share, shape, strides, peer * window + self._head_start * dim)

    @property
    def _seq_start(self) -> int:
        return sum(self.seq_splits[: self.rank])

    @property
    def _head_start(self) -> int:
        return sum(self.head_splits[: self.rank])


def plan_exchange(
    direction: Direction,
    shape: Sequence[int],
    *,
    rank: int,
    num_ranks: int,
    dtype: str,
    item_bytes: int,
    seq_splits: Sequence[int] | None = None,
    head_splits: Sequence[int] | None = None,
) -> ExchangePlan:
    """The plan for an input of ``shape`` on ``rank``. Splits left out are even. Raises UlyssesInputError (BAD_SHAPE)."""
    if len(shape) != 4 or min(shape) < 1:
        raise _bad_shape(f"expected [B, S, H, D] with at least one row of each, got {list(shape)}")
    batch, seq, heads, dim = shape
    if direction is Direction.SCATTER:
        seq_splits = seq_splits if seq_splits is not None else (seq,) * num_ranks
        head_splits = head_splits if head_splits is not None else _even(heads, num_ranks, "head")
    else:
        seq_splits = seq_splits if seq_splits is not None else _even(seq, num_ranks, "seq")
        head_splits = head_splits if head_splits is not None else (heads,) * num_ranks
    for name, splits in (("seq_splits", seq_splits), ("head_splits", head_splits)):
        if len(splits) != num_ranks or min(splits) < 1:
            raise _bad_shape(f"{name} needs {num_ranks} counts of at least 1, got {list(splits)}")
    plan = ExchangePlan(direction, rank, batch, tuple(seq_splits), tuple(head_splits), dim, dtype, item_bytes)
    expected = (plan.seq_splits[rank], plan.heads) if direction is Direction.SCATTER else (plan.seq, plan.head_splits[rank])
    if expected != (seq, heads):
        raise _bad_shape(
            f"{direction} on rank {rank} with {plan.facts()} takes {expected[0]} tokens x {expected[1]} heads, "
            f"got {seq} x {heads}"
        )
    return plan


def output_shape(
    gather: bool,
    shape: Sequence[int],
    rank: int,
    num_ranks: int,
    seq_splits: Sequence[int] | None,
    head_splits: Sequence[int] | None,
) -> tuple[int, int, int, int]:
    """``plan_exchange(...).output_shape`` without its checks, in plain arithmetic that a compiler can trace."""
    batch, seq, heads, dim = shape
    if gather:
        own_seq = seq // num_ranks if seq_splits is None else seq_splits[rank]
        return (batch, own_seq, heads * num_ranks if head_splits is None else sum(head_splits), dim)
    own_heads = heads // num_ranks if head_splits is None else head_splits[rank]
    return (batch, seq * num_ranks if seq_splits is None else sum(seq_splits), own_heads, dim)


def key_value_head_splits(heads: int, kv_heads: int, head_splits: Sequence[int]) -> tuple[int, ...]:
    """The splits of grouped key/value heads that keep the ratio of queries to keys on each rank.

    Raises UlyssesInputError (BAD_SHAPE) if a rank's query heads would need a part of a key head.
    """
    if kv_heads == heads:
        return tuple(head_splits)
    if heads % kv_heads or any(share * kv_heads % heads for share in head_splits):
        raise _bad_shape(f"head_splits {list(head_splits)} of {heads} query heads cut one of {kv_heads} key heads")
    return tuple(share * kv_heads // heads for share in head_splits)


def balanced_splits(total: int, parts: int) -> tuple[int, ...]:
    """``total`` in ``parts`` shares that differ by one at most, larger first: 12 in 8 is 2,2,2,2,1,1,1,1."""
    share, rest = divmod(total, parts)
    return tuple(share + (part < rest) for part in range(parts))


def signature(facts: str) -> int:
    """A word that equal facts share and different facts do not; never 0, which stands for a refused call."""
    return int.from_bytes(hashlib.blake2b(facts.encode(), digest_size=8).digest(), "little") | 1


def aligned(num_bytes: int) -> int:
    """Rounded up to the alignment of slots."""
    return -(-num_bytes // SLOT_ALIGN_BYTES) * SLOT_ALIGN_BYTES


def _even(total: int, num_ranks: int, what: str) -> tuple[int, ...]:
    if total % num_ranks:
        raise _bad_shape(
            f"{total} is no multiple of {num_ranks} ranks: pass {what}_splits, for example "
            f"{list(balanced_splits(total, num_ranks))}"
            if total >= num_ranks
            else f"{total} can't be shared by {num_ranks} ranks"
        )
    return (total // num_ranks,) * num_ranks


def _bad_shape(message: str) -> UlyssesInputError:
    return UlyssesInputError(UlyssesErrorCode.BAD_SHAPE, message)
