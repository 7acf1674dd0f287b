"""Norms written so that they take few passes."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square norm over the last dimension, computed and returned in float32.

    ``x`` [..., C]; ``weight`` [C], or [k, C] for k tensors stacked in front of the channels.
    """
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return wide * scale * weight.float()


def modulate(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float) -> torch.Tensor:
    """Layer norm without weights, then ``* scale + shift`` (``scale`` is the whole factor, not the part beyond one)."""
    normed = torch.nn.functional.layer_norm(x, x.shape[-1:], eps=eps)
    return torch.addcmul(shift, normed, scale)
