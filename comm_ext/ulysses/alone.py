"""A group of one: tensors pass through, nothing is mapped, nobody is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ithaka.comm_ext.ulysses.cuda_rows import Landing
from ithaka.comm_ext.ulysses.errors import UlyssesErrorCode, UlyssesPeerError
from ithaka.comm_ext.ulysses.halves import InHalves
from ithaka.comm_ext.ulysses.plan import ExchangePlan


@dataclass(slots=True)
class AloneSite:
    """Holds what was sent until it is received."""

    plans: tuple[ExchangePlan, ...]
    sent: Sequence[torch.Tensor] = ()


class Alone(InHalves[AloneSite]):
    """Membership and Exchange of a single rank. Results are the inputs themselves, unless ``outs`` are given."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._fault: UlyssesPeerError | None = None
        self._calls = 0

    def prepare(
        self,
        plans: tuple[ExchangePlan, ...],
        tag: str | None,
        *,
        fused: bool = False,
        landings: tuple[Landing, ...] | None = None,
    ) -> AloneSite:
        """See Exchange."""
        return AloneSite(plans)

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """See Exchange: ordinary memory."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=self._device)

    def landing_of(self, out: torch.Tensor) -> Landing | None:
        """See Exchange."""
        return None

    def send(self, site: AloneSite, tensors: Sequence[torch.Tensor]) -> None:
        """See Exchange."""
        self._calls += 1
        site.sent = tensors

    def receive(self, sites: Sequence[AloneSite], outs: Sequence[torch.Tensor] | None) -> list[torch.Tensor]:
        """See Exchange."""
        received = [tensor for site in sites for tensor in site.sent]
        for site in sites:
            site.sent = ()
        if outs is None:
            return received
        return [out.copy_(tensor) for out, tensor in zip(outs, received, strict=True)]

    def describe(self) -> dict[str, Any]:
        """See Exchange."""
        return {"calls": self._calls}

    def refuse(self, reason: str) -> None:
        """See Membership: there is nobody to tell."""

    def ensure_sound(self) -> None:
        """See Membership."""
        if self._fault is not None:
            raise UlyssesPeerError(self._fault.code, self._fault.rank, str(self._fault))

    def check(self) -> None:
        """See Membership."""
        self.ensure_sound()

    def abort(self, reason: str) -> None:
        """See Membership."""
        if self._fault is None:
            self._fault = UlyssesPeerError(UlyssesErrorCode.PEER_ABORTED, 0, f"rank 0 gave up: {reason}")

    def close(self) -> None:
        """See Membership: there is nothing to leave."""

    def release(self) -> None:
        """See Membership: there is nothing to leave."""
