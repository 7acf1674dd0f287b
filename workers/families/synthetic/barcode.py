"""A frame's number and the controls it obeyed, written into its picture so that they survive lossy coding.

Layout, for readers in any language. From the top left corner: 5 rows of 16 square cells, the row's most significant bit first,
white (Y 235) is 1 and black (Y 16) is 0. A cell's side is ``8 * min(4, width // 128, height // 64)`` pixels.

| row | bits |
|---|---|
| 0, 1 | frame number, counted from 1: high 16 bits, low 16 bits |
| 2 | high byte: keys held, low byte: keys tapped; bit i (0 is the lowest) stands for ``KEYS[i]`` |
| 3 | check of the newest prompt (UTF-8), as below |
| 4 | check of rows 0–3 as 8 bytes, most significant first |

The check is CRC-16: polynomial 0x1021, start 0xFFFF, no reflection, no final exclusive-or. To read: mean luma over the middle
half of each cell, above 126 is 1; a frame whose check fails holds no barcode.
"""

from __future__ import annotations

import binascii
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

KEYS = ("KeyW", "KeyA", "KeyS", "KeyD", "ArrowUp", "ArrowLeft", "ArrowDown", "ArrowRight")
MIN_WIDTH, MIN_HEIGHT = 128, 64
_ROWS, _COLUMNS = 5, 16
_BLACK, _WHITE = 16, 235
_BODY = struct.Struct(">IBBH")
_START = 0xFFFF

Luma = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Barcode:
    """What a frame says of itself. ``prompt_check`` is ``check`` of the prompt's UTF-8."""

    number: int
    held: frozenset[str] = frozenset()
    tapped: frozenset[str] = frozenset()
    prompt_check: int = _START


def check(data: bytes) -> int:
    """CRC-16 as the module describes it."""
    return binascii.crc_hqx(data, _START)


def cell_side(width: int, height: int) -> int:
    """A cell's side in pixels. Raises ValueError for a frame too small to hold the barcode."""
    if width < MIN_WIDTH or height < MIN_HEIGHT:
        raise ValueError(f"a barcode needs at least {MIN_WIDTH}x{MIN_HEIGHT} pixels, got {width}x{height}")
    return 8 * min(4, width // MIN_WIDTH, height // MIN_HEIGHT)


def draw(barcode: Barcode, luma_HW: Luma) -> None:
    """Write ``barcode`` into the luma plane ``[height, width]`` in place."""
    side = cell_side(luma_HW.shape[1], luma_HW.shape[0])
    body = _BODY.pack(barcode.number, mask_of(barcode.held), mask_of(barcode.tapped), barcode.prompt_check)
    data = body + check(body).to_bytes(2, "big")
    bits = np.unpackbits(np.frombuffer(data, np.uint8)).reshape(_ROWS, _COLUMNS)
    cells = np.where(bits, np.uint8(_WHITE), np.uint8(_BLACK))
    area = luma_HW[: _ROWS * side, : _COLUMNS * side]
    for row in range(_ROWS):
        area[row * side : (row + 1) * side] = np.repeat(cells[row], side)


def read(luma_HW: Luma) -> Barcode | None:
    """The barcode in a decoded luma plane ``[height, width]``, or None when the frame holds none."""
    side = cell_side(luma_HW.shape[1], luma_HW.shape[0])
    cells = luma_HW[: _ROWS * side, : _COLUMNS * side].reshape(_ROWS, side, _COLUMNS, side)
    middle = slice(side // 4, side - side // 4)
    bits = cells[:, middle, :, middle].mean(axis=(1, 3)) > 126
    data = np.packbits(bits).tobytes()
    if check(data[:-2]) != int.from_bytes(data[-2:], "big"):
        return None
    number, held, tapped, prompt_check = _BODY.unpack(data[:-2])
    return Barcode(number, keys_of(held), keys_of(tapped), prompt_check)


def mask_of(keys: frozenset[str]) -> int:
    """Bit i for ``KEYS[i]``."""
    return sum(1 << bit for bit, key in enumerate(KEYS) if key in keys)


def keys_of(mask: int) -> frozenset[str]:
    """The reverse of ``mask_of``."""
    return frozenset(key for bit, key in enumerate(KEYS) if mask >> bit & 1)
