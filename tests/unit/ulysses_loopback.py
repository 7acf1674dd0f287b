"""Ranks as threads of this process: quick, and enough for whatever needs no process to die."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.group import GroupDescriptors, RankGroup

JOIN_DEADLINE_S = 60
T = TypeVar("T")


def on_every_seat(num_ranks: int, body: Callable[[RankGroup], T]) -> list[T | Exception]:
    """``body`` in one thread per rank; what each returned or raised, by rank."""
    descriptors = GroupDescriptors.create(num_ranks)
    outcomes: list[T | Exception] = [RuntimeError("did not run")] * num_ranks

    def run(seat: RankGroup) -> None:
        try:
            outcomes[seat.rank] = body(seat)
        except Exception as error:
            outcomes[seat.rank] = error

    threads = [threading.Thread(target=run, args=(descriptors.seat(rank),), daemon=True) for rank in range(num_ranks)]
    descriptors.close()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_DEADLINE_S)
        assert not thread.is_alive(), "a rank hangs"
    return outcomes


def on_every_rank(num_ranks: int, body: Callable[[UlyssesCommunicator], T], **options: Any) -> list[T | Exception]:
    """Like on_every_seat, with a communicator that is closed afterwards."""

    def run(seat: RankGroup) -> T:
        with UlyssesCommunicator(seat, **{"max_bytes": 1 << 20, "timeout_s": 20.0, **options}) as communicator:
            return body(communicator)

    return on_every_seat(num_ranks, run)


def numbered(batch: int, seq: int, heads: int, dim: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[B, S, H, D] that differs everywhere (as far as the dtype can)."""
    return (torch.arange(batch * seq * heads * dim) % 120).view(batch, seq, heads, dim).to(dtype)


def bits(x: torch.Tensor) -> bytes:
    """The elements' bytes: equal where NaN is, unlike torch.equal."""
    return bytes(x.contiguous().flatten().view(torch.uint8).numpy())


def own_shard(rank: int, splits: tuple[int, ...], whole: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.split(whole, list(splits), dim=dim)[rank]
