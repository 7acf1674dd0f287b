"""Noise as a pure function of (seed, frame, draw): the same on every rank, device and run."""

from __future__ import annotations

import torch

_ODD_MULTIPLIER = 0x9E3779B97F4A7C15
_SEED_BITS = 63


def frame_noise(seed: int, frame: int, draw: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Standard normal float32 on the CPU; ``draw`` tells apart several draws for one frame."""
    mixed = (seed * _ODD_MULTIPLIER + 2 * frame + draw) % (1 << _SEED_BITS)
    generator = torch.Generator().manual_seed(mixed)
    return torch.randn(shape, generator=generator)
