"""How the shards of several ranks make whole tensors: which rows go where. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ithaka.comm_ext.channel.base import ChannelMessage, TensorLayout
from ithaka.comm_ext.channel.device import ALIGN_BYTES, ShardError
from ithaka.comm_ext.channel.layout import ITEM_BYTES, tensor_bytes


@dataclass(frozen=True, slots=True)
class RowCopy:
    """``num_rows`` rows from rank ``rank``'s slot into the whole's: offsets and pitches in bytes."""

    rank: int
    source_offset_bytes: int
    source_pitch_bytes: int
    target_offset_bytes: int
    target_pitch_bytes: int
    row_bytes: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class Assembly:
    """The whole message, and the copies that make it. A tensor that is not sharded comes from the first rank."""

    message: ChannelMessage
    copies: tuple[RowCopy, ...]
    num_bytes: int


def assemble(places: Sequence[str], messages: Sequence[ChannelMessage]) -> Assembly:
    """The whole of one message a rank, in the order of the shards.

    Raises ShardError, with ``places`` (channel and slot of each rank) and layouts, when streams, numbers of tensors, dtypes,
    shard dimensions or the other dimensions differ.
    """
    first = messages[0]
    for place, message in zip(places, messages, strict=True):
        if (message.stream, len(message.tensors)) != (first.stream, len(first.tensors)):
            raise ShardError(
                f"{place}: {len(message.tensors)} tensors of stream {message.stream}, but {places[0]} has "
                f"{len(first.tensors)} of stream {first.stream}"
            )
    wholes: list[TensorLayout] = []
    copies: list[RowCopy] = []
    end_bytes = 0
    for shards in zip(*(message.tensors for message in messages), strict=True):
        whole = _whole(places, shards, -(-end_bytes // ALIGN_BYTES) * ALIGN_BYTES)
        wholes.append(whole)
        copies.extend(_copies(whole, shards))
        end_bytes = whole.offset_bytes + tensor_bytes(whole)
    return Assembly(ChannelMessage(first.header, tuple(wholes), first.stream), tuple(copies), end_bytes)


def _whole(places: Sequence[str], shards: Sequence[TensorLayout], offset_bytes: int) -> TensorLayout:
    first = shards[0]
    for place, shard in zip(places, shards, strict=True):
        if (shard.dtype, shard.shard_dim, _others(shard)) != (first.dtype, first.shard_dim, _others(first)):
            raise ShardError(f"{place}: {shard} does not go together with {first} in {places[0]}")
    if first.shard_dim is None:
        return TensorLayout(first.shape, first.dtype, offset_bytes)
    shape = list(first.shape)
    shape[first.shard_dim] = sum(shard.shape[first.shard_dim] for shard in shards)
    return TensorLayout(tuple(shape), first.dtype, offset_bytes)


def _others(shard: TensorLayout) -> tuple[int, ...]:
    """The lengths in which the ranks must agree."""
    return tuple(length for dimension, length in enumerate(shard.shape) if dimension != shard.shard_dim)


def _copies(whole: TensorLayout, shards: Sequence[TensorLayout]) -> list[RowCopy]:
    dimension = shards[0].shard_dim
    if dimension is None:
        num_bytes = tensor_bytes(whole)
        return [RowCopy(0, shards[0].offset_bytes, num_bytes, whole.offset_bytes, num_bytes, num_bytes, 1)]
    copies = []
    num_rows = math.prod(whole.shape[:dimension])
    inner_bytes = ITEM_BYTES[whole.dtype] * math.prod(whole.shape[dimension + 1 :])
    pitch_bytes = inner_bytes * whole.shape[dimension]
    at_bytes = whole.offset_bytes
    for rank, shard in enumerate(shards):
        row_bytes = inner_bytes * shard.shape[dimension]
        copies.append(RowCopy(rank, shard.offset_bytes, row_bytes, at_bytes, pitch_bytes, row_bytes, num_rows))
        at_bytes += row_bytes
    return copies
