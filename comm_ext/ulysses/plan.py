"""Where every row of an exchange goes, as numbers: shapes and splits in, offsets in the arena out. Pure; no torch.

Layout is [B, S, H, D] throughout. ``scatter`` turns a sequence shard with all heads into the whole sequence with a share of
the heads, ``gather`` turns it back. ``seq_splits[r]`` and ``head_splits[r]`` are the tokens and heads of rank r.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from ithaka.comm_ext.ulysses.errors import UlyssesErrorCode, UlyssesInputError

SLOT_ALIGN_BYTES = 64
Shape4 = tuple[int, int, int, int]


class Direction(StrEnum):
    """Which way the tensor turns."""

    SCATTER = "scatter"
    GATHER = "gather"


@dataclass(frozen=True, slots=True)
class Band:
    """Of each rank's share of the heads, those from number ``offset`` on, ``count`` of them."""

    offset: int
    count: int


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
    head_starts: tuple[int, ...]
    """The first of each rank's heads, in the tensor that has all of them. Neighbours, unless the call is for a band."""
    all_heads: int
    """Heads of the tensor that has all of them."""
    replicated: int = 0
    """Rows behind the shard that every rank holds alike. A scatter leaves room for them behind the sequence."""
    replicates: bool = False
    """Whether this is the plan of such rows, on their way back: all of a rank's rows go to every rank, behind its shard. They
    land in the result of the plan before."""

    @property
    def seq(self) -> int:
        """Tokens of all ranks."""
        return sum(self.seq_splits)

    @property
    def heads(self) -> int:
        """Heads of all ranks that this call moves."""
        return sum(self.head_splits)

    @property
    def output_shape(self) -> Shape4:
        """What this rank receives."""
        return self.output_shape_of(self.rank)

    def output_shape_of(self, rank: int) -> Shape4:
        """What ``rank`` receives."""
        if self.direction is Direction.SCATTER:
            return (self.batch, self.seq + self.replicated, self.head_splits[rank], self.head_dim)
        return (self.batch, self.seq_splits[rank] + self.replicated, self.all_heads, self.head_dim)

    @property
    def input_rows(self) -> int:
        """Rows of a head that this rank's input has; those behind are not this plan's."""
        if self.replicates:
            return self.replicated
        return self.seq_splits[self.rank] if self.direction is Direction.SCATTER else self.seq

    @property
    def slot_bytes(self) -> int:
        """Bytes of the largest rank's result, aligned: every rank reserves the same, so that offsets agree."""
        if self.replicates:
            return 0
        if self.direction is Direction.SCATTER:
            rows = (self.seq + self.replicated) * max(self.head_splits)
        else:
            rows = (max(self.seq_splits) + self.replicated) * self.all_heads
        return aligned(self.batch * rows * self.head_dim * self.item_bytes)

    @property
    def is_banded(self) -> bool:
        """Whether the tensor with all heads has others between those that move."""
        return self.heads != self.all_heads or any(
            start != sum(self.head_splits[:rank]) for rank, start in enumerate(self.head_starts)
        )

    def sent_bytes(self, rank: int) -> int:
        """Bytes that ``rank`` writes to others."""
        if self.replicates:
            rows = self.replicated * self.head_splits[rank] * (len(self.seq_splits) - 1)
        elif self.direction is Direction.SCATTER:
            rows = self.seq_splits[rank] * (self.heads - self.head_splits[rank])
        else:
            rows = self.head_splits[rank] * (self.seq - self.seq_splits[rank])
        return self.batch * rows * self.head_dim * self.item_bytes

    def replica(self) -> ExchangePlan:
        """The plan for the replicated rows of a gather."""
        return replace(self, replicates=True)

    def facts(self) -> str:
        """All that the ranks must agree on, in words."""
        return (
            f"{self.direction} batch={self.batch} seq={list(self.seq_splits)} heads={list(self.head_splits)} "
            f"dim={self.head_dim} dtype={self.dtype}"
            + (f" at={list(self.head_starts)} of={self.all_heads}" if self.is_banded else "")
            + (f" replicated={self.replicated}{' back' * self.replicates}" if self.replicated else "")
        )

    def moves(self, window_bytes: int) -> tuple[Move, ...]:
        """The copies that this rank makes, its own share included.

        One when the split axis is even (all peers at once, the windows as a dimension), else one per peer.
        """
        splits = self.head_splits if self.direction is Direction.SCATTER else self.seq_splits
        window = window_bytes // self.item_bytes
        if self.replicates:
            return tuple(self._move_replica(peer, window) for peer in range(len(splits)))
        if len(set(splits)) == 1 and not (self.is_banded and self.direction is Direction.SCATTER):
            return (self._move_to_all(splits[0], window),)
        return tuple(self._move_to(peer, splits[peer], window) for peer in range(len(splits)))

    def _move_to_all(self, share: int, window: int) -> Move:
        ranks, dim = len(self.seq_splits), self.head_dim
        if self.direction is Direction.SCATTER:
            shape = (self.batch, self.seq_splits[self.rank], ranks, share, dim)
            strides = ((self.seq + self.replicated) * share * dim, share * dim, window, dim, 1)
            return Move(None, 0, 0, shape, strides, self._seq_start * share * dim)
        shape = (self.batch, ranks, share, self.head_splits[self.rank], dim)
        row = self.all_heads * dim
        strides = ((share + self.replicated) * row, window, row, dim, 1)
        return Move(None, 0, 0, shape, strides, self._head_start * dim)

    def _move_to(self, peer: int, share: int, window: int) -> Move:
        dim = self.head_dim
        if self.direction is Direction.SCATTER:
            shape = (self.batch, self.seq_splits[self.rank], share, dim)
            strides = ((self.seq + self.replicated) * share * dim, share * dim, dim, 1)
            return Move(2, self.head_starts[peer], share, shape, strides, peer * window + self._seq_start * share * dim)
        start, row = sum(self.seq_splits[:peer]), self.all_heads * dim
        shape = (self.batch, share, self.head_splits[self.rank], dim)
        strides = ((share + self.replicated) * row, row, dim, 1)
        return Move(1, start, share, shape, strides, peer * window + self._head_start * dim)

    def _move_replica(self, peer: int, window: int) -> Move:
        row, share = self.all_heads * self.head_dim, self.seq_splits[peer]
        shape = (self.batch, self.replicated, self.head_splits[self.rank], self.head_dim)
        strides = ((share + self.replicated) * row, row, self.head_dim, 1)
        offset = peer * window + share * row + self._head_start * self.head_dim
        return Move(1, 0, self.replicated, shape, strides, offset)

    @property
    def _seq_start(self) -> int:
        return sum(self.seq_splits[: self.rank])

    @property
    def _head_start(self) -> int:
        return self.head_starts[self.rank]


