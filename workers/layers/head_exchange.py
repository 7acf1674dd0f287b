"""What attention asks of whoever moves heads between ranks (Ulysses sequence parallelism)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from ithaka.comm_ext.ulysses.fused_transform import QkNorm, QkRope


class HeadExchange(Protocol):
    """Ranks hold a share of the sequence with all heads, or the whole sequence with a share of the heads.

    ``seq_splits`` and ``head_splits`` name every rank's share where the shares are unequal.
    """

    def scatter_heads(
        self, x: torch.Tensor, *, seq_splits: list[int] | None = None, head_splits: list[int] | None = None
    ) -> torch.Tensor:
        """[B, S/P, H, D] → [B, S, H/P, D]."""
        ...

    def gather_heads(
        self, x: torch.Tensor, *, seq_splits: list[int] | None = None, head_splits: list[int] | None = None
    ) -> torch.Tensor:
        """[B, S, H/P, D] → [B, S/P, H, D]."""
        ...

    def scatter_heads_async(
        self, x: torch.Tensor, tag: str, *, seq_splits: list[int] | None = None, head_splits: list[int] | None = None
    ) -> None:
        """``scatter_heads`` whose result ``wait`` returns; ``x`` must not change before."""
        ...

    def wait(self, tags: Sequence[str]) -> tuple[torch.Tensor, ...]:
        """One wait for several; their results in this order."""
        ...

    def fused_qk_norm_rope_scatter(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        norm: QkNorm | None,
        rope: QkRope | None,
        seq_splits: list[int] | None = None,
        head_splits: list[int] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``scatter_heads`` of three tensors in one exchange, queries and keys normed and turned first."""
        ...
