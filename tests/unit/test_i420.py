"""RGB to I420 against the standard's numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ithaka.workers.i420 import is_i420, rgb_to_i420

# Rec. ITU-R BT.709-6, 8 bits, 100 % colour bars.
BARS = {
    (255, 255, 255): (235, 128, 128),
    (255, 255, 0): (219, 16, 138),
    (0, 255, 255): (188, 154, 16),
    (0, 255, 0): (173, 42, 26),
    (255, 0, 255): (78, 214, 230),
    (255, 0, 0): (63, 102, 240),
    (0, 0, 255): (32, 240, 118),
    (0, 0, 0): (16, 128, 128),
}


@pytest.mark.parametrize(("rgb", "ycbcr"), BARS.items())
def test_colour_bars(rgb: tuple[int, int, int], ycbcr: tuple[int, int, int]) -> None:
    frames = torch.tensor(rgb, dtype=torch.uint8).expand(2, 4, 6, 3)
    i420 = rgb_to_i420(frames)
    assert i420.shape == (2, 6, 6) and is_i420(i420)
    planes = torch.split(i420.flatten(1), [24, 6, 6], dim=1)
    for plane, value in zip(planes, ycbcr, strict=True):
        assert torch.equal(plane, torch.full_like(plane, value))


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(2, 2), (4, 6), (6, 2), (10, 8)]))
def test_every_sample_is_that_of_the_definition(seed: int, size: tuple[int, int]) -> None:
    height, width = size
    rgb = np.random.default_rng(seed).integers(0, 256, (1, height, width, 3), np.uint8)
    i420 = rgb_to_i420(torch.from_numpy(rgb)).flatten().numpy().astype(float)
    red, green, blue = np.moveaxis(rgb[0].astype(float) / 255, -1, 0)
    luma = 0.2126 * red + 0.7152 * green + 0.0722 * blue

    def halved(plane: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.asarray(plane.reshape(height // 2, 2, width // 2, 2).mean(axis=(1, 3)))

    expected = np.concatenate(
        [
            (16 + 219 * luma).ravel(),
            (128 + 224 * halved((blue - luma) / 1.8556)).ravel(),
            (128 + 224 * halved((red - luma) / 1.5748)).ravel(),
        ]
    )
    assert np.abs(i420 - expected).max() <= 0.5 + 1e-3


@pytest.mark.parametrize(
    "frames",
    [
        torch.zeros(1, 3, 4, 3, dtype=torch.uint8),
        torch.zeros(1, 4, 3, 3, dtype=torch.uint8),
        torch.zeros(1, 4, 4, 4, dtype=torch.uint8),
        torch.zeros(4, 4, 3, dtype=torch.uint8),
        torch.zeros(1, 4, 4, 3),
    ],
)
def test_what_is_no_picture_is_refused(frames: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"expected|even"):
        rgb_to_i420(frames)
