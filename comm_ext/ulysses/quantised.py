"""Exchanges at one byte a number: each row (one token of one head) travels as int8 or fp8 with its own scale behind it.

Half the bytes of bf16 on the wire, and one more pass over the tensor on each side; worth it where the wire is the slower. The
error is that of the rounding alone, the exchange adds none. For a row of largest magnitude ``m``, before the result is
rounded to its dtype:

    int8   |x - y| <= m / 254                      scale m / 127, to the nearest
    fp8    |x - y| <= max(|x| / 16, m / 229_376)   e4m3 of three mantissa bits, scale m / 448; below its least normal number,
                                                   2^-6, its steps are 2^-9, of the scale

A row of zeros stays zeros. Rows must be finite: an infinity or a NaN spoils its row. No gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.errors import UlyssesErrorCode, UlyssesInputError
from ithaka.comm_ext.ulysses.plan import Direction

Wire = Literal["int8", "fp8"]
SCALE_BYTES = 16
"""Four for the scale, the rest so that rows of a multiple of 16 numbers move in whole units."""
_LARGEST = {"int8": 127.0, "fp8": 448.0}
_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def quantise_rows(x: torch.Tensor, wire: Wire) -> torch.Tensor:
    """[..., D] of any floating dtype → [..., D + 16] bytes: the row's numbers, its scale as float32, padding."""
    if not x.is_floating_point() or x.dtype.itemsize < 2:
        raise UlyssesInputError(UlyssesErrorCode.BAD_DTYPE, f"only wider floating dtypes are quantised, not {x.dtype}")
    if wire not in _DTYPES:
        raise UlyssesInputError(UlyssesErrorCode.BAD_ARGUMENT, f"wire must be one of {', '.join(_DTYPES)}, got {wire!r}")
    wide = x.to(torch.float32)
    scale = wide.abs().amax(-1, keepdim=True) / _LARGEST[wire]
    scaled = (wide / torch.where(scale > 0, scale, 1)).clamp(-_LARGEST[wire], _LARGEST[wire])
    packed = torch.zeros(*x.shape[:-1], x.shape[-1] + SCALE_BYTES, dtype=torch.uint8, device=x.device)
    numbers = (scaled.round() if wire == "int8" else scaled).to(_DTYPES[wire])
    packed[..., : x.shape[-1]] = numbers.view(torch.uint8)
    packed[..., x.shape[-1] : x.shape[-1] + 4] = scale.contiguous().view(torch.uint8)
    return packed


def dequantise_rows(packed: torch.Tensor, wire: Wire, dtype: torch.dtype) -> torch.Tensor:
    """The inverse, but for the rounding: [..., D + 16] bytes → [..., D] of ``dtype``."""
    dim = packed.shape[-1] - SCALE_BYTES
    numbers = packed[..., :dim].contiguous().view(_DTYPES[wire]).to(torch.float32)
    scale = packed[..., dim : dim + 4].clone(memory_format=torch.contiguous_format).view(torch.float32)
    return (numbers * scale).to(dtype)


def exchange_quantised(
    communicator: UlyssesCommunicator,
    direction: Direction,
    x: torch.Tensor,
    *,
    wire: Wire = "int8",
    tag: str | None = "quantised",
    seq_splits: Sequence[int] | None = None,
    head_splits: Sequence[int] | None = None,
) -> torch.Tensor:
    """``scatter_heads`` or ``gather_heads`` of ``x`` by way of ``wire``; a fresh tensor of its dtype. ``tag`` names the site.

    Every rank must use the same ``wire`` (it is part of the site's name). Raises as those do, and BAD_DTYPE.
    """
    exchange = communicator.scatter_heads if direction is Direction.SCATTER else communicator.gather_heads
    packed = exchange(
        quantise_rows(x, wire),
        tag=None if tag is None else f"{tag} {wire}",
        seq_splits=seq_splits,
        head_splits=head_splits,
    )
    return dequantise_rows(packed, wire, x.dtype)
