"""An exchange as its two halves, and a transform as torch computes it: for memory that no kernel of ours writes to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic

from ithaka.comm_ext.ulysses.backend import SiteT

if TYPE_CHECKING:
    import torch

    from ithaka.comm_ext.ulysses.fused_transform import QkTransform


class InHalves(ABC, Generic[SiteT]):
    """The whole calls of backend.Exchange, from its halves."""

    @abstractmethod
    def send(self, site: SiteT, tensors: Sequence[torch.Tensor]) -> None:
        """See Exchange."""

    @abstractmethod
    def receive(self, sites: Sequence[SiteT], outs: Sequence[torch.Tensor] | None) -> Sequence[torch.Tensor]:
        """See Exchange."""

    def exchange(
        self, site: SiteT, tensors: Sequence[torch.Tensor], outs: Sequence[torch.Tensor] | None
    ) -> Sequence[torch.Tensor]:
        """See Exchange."""
        self.send(site, tensors)
        return self.receive((site,), outs)

    def exchange_fused(
        self, site: SiteT, tensors: Sequence[torch.Tensor], transform: QkTransform, outs: Sequence[torch.Tensor] | None
    ) -> Sequence[torch.Tensor]:
        """See Exchange."""
        return self.exchange(site, (*transform.apply(*tensors[:2]), *tensors[2:]), outs)
