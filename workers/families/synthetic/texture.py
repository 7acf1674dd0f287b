"""A picture that drifts: something for the encoder to do, at the price of three copies a frame."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_PERIOD = 64
"""Pixels after which the pattern repeats, so that any shift is a slice of one plane."""

Plane = npt.NDArray[np.uint8]


class DriftingTexture:
    """Sine waves of period 64 pixels in colours drawn from ``seed``; frames are slices at a moving offset."""

    def __init__(self, width: int, height: int, seed: int) -> None:
        self._width, self._height = width, height
        phases = np.random.default_rng(seed).uniform(0, 2 * np.pi, 6)
        self._luma = _waves(height + _PERIOD, width + _PERIOD, _PERIOD, phases[:2], amplitude=70)
        half = (height // 2 + _PERIOD // 2, width // 2 + _PERIOD // 2, _PERIOD // 2)
        self._blue = _waves(*half, phases[2:4], amplitude=60)
        self._red = _waves(*half, phases[4:], amplitude=60)

    def draw(self, frame: Plane, dx: int, dy: int) -> None:
        """Fill ``frame``, I420 as flat bytes ``[height * width * 3 // 2]``, with the texture moved by (dx, dy) pixels."""
        width, height = self._width, self._height
        num_luma = width * height
        planes = frame[:num_luma], frame[num_luma : num_luma * 5 // 4], frame[num_luma * 5 // 4 :]
        x, y = dx % _PERIOD, dy % _PERIOD
        planes[0].reshape(height, width)[:] = self._luma[y : y + height, x : x + width]
        x, y = x // 2, y // 2
        for plane, source in zip(planes[1:], (self._blue, self._red), strict=True):
            plane.reshape(height // 2, width // 2)[:] = source[y : y + height // 2, x : x + width // 2]


def _waves(height: int, width: int, period: int, phases: npt.NDArray[np.float64], *, amplitude: float) -> Plane:
    rows = np.sin(np.arange(height) * (2 * np.pi / period) + phases[0])
    columns = np.sin(np.arange(width) * (2 * np.pi / period) + phases[1])
    plane = 128 + amplitude / 2 * (rows[:, None] + columns[None, :])
    return np.asarray(plane.round(), dtype=np.uint8)
