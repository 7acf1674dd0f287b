"""The exchanges in plain torch, over the shards of all ranks at once: what every backend must equal, bit by bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def scatter_heads_reference(shards: Sequence[torch.Tensor], head_splits: Sequence[int]) -> list[torch.Tensor]:
    """Rank r's ``[B, S_r, H, D]`` to rank r's ``[B, S, H_r, D]``, fresh and contiguous."""
    whole = torch.cat(list(shards), dim=1)
    return [share.contiguous() for share in torch.split(whole, list(head_splits), dim=2)]


def gather_heads_reference(shards: Sequence[torch.Tensor], seq_splits: Sequence[int]) -> list[torch.Tensor]:
    """Rank r's ``[B, S, H_r, D]`` to rank r's ``[B, S_r, H, D]``, fresh and contiguous."""
    whole = torch.cat(list(shards), dim=2)
    return [share.contiguous() for share in torch.split(whole, list(seq_splits), dim=1)]
