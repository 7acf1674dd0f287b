"""RGB as a model makes it to I420 as an encoder takes it: BT.709, limited range."""

from __future__ import annotations

import torch

# ITU-R BT.709-6 §3.2–3.4: luma weights, and the digital ranges of 8 bits (Y 16–235, C 16–240).
_RED, _GREEN, _BLUE = 0.2126, 0.7152, 0.0722
_LUMA_SCALE = 219 / 255
_CB_SCALE = 224 / 255 / (2 * (1 - _BLUE))
_CR_SCALE = 224 / 255 / (2 * (1 - _RED))


def is_i420(frames: torch.Tensor) -> bool:
    """Whether a family's result ``[n, height * 3 // 2, width]`` needs no conversion."""
    return frames.dim() == 3


def rgb_to_i420(frames_NHWC: torch.Tensor) -> torch.Tensor:
    """uint8 RGB ``[n, height, width, 3]``, full range → uint8 I420 ``[n, height * 3 // 2, width]`` on the same device.

    Each frame's bytes are the Y plane, then U, then V at half size both ways; chroma is the mean of its four pixels.
    Raises ValueError for another dtype or shape, or odd sides.
    """
    if frames_NHWC.dtype != torch.uint8 or frames_NHWC.dim() != 4 or frames_NHWC.shape[-1] != 3:
        raise ValueError(f"expected uint8 [n, height, width, 3], got {frames_NHWC.dtype} {list(frames_NHWC.shape)}")
    num_frames, height, width, _ = frames_NHWC.shape
    if height % 2 or width % 2:
        raise ValueError(f"I420 needs even sides, got {width}x{height}")
    red, green, blue = frames_NHWC.to(torch.float32).unbind(-1)
    luma = red * _RED
    luma.add_(green, alpha=_GREEN).add_(blue, alpha=_BLUE)
    luma_half, red_half, blue_half = (torch.nn.functional.avg_pool2d(plane, 2) for plane in (luma, red, blue))
    out = torch.empty((num_frames, height * 3 // 2 * width), dtype=torch.uint8, device=frames_NHWC.device)
    num_luma = height * width
    num_chroma = num_luma // 4
    out[:, :num_luma] = _quantized(luma, _LUMA_SCALE, 16.0)
    out[:, num_luma : num_luma + num_chroma] = _quantized(blue_half - luma_half, _CB_SCALE, 128.0)
    out[:, num_luma + num_chroma :] = _quantized(red_half - luma_half, _CR_SCALE, 128.0)
    return out.view(num_frames, height * 3 // 2, width)


def _quantized(plane_NHW: torch.Tensor, scale: float, offset: float) -> torch.Tensor:
    # The ranges can't overflow: |B - Y| and |R - Y| are bounded by their scales' denominators.
    return plane_NHW.mul(scale).add_(offset + 0.5).floor_().to(torch.uint8).flatten(1)
