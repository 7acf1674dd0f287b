"""Rotary positions for causal video: a frame offset without an end, and positions in the frame.

The rotation of a frame is computed from its index in float64 and reduced modulo a full turn, so there is no table to run
out of: attention depends on differences of positions only, and these stay exact for any length of a session.
"""

from __future__ import annotations

import torch

_FULL_TURN = 2 * torch.pi


class FrameRope:
    """Phases of Wan's rotary embedding: the head's channel pairs are shared out over time, height and width."""

    def __init__(
        self, head_dim: int, height: int, width: int, *, device: torch.device | None = None, theta: float = 10000.0
    ) -> None:
        spatial_dim = 2 * (head_dim // 6)
        self._device = device
        self._time_frequencies = _frequencies(head_dim - 2 * spatial_dim, theta)
        spatial = _frequencies(spatial_dim, theta)
        rows = torch.arange(height, dtype=torch.float64)[:, None, None] * spatial
        columns = torch.arange(width, dtype=torch.float64)[None, :, None] * spatial
        shape = (height, width, spatial.shape[0])
        angles = torch.cat([rows.expand(shape), columns.expand(shape)], -1).flatten(0, 1)
        self._spatial = _phases(angles).to(device)

    def phases(self, frames: tuple[int, ...]) -> torch.Tensor:
        """Phases of whole frames: complex64 ``[len(frames), height * width, head_dim // 2]``."""
        index = torch.tensor(frames, dtype=torch.float64)
        time = _phases(index[:, None] * self._time_frequencies).to(self._device)
        num_tokens = self._spatial.shape[0]
        return torch.cat([time[:, None].expand(-1, num_tokens, -1), self._spatial.expand(len(frames), -1, -1)], dim=-1)

    def shift(self, num_frames: int) -> torch.Tensor:
        """Phases that move a rotated key by ``num_frames`` frames: complex64 ``[head_dim // 2]``."""
        time = _phases(num_frames * self._time_frequencies)
        still = torch.ones(self._spatial.shape[1], dtype=torch.complex64)
        return torch.cat([time, still]).to(self._device)


def rotate_pairs(x: torch.Tensor, phases: torch.Tensor) -> torch.Tensor:
    """Turn neighbouring channel pairs of ``x``, float32 [..., D], by complex64 phases that broadcast to [..., D // 2]."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * phases).flatten(-2)


def _frequencies(dim: int, theta: float) -> torch.Tensor:
    return theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)


def _phases(angles: torch.Tensor) -> torch.Tensor:
    reduced = torch.remainder(angles, _FULL_TURN)
    return torch.polar(torch.ones_like(reduced), reduced).to(torch.complex64)
