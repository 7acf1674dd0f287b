"""The barcode: what is drawn is read, what is damaged is not, and lossy coding leaves it readable."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ithaka.workers.families.synthetic import barcode
from ithaka.workers.families.synthetic.barcode import KEYS, Barcode

keys = st.frozensets(st.sampled_from(KEYS))
codes = st.builds(Barcode, st.integers(0, 2**32 - 1), keys, keys, st.integers(0, 0xFFFF))


@given(codes, st.sampled_from([(128, 64), (130, 66), (320, 192), (832, 480), (4096, 64), (128, 4096)]))
def test_round_trip(code: Barcode, size: tuple[int, int]) -> None:
    luma = np.full((size[1], size[0]), 90, np.uint8)
    barcode.draw(code, luma)
    assert barcode.read(luma) == code


@given(codes, st.integers(0, 79))
def test_a_flipped_cell_is_noticed(code: Barcode, cell: int) -> None:
    luma = np.full((64, 128), 90, np.uint8)
    barcode.draw(code, luma)
    row, column = divmod(cell, 16)
    area = luma[row * 8 : row * 8 + 8, column * 8 : column * 8 + 8]
    area[:] = 251 - area
    assert barcode.read(luma) is None


@pytest.mark.parametrize("shade", [0, 16, 128, 235, 255])
def test_a_plain_picture_holds_none(shade: int) -> None:
    assert barcode.read(np.full((480, 832), shade, np.uint8)) is None


def test_the_layout_is_as_documented() -> None:
    """A reader in another language stands on these numbers."""
    luma = np.zeros((64, 128), np.uint8)
    barcode.draw(Barcode(0x12345678, frozenset({"KeyW"}), frozenset({"ArrowRight"}), 0xABCD), luma)
    bits = (luma[4:40:8, 4:128:8] > 126).astype(int)
    rows = [int("".join(map(str, row)), 2) for row in bits]
    assert rows[:4] == [0x1234, 0x5678, 0x0180, 0xABCD]
    assert rows[4] == barcode.check(bytes.fromhex("123456780180abcd"))
    assert barcode.check(b"123456789") == 0x29B1


def test_too_small_a_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="128x64"):
        barcode.draw(Barcode(1), np.zeros((62, 128), np.uint8))
