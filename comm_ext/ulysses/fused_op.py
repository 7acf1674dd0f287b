"""The fused call as a torch custom op: see ops.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ithaka.comm_ext.ulysses.fused_transform import Pairing, QkNorm, QkRope, QkTransform, Span
from ithaka.comm_ext.ulysses.ops import communicator_of, empty_results
from ithaka.comm_ext.ulysses.plan import Direction

if TYPE_CHECKING:
    from ithaka.comm_ext.ulysses.communicator import Splits, UlyssesCommunicator

_SPANS: tuple[Span, ...] = ("head", "row")
_PAIRINGS: tuple[Pairing, ...] = ("interleaved", "halves")


@torch.library.custom_op("ithaka::ulysses_fused", mutates_args=("outs", "turn"))
def fused_op(
    qkv: list[torch.Tensor],
    weights: list[torch.Tensor],
    phases: list[torch.Tensor],
    outs: list[torch.Tensor],
    turn: torch.Tensor,
    handle: int,
    eps: float,
    span: int,
    pairing: int,
    seq_splits: list[int] | None,
    head_splits: list[int] | None,
) -> None:
    """Scatter ``qkv`` into ``outs``; no norm without ``weights``, no positions without ``phases``, pairs of floats:
    torch's default compiler fails at ops like this one that take complex numbers."""
    norm = QkNorm(weights[0], weights[1], eps, _SPANS[span]) if weights else None
    rope = QkRope(torch.view_as_complex(phases[0]), _PAIRINGS[pairing]) if phases else None
    communicator_of(handle).exchange_into(
        Direction.SCATTER, qkv, outs, seq_splits=seq_splits, head_splits=head_splits, transform=QkTransform(norm, rope)
    )
    turn.add_(1)


@fused_op.register_fake
def _(
    qkv: list[torch.Tensor],
    weights: list[torch.Tensor],
    phases: list[torch.Tensor],
    outs: list[torch.Tensor],
    turn: torch.Tensor,
    handle: int,
    eps: float,
    span: int,
    pairing: int,
    seq_splits: list[int] | None,
    head_splits: list[int] | None,
) -> None:
    return None


def traced_fused(
    communicator: UlyssesCommunicator,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    transform: QkTransform,
    seq_splits: Splits,
    head_splits: Splits,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The call as a graph sees it: fresh outputs, filled by the op."""
    norm, rope = transform.norm, transform.rope
    outs = empty_results(communicator, Direction.SCATTER, qkv, seq_splits, head_splits)
    fused_op(
        list(qkv),
        [] if norm is None else [norm.q_weight, norm.k_weight],
        [] if rope is None else [torch.view_as_real(rope.phases)],
        outs,
        communicator.turn,
        communicator.handle,
        0.0 if norm is None else norm.eps,
        0 if norm is None else _SPANS.index(norm.span),
        0 if rope is None else _PAIRINGS.index(rope.pairing),
        None if seq_splits is None else list(seq_splits),
        None if head_splits is None else list(head_splits),
    )
    return outs[0], outs[1], outs[2]
