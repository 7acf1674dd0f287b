"""Norms written so that they take few passes."""

from __future__ import annotations

import torch


def rms_norm_pair(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square norm over the last dimension in float32, for stacked tensors with a weight each.

    ``x`` [..., 2, C], ``weight`` [2, C] → float32 [..., 2, C].
    """
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return wide * scale * weight.float()


def modulate(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float) -> torch.Tensor:
    """Layer norm without weights, then ``* scale + shift`` (``scale`` is the whole factor, not the part beyond one)."""
    normed = torch.nn.functional.layer_norm(x, x.shape[-1:], eps=eps)
    return torch.addcmul(shift, normed, scale)
