"""Exchanges of a part of each rank's heads as a torch custom op: see ops.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ithaka.comm_ext.ulysses.grouped_heads import head_shares, proportional_band
from ithaka.comm_ext.ulysses.ops import communicator_of
from ithaka.comm_ext.ulysses.plan import Band

if TYPE_CHECKING:
    from ithaka.comm_ext.ulysses.communicator import Splits, UlyssesCommunicator


@torch.library.custom_op("ithaka::ulysses_head_chunk", mutates_args=("outs", "turn"))
def head_chunk_op(
    tensors: list[torch.Tensor],
    outs: list[torch.Tensor],
    turn: torch.Tensor,
    handle: int,
    gather: bool,
    head_offset: int,
    head_count: int,
    tag: str,
    seq_splits: list[int] | None,
    head_splits: list[int] | None,
) -> None:
    """Gather one tensor into its heads of ``outs[0]``, or scatter three into ``outs``, as in the communicator's calls."""
    communicator = communicator_of(handle)
    if gather:
        communicator.gather_head_chunk(
            tensors[0],
            head_offset=head_offset,
            head_count=head_count,
            out=outs[0],
            tag=tag,
            seq_splits=seq_splits,
            head_splits=head_splits,
        )
    else:
        received = communicator.scatter_qkv_head_chunk(
            *tensors, head_offset=head_offset, head_count=head_count, tag=tag, seq_splits=seq_splits, head_splits=head_splits
        )
        for out, result in zip(outs, received, strict=True):
            out.copy_(result)
    turn.add_(1)


@head_chunk_op.register_fake
def _(
    tensors: list[torch.Tensor],
    outs: list[torch.Tensor],
    turn: torch.Tensor,
    handle: int,
    gather: bool,
    head_offset: int,
    head_count: int,
    tag: str,
    seq_splits: list[int] | None,
    head_splits: list[int] | None,
) -> None:
    return None


def traced_scatter_chunk(
    communicator: UlyssesCommunicator,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    band: Band,
    tag: str | None,
    seq_splits: Splits,
    head_splits: Splits,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The call as a graph sees it: fresh outputs, filled by the op."""
    rank, ranks = communicator.rank, communicator.num_ranks
    heads = [x.shape[2] for x in qkv]
    outs = []
    for x, share in zip(qkv, head_shares(heads, ranks, None if head_splits is None else tuple(head_splits)), strict=True):
        own = proportional_band(band, heads[0], x.shape[2])
        whole = x.shape[2] // ranks if share.splits is None else share.splits[rank]
        seq = x.shape[1] * ranks if seq_splits is None else sum(seq_splits)
        outs.append(x.new_empty(x.shape[0], seq, max(min(whole - own.offset, own.count), 0), x.shape[3]))
    _call(communicator, list(qkv), outs, False, band, tag, seq_splits, head_splits)
    return outs[0], outs[1], outs[2]


def traced_gather_chunk(
    communicator: UlyssesCommunicator,
    x: torch.Tensor,
    band: Band,
    out: torch.Tensor,
    tag: str,
    seq_splits: Splits,
    head_splits: Splits,
) -> torch.Tensor:
    """The call as a graph sees it: it changes ``out``."""
    _call(communicator, [x], [out], True, band, tag, seq_splits, head_splits)
    return out


def _call(
    communicator: UlyssesCommunicator,
    tensors: list[torch.Tensor],
    outs: list[torch.Tensor],
    gather: bool,
    band: Band,
    tag: str | None,
    seq_splits: Splits,
    head_splits: Splits,
) -> None:
    # A tag of the graphs' own: its leases end within the op, whatever an eager caller holds.
    head_chunk_op(
        tensors,
        outs,
        communicator.turn,
        communicator.handle,
        gather,
        band.offset,
        band.count,
        f"{tag} in a graph",
        None if seq_splits is None else list(seq_splits),
        None if head_splits is None else list(head_splits),
    )
