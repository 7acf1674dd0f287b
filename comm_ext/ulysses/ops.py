"""Exchanges as torch custom ops, so that a model compiles around them in one graph (``torch.compile(fullgraph=True)``).

Compiled calls return ordinary tensors, never leases: the compiler may place, reuse and reorder memory as it likes. What it
must not do is swap or drop exchanges, since the ranks must make them in the same order: each op therefore says that it
changes the communicator's ``turn``, a one-element tensor passed through all of them.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ithaka.comm_ext.ulysses.errors import UlyssesClosedError, UlyssesErrorCode
from ithaka.comm_ext.ulysses.grouped_heads import head_shares
from ithaka.comm_ext.ulysses.plan import Direction, output_shape

if TYPE_CHECKING:
    from ithaka.comm_ext.ulysses.communicator import Splits, UlyssesCommunicator

# A graph holds numbers and tensors only, so an op finds its communicator by number. Weak: registering keeps nothing alive.
_communicators: weakref.WeakValueDictionary[int, UlyssesCommunicator] = weakref.WeakValueDictionary()
_handles = itertools.count(1)


def register(communicator: UlyssesCommunicator) -> int:
    """A number by which ops find the communicator for as long as it lives."""
    handle = next(_handles)
    _communicators[handle] = communicator
    return handle


@torch.library.custom_op("ithaka::ulysses_exchange", mutates_args=("outs", "turn"))
def exchange_op(
    tensors: list[torch.Tensor],
    outs: list[torch.Tensor],
    turn: torch.Tensor,
    handle: int,
    gather: bool,
    seq_splits: list[int] | None,
    head_splits: list[int] | None,
    replicated: int = 0,
) -> None:
    """Exchange ``tensors`` together, in one direction, into ``outs`` (shapes as of the communicator's calls)."""
    direction = Direction.GATHER if gather else Direction.SCATTER
    communicator_of(handle).exchange_into(
        direction, tensors, outs, seq_splits=seq_splits, head_splits=head_splits, replicated=replicated
    )
    turn.add_(1)


@torch.library.custom_op("ithaka::ulysses_send", mutates_args=("x", "turn"))
def send_op(
    x: torch.Tensor,
    turn: torch.Tensor,
    handle: int,
    tag: str,
    seq_splits: list[int] | None,
    head_splits: list[int] | None,
    replicated: int = 0,
) -> None:
    """Begin a tagged scatter of ``x``, which an engine may read until the wait. It is said to change: else the compiler
    may give the wait a copy of it, and put something else in its place."""
    communicator_of(handle).scatter_heads_async(x, tag, seq_splits=seq_splits, head_splits=head_splits, replicated=replicated)
    turn.add_(1)


@torch.library.custom_op("ithaka::ulysses_wait", mutates_args=("outs", "turn"))
def wait_op(sent: list[torch.Tensor], outs: list[torch.Tensor], turn: torch.Tensor, handle: int, tags: str) -> None:
    """Wait for ``tags`` (one per line), results into ``outs``. ``sent`` are what was sent, in place until now."""
    for out, result in zip(outs, communicator_of(handle).wait(tags.split("\n")), strict=True):
        out.copy_(result)
    turn.add_(1)


@exchange_op.register_fake
def _(
    tensors: list[torch.Tensor],
    outs: list[torch.Tensor],
    turn: torch.Tensor,
    handle: int,
    gather: bool,
    seq_splits: list[int] | None,
    head_splits: list[int] | None,
    replicated: int = 0,
) -> None:
    return None


@send_op.register_fake
def _(
    x: torch.Tensor,
    turn: torch.Tensor,
    handle: int,
    tag: str,
    seq_splits: list[int] | None,
    head_splits: list[int] | None,
    replicated: int = 0,
) -> None:
    return None


@wait_op.register_fake
def _(sent: list[torch.Tensor], outs: list[torch.Tensor], turn: torch.Tensor, handle: int, tags: str) -> None:
    return None


def traced_exchange(
    communicator: UlyssesCommunicator,
    direction: Direction,
    tensors: Sequence[torch.Tensor],
    out: torch.Tensor | None,
    seq_splits: Splits,
    head_splits: Splits,
    replicated: int = 0,
) -> list[torch.Tensor]:
    """A call as a graph sees it: fresh outputs (or ``out``), filled by the op."""
    outs = [out] if out is not None else empty_results(communicator, direction, tensors, seq_splits, head_splits, replicated)
    exchange_op(
        list(tensors),
        outs,
        communicator.turn,
        communicator.handle,
        direction is Direction.GATHER,
        None if seq_splits is None else list(seq_splits),
        None if head_splits is None else list(head_splits),
        replicated,
    )
    return outs


def traced_send(
    communicator: UlyssesCommunicator,
    x: torch.Tensor,
    tag: str,
    seq_splits: Splits,
    head_splits: Splits,
    replicated: int = 0,
) -> None:
    """``scatter_heads_async`` as a graph sees it; input and output wait in ``announced``."""
    send_op(
        x,
        communicator.turn,
        communicator.handle,
        tag,
        None if seq_splits is None else list(seq_splits),
        None if head_splits is None else list(head_splits),
        replicated,
    )
    communicator.announced[tag] = (x, _empty(communicator, Direction.SCATTER, x, seq_splits, head_splits, replicated))


def traced_wait(communicator: UlyssesCommunicator, tags: Sequence[str]) -> tuple[torch.Tensor, ...]:
    """``wait`` as a graph sees it."""
    announced = [communicator.announced.pop(tag) for tag in tags]
    outs = [out for _, out in announced]
    wait_op([x for x, _ in announced], outs, communicator.turn, communicator.handle, "\n".join(tags))
    return tuple(outs)


def empty_results(
    communicator: UlyssesCommunicator,
    direction: Direction,
    tensors: Sequence[torch.Tensor],
    seq_splits: Splits,
    head_splits: Splits,
    replicated: int = 0,
) -> list[torch.Tensor]:
    """What a call makes of ``tensors``, not filled yet."""
    if len(tensors) == 1:
        return [_empty(communicator, direction, tensors[0], seq_splits, head_splits, replicated)]
    shares = head_shares(
        [x.shape[2] for x in tensors], communicator.num_ranks, None if head_splits is None else tuple(head_splits)
    )
    return [
        _empty(communicator, direction, x, seq_splits, own.splits, replicated) for x, own in zip(tensors, shares, strict=True)
    ]


def _empty(
    communicator: UlyssesCommunicator,
    direction: Direction,
    x: torch.Tensor,
    seq_splits: Splits,
    head_splits: Splits,
    replicated: int = 0,
) -> torch.Tensor:
    shape = output_shape(
        direction is Direction.GATHER,
        x.shape,
        communicator.rank,
        communicator.num_ranks,
        seq_splits,
        head_splits,
        replicated,
    )
    return x.new_empty(shape)


def communicator_of(handle: int) -> UlyssesCommunicator:
    """The communicator of a graph's number."""
    communicator = _communicators.get(handle)
    if communicator is None:
        raise UlyssesClosedError(UlyssesErrorCode.CLOSED, "the communicator of this compiled graph is gone: compile again")
    return communicator
