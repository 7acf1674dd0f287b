"""Which heads a rank holds when keys and values have fewer heads than queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ithaka.comm_ext.ulysses.errors import UlyssesErrorCode, UlyssesInputError
from ithaka.comm_ext.ulysses.plan import Band


@dataclass(frozen=True, slots=True)
class HeadShares:
    """Of one tensor: heads of each rank, and where they begin, if they are not simply neighbours. None: evenly."""

    splits: tuple[int, ...] | None = None
    starts: tuple[int, ...] | None = None


def key_value_head_splits(heads: int, kv_heads: int, head_splits: Sequence[int]) -> tuple[int, ...]:
    """The splits of grouped key/value heads that keep the ratio of queries to keys on each rank.

    Raises UlyssesInputError (BAD_SHAPE) if a rank's query heads would need a part of a key head.
    """
    if kv_heads == heads:
        return tuple(head_splits)
    if heads % kv_heads or any(share * kv_heads % heads for share in head_splits):
        raise UlyssesInputError(
            UlyssesErrorCode.BAD_SHAPE,
            f"head_splits {list(head_splits)} of {heads} query heads cut one of {kv_heads} key heads",
        )
    return tuple(share * kv_heads // heads for share in head_splits)


def head_shares(heads: Sequence[int], num_ranks: int, head_splits: tuple[int, ...] | None) -> tuple[HeadShares, ...]:
    """Per tensor of a joint call with so many heads: ``head_splits`` of the first, in the others' proportion.

    Fewer key heads than ranks are held by several ranks each, if the ranks divide evenly among them.
    """
    shares = []
    for count in heads:
        if head_splits is not None and heads[0] >= 1 and count >= 1:
            shares.append(HeadShares(key_value_head_splits(heads[0], count, head_splits)))
        elif 1 <= count < num_ranks and num_ranks % count == 0 and heads[0] % num_ranks == 0 and count != heads[0]:
            owners = num_ranks // count
            shares.append(HeadShares((1,) * num_ranks, tuple(rank // owners for rank in range(num_ranks))))
        else:
            shares.append(HeadShares(head_splits))
    return tuple(shares)


def proportional_band(band: Band, heads: int, kv_heads: int) -> Band:
    """The key heads that a band of a share's query heads needs: in proportion, or the one that they share."""
    if kv_heads < 1 or heads % kv_heads:
        return band  # the plan refuses such heads, or has them all
    ratio = heads // kv_heads
    first, last = band.offset // ratio, (band.offset + band.count - 1) // ratio
    if first == last:
        return Band(first, 1)
    if band.offset % ratio or band.count % ratio:
        raise UlyssesInputError(
            UlyssesErrorCode.BAD_SHAPE,
            f"query heads {band.offset} to {band.offset + band.count - 1} cut a group of {ratio}: take whole groups, or less "
            "than one",
        )
    return Band(first, band.count // ratio)
