"""The two faces of a backend: membership in a group, and the exchange itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import torch

    from ithaka.comm_ext.ulysses.cuda_rows import Landing
    from ithaka.comm_ext.ulysses.fused_transform import QkTransform
    from ithaka.comm_ext.ulysses.plan import ExchangePlan


class Membership(Protocol):
    """Life and faults. Faults are sticky: once broken, every call on every rank raises the same UlyssesPeerError."""

    def ensure_sound(self) -> None:
        """Raise the group's fault if there is one; cheap enough for every call."""
        ...

    def refuse(self, reason: str) -> None:
        """Tell the peers that this rank turned a call down. Harmless if they all did."""
        ...

    def check(self) -> None:
        """Raise the group's fault if there is one, or if a peer's process has ended. Never waits."""
        ...

    def abort(self, reason: str) -> None:
        """Break the group, naming this rank, unless it is broken already. Never waits, never raises."""
        ...

    def close(self) -> None:
        """Leave; wait for the others to leave, for a bounded time, unless the group is broken. Idempotent, never raises."""
        ...

    def release(self) -> None:
        """Leave without waiting. Idempotent, never raises."""
        ...


class CallSite(Protocol):
    """A backend's memory of one kind of call: plans, slots, and the views into the arena."""

    @property
    def plans(self) -> tuple[ExchangePlan, ...]:
        """One plan per tensor that the call moves together."""
        ...


SiteT = TypeVar("SiteT", bound=CallSite)


class Exchange(Protocol[SiteT]):
    """The moving of tensors. Calls must be made by all ranks in the same order."""

    def prepare(
        self,
        plans: tuple[ExchangePlan, ...],
        tag: str | None,
        *,
        fused: bool = False,
        landings: tuple[Landing, ...] | None = None,
    ) -> SiteT:
        """Reserve slots for a new call site, of ``exchange_fused`` if ``fused``. Raises UlyssesInputError (OVER_CAPACITY).

        With ``landings`` (from ``landing_of``, a result each) its calls get ``outs`` that lie there, and no slots are needed.
        """
        ...

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Bytes that peers can write into, if this backend has such; ordinary memory otherwise. Raises OVER_CAPACITY."""
        ...

    def landing_of(self, out: torch.Tensor) -> Landing | None:
        """Where ``out`` lies in memory that peers can write into; None if it does not."""
        ...

    def send(self, site: SiteT, tensors: Sequence[torch.Tensor]) -> None:
        """Write to the peers and announce it. Raises UlyssesInputError (LEASE_OVERRUN) before anything is written."""
        ...

    def receive(self, sites: Sequence[SiteT], outs: Sequence[torch.Tensor] | None) -> Sequence[torch.Tensor]:
        """One wait for all that the sites await; the tensors in order, in ``outs`` if given. Raises UlyssesPeerError."""
        ...

    def exchange(
        self, site: SiteT, tensors: Sequence[torch.Tensor], outs: Sequence[torch.Tensor] | None
    ) -> Sequence[torch.Tensor]:
        """``send`` and ``receive`` of one site, which a device can do in one."""
        ...

    def exchange_fused(
        self, site: SiteT, tensors: Sequence[torch.Tensor], transform: QkTransform, outs: Sequence[torch.Tensor] | None
    ) -> Sequence[torch.Tensor]:
        """``exchange`` of queries, keys and values, the first two transformed on their way or before."""
        ...

    def describe(self) -> dict[str, Any]:
        """Sizes, sites and counters, plain values."""
        ...