def slot_offsets(plans: Sequence[ExchangePlan]) -> tuple[int, ...]:
    """Bytes from a slot's start to the result of each plan."""
    offsets: list[int] = []
    end = 0
    for plan in plans:
        offsets.append(offsets[-1] if plan.replicates else end)
        end += plan.slot_bytes
    return tuple(offsets)


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
    head_starts: Sequence[int] | None = None,
    band: Band | None = None,
    all_heads: int | None = None,
    replicated: int = 0,
) -> ExchangePlan:
    """The plan for an input of ``shape`` on ``rank``. Splits left out are even. Raises UlyssesInputError (BAD_SHAPE).

    ``head_starts`` only where ranks share heads; ``all_heads`` only to gather a band, which the input does not tell.
    ``replicated`` of the input's rows are every rank's.
    """
    if len(shape) != 4 or min(shape) < 1 or not 0 <= replicated < shape[1]:
        raise _bad_shape(
            f"expected [B, S, H, D] with at least one row of each besides {replicated} replicated ones, got {list(shape)}"
        )
    batch, seq, heads, dim = shape[0], shape[1] - replicated, shape[2], shape[3]
    scatters = direction is Direction.SCATTER
    if scatters or (band is not None and all_heads is not None):
        whole = heads if scatters or all_heads is None else all_heads
        head_splits = head_splits if head_splits is not None else _even(whole, num_ranks, "head")
    else:
        head_splits = head_splits if head_splits is not None else (heads,) * num_ranks
        whole = sum(head_splits)
    if seq_splits is None:
        seq_splits = (seq,) * num_ranks if scatters else _even(seq, num_ranks, "seq")
    for name, splits in (("seq_splits", seq_splits), ("head_splits", head_splits)):
        if len(splits) != num_ranks or min(splits) < 1:
            raise _bad_shape(f"{name} needs {num_ranks} counts of at least 1, got {list(splits)}")
    if head_starts is None:
        head_starts = tuple(sum(head_splits[:number]) for number in range(num_ranks))
        covered = sum(head_splits)
    else:
        covered = max(start + share for start, share in zip(head_starts, head_splits, strict=True))
    if band is not None:
        head_starts, head_splits = banded(head_starts, head_splits, band)
    plan = ExchangePlan(
        direction,
        rank,
        batch,
        tuple(seq_splits),
        tuple(head_splits),
        dim,
        dtype,
        item_bytes,
        tuple(head_starts),
        whole,
        replicated,
    )
    expected = (plan.seq_splits[rank], covered) if scatters else (plan.seq, plan.head_splits[rank])
    if expected != (seq, heads) or covered != whole:
        raise _bad_shape(
            f"{direction} on rank {rank} with {plan.facts()} takes {expected[0]} tokens x {expected[1]} heads, "
            f"got {seq} x {heads}"
        )
    return plan


