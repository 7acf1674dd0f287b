"""How a rank gets its backend: all ranks of a group join with the same one, or all raise."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch

from ithaka.comm_ext.ulysses.alone import Alone
from ithaka.comm_ext.ulysses.backend import Exchange, Membership
from ithaka.comm_ext.ulysses.collective import (
    CollectiveExchange,
    CollectiveMember,
    listen,
    open_process_group,
    open_store,
    try_out,
)
from ithaka.comm_ext.ulysses.cuda_calibration import Calibration
from ithaka.comm_ext.ulysses.cuda_meeting import CardTable
from ithaka.comm_ext.ulysses.cuda_member import join_devices
from ithaka.comm_ext.ulysses.errors import UlyssesBackendError, UlyssesErrorCode
from ithaka.comm_ext.ulysses.group import RankGroup
from ithaka.comm_ext.ulysses.host import HostExchange
from ithaka.comm_ext.ulysses.rendezvous import Rendezvous
from ithaka.comm_ext.ulysses.validation import NO_DEVICE_ENGINE, refusal_of

Backend = Literal["auto", "copy_engine", "sm", "nccl", "gloo", "host"]
T = TypeVar("T")
_MAX_FAILURE_CHARS = 600


@dataclass(frozen=True, slots=True)
class Joined:
    """A rank's backend."""

    membership: Membership
    exchange: Exchange[Any]
    backend: str
    fallback_reason: str | None


def join(
    group: RankGroup,
    max_bytes: int,
    backend: Backend,
    device: torch.device,
    calibration: Calibration | None,
    timeout_s: float,
    join_timeout_s: float,
) -> Joined:
    """See UlyssesCommunicator's constructor."""
    on_host = device.type != "cuda"
    reason = NO_DEVICE_ENGINE if backend == "auto" and on_host else None
    refusal = refusal_of(max_bytes, backend, device, timeout_s, join_timeout_s)
    if group.num_ranks == 1:
        if refusal is not None:
            raise refusal
        alone = Alone(device)
        return Joined(alone, alone, "passthrough", reason)
    name = "host" if on_host and backend != "gloo" else backend
    rendezvous = Rendezvous(group, timeout_s=timeout_s)
    facts = {"max_bytes": max_bytes, "backend": name}
    cards: CardTable | None = None
    try:
        if refusal is not None or name == "host":
            rendezvous.join(facts, refusal=refusal, timeout_s=join_timeout_s)
            return Joined(rendezvous, HostExchange(group, rendezvous, max_bytes=max_bytes), name, reason)
        cards = CardTable(group)
        if name in ("nccl", "gloo"):
            rendezvous.join(facts, refusal=None, timeout_s=join_timeout_s)
            return _join_collective(group, rendezvous, cards, device, name, None, timeout_s, join_timeout_s)
        try:
            member, exchange = join_devices(group, rendezvous, cards, facts, device, calibration, timeout_s, join_timeout_s)
            return Joined(member, exchange, name, reason)
        except UlyssesBackendError as error:
            if name != "auto":
                raise
            return _join_collective(group, rendezvous, cards, device, "nccl", str(error), timeout_s, join_timeout_s)
    except BaseException:
        if cards is not None:
            cards.close()
        rendezvous.release()
        raise


def _join_collective(
    group: RankGroup,
    rendezvous: Rendezvous,
    cards: CardTable,
    device: torch.device,
    name: str,
    reason: str | None,
    timeout_s: float,
    join_timeout_s: float,
) -> Joined:
    """All ranks open one process group, or all raise UlyssesBackendError, with ``reason``: why they need it.

    Step by step, each of them taken by all or by none: a rank that waits for one which has given up would wait long.
    """
    rank, num_ranks = group.rank, group.num_ranks

    def together(step: Callable[[], T]) -> T:
        value, failure = None, None
        try:
            value = step()
        except (RuntimeError, ValueError, OSError, AttributeError) as error:  # no such backend, no network, one GPU twice
            failure = f"{name} can't be used: {str(error)[:_MAX_FAILURE_CHARS]}"
        for number, card in enumerate(cards.share(rendezvous, {"error": failure}, timeout_s=join_timeout_s)):
            if card["error"]:
                text = f"rank {number}: {card['error']}"
                raise UlyssesBackendError(
                    UlyssesErrorCode.BACKEND_UNAVAILABLE, text if reason is None else f"{reason}; and {text}"
                )
        return value  # type: ignore[return-value]

    with contextlib.closing(cards), contextlib.ExitStack() as stack:
        listener = stack.enter_context(listen()) if rank == 0 else None
        port = 0 if listener is None else listener.getsockname()[1]
        port = cards.share(rendezvous, {"port": port})[0]["port"]
        store = together(lambda: open_store(port, listener, num_ranks, join_timeout_s))
        opened = together(lambda: open_process_group(store, rank, num_ranks, device, timeout_s))
        together(lambda: try_out(opened, num_ranks, device))
    member = CollectiveMember(rendezvous, opened, aborts=device.type == "cuda")
    return Joined(member, CollectiveExchange(opened, rendezvous, device, name), name, reason)
