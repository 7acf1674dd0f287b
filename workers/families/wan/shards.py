"""How the ranks of a group split the model: tokens outside of attention, heads inside."""

from __future__ import annotations

from dataclasses import dataclass

from ithaka.workers.families.base import FamilyLoadError
from ithaka.workers.families.wan.weights_check import check_ranks
from ithaka.workers.layers.attention import HeadShards
from ithaka.workers.layers.head_exchange import HeadExchange


@dataclass(frozen=True, slots=True)
class RankShare:
    """One rank's part: its tokens of every frame, its number of heads, and whom it shares with."""

    tokens: slice
    num_heads: int
    shards: HeadShards | None


def share_of(
    rank: int, num_ranks: int, *, num_tokens: int, num_heads: int, exchange: HeadExchange | None, fuses: bool = False
) -> RankShare:
    """Split evenly, or as evenly as whole heads allow; ``fuses`` as in ``HeadShards``.

    Raises FamilyLoadError where a rank would be left without.
    """
    if num_ranks == 1:
        return RankShare(slice(0, num_tokens), num_heads, None)
    check_ranks(num_ranks, num_heads)
    if exchange is None:
        raise FamilyLoadError(f"{num_ranks} ranks were asked for without a communicator between them")
    tokens, heads = _split(num_tokens, num_ranks), _split(num_heads, num_ranks)
    even = len(set(tokens)) == 1 and len(set(heads)) == 1
    shards = HeadShards(exchange, num_ranks, None if even else tokens, None if even else heads, fuses)
    first = sum(tokens[:rank])
    return RankShare(slice(first, first + tokens[rank]), heads[rank], shards)


def _split(count: int, parts: int) -> list[int]:
    return [count // parts + (index < count % parts) for index in range(parts)]
