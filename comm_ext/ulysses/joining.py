"""How a rank gets its backend: all ranks of a group join with the same one, or all raise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from ithaka.comm_ext.ulysses.alone import Alone
from ithaka.comm_ext.ulysses.backend import Exchange, Membership
from ithaka.comm_ext.ulysses.cuda_calibration import Calibration
from ithaka.comm_ext.ulysses.cuda_member import join_devices
from ithaka.comm_ext.ulysses.group import RankGroup
from ithaka.comm_ext.ulysses.host import HostExchange
from ithaka.comm_ext.ulysses.rendezvous import Rendezvous
from ithaka.comm_ext.ulysses.validation import NO_DEVICE_ENGINE, refusal_of

Backend = Literal["auto", "copy_engine", "sm", "nccl", "host"]


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
    name = "host" if on_host else backend
    rendezvous = Rendezvous(group, timeout_s=timeout_s)
    facts = {"max_bytes": max_bytes, "backend": name}
    try:
        if on_host or refusal is not None:
            rendezvous.join(facts, refusal=refusal, timeout_s=join_timeout_s)
            return Joined(rendezvous, HostExchange(group, rendezvous, max_bytes=max_bytes), name, reason)
        member, exchange = join_devices(group, rendezvous, facts, device, calibration, timeout_s, join_timeout_s)
        return Joined(member, exchange, name, reason)
    except BaseException:
        rendezvous.release()
        raise