def banded(head_starts: Sequence[int], head_splits: Sequence[int], band: Band) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Starts and counts of the band of each rank; a smaller share may end it early, but not before it begins."""
    counts = tuple(min(share - band.offset, band.count) for share in head_splits)
    if band.offset < 0 or min(counts) < 1:
        raise _bad_shape(
            f"heads {band.offset} to {band.offset + band.count - 1} of a share are not there on every rank: {list(head_splits)}"
        )
    return tuple(start + band.offset for start in head_starts), counts


def band_of_all(
    heads: int, num_ranks: int, head_splits: Sequence[int] | None, band: Band
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """``banded`` of shares that are neighbours, evenly if ``head_splits`` is None. Raises UlyssesInputError (BAD_SHAPE)."""
    splits = head_splits if head_splits is not None else _even(heads, num_ranks, "head")
    if len(splits) != num_ranks or sum(splits) != heads:
        raise _bad_shape(f"head_splits {list(splits)} are not {num_ranks} shares of {heads} heads")
    return banded([sum(splits[:number]) for number in range(num_ranks)], splits, band)


def output_shape(
    gather: bool,
    shape: Sequence[int],
    rank: int,
    num_ranks: int,
    seq_splits: Sequence[int] | None,
    head_splits: Sequence[int] | None,
    replicated: int = 0,
) -> tuple[int, int, int, int]:
    """``plan_exchange(...).output_shape`` without its checks, in plain arithmetic that a compiler can trace."""
    batch, seq, heads, dim = shape[0], shape[1] - replicated, shape[2], shape[3]
    if gather:
        own_seq = seq // num_ranks if seq_splits is None else seq_splits[rank]
        return (batch, own_seq + replicated, heads * num_ranks if head_splits is None else sum(head_splits), dim)
    own_heads = heads // num_ranks if head_splits is None else head_splits[rank]
    return (batch, (seq * num_ranks if seq_splits is None else sum(seq_splits)) + replicated, own_heads, dim)


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
