"""The same frame in the page, in Python and in a recording: the same colours."""

from __future__ import annotations

import asyncio
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from ithaka_client import Client
from tests.e2e.browser import WatchedPage, running_chromium
from tests.e2e.running_daemon import RunningDaemon

pytestmark = pytest.mark.browser
WIDTH, HEIGHT, FRAMES, SEED = 192, 128, 12, 5
TOLERANCE = 0.07
"""BT.601 in place of BT.709 shows as 0.17 in this matrix, full in place of limited range as 0.13. Chromium without a GPU is
0.05 off by itself: its eight-bit arithmetic can't hold the factor from Cb to blue.
"""
CODES = 6 * 8
"""Rows from here on hold colours; above them the barcode."""
LAST_PICTURE = (Path(__file__).parent / "last_picture.js").read_text()


async def watch_and_record(url: str, path: Path) -> NDArray[np.uint8]:
    """The last frame as the Python client sees it."""
    async with (
        Client(url) as client,
        await client.create_session("numbers", seed=SEED, pixels="exact", pacing="unpaced", max_frames=FRAMES) as session,
    ):
        await session.connect()
        session.record(path)
        rgb = [frame.rgb async for frame in session.frames()]
    return rgb[-1][CODES:]


def fit(seen: NDArray[np.uint8], other: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The 3×3 matrix and offset that lead from one picture's colours to the other's, over means of 8×8 pixels.

    Ways to interpolate chroma move single samples by a few steps; that nearly cancels out here. Another matrix or range of the
    colour space does not. Clipped colours are left out.
    """
    colours, others = block_means(seen), block_means(other)
    whole = ((colours > 20) & (colours < 235)).all(axis=1)
    assert whole.sum() > 100, "too few colours to compare"
    solution = np.linalg.lstsq(np.column_stack([colours[whole], np.ones(whole.sum())]), others[whole], rcond=None)[0]
    return solution[:3].T, solution[3]


def block_means(rgb_HWC: NDArray[np.uint8]) -> NDArray[np.float64]:
    """``[blocks, 3]``"""
    height, width, _ = rgb_HWC.shape
    means: NDArray[np.float64] = rgb_HWC.reshape(height // 8, 8, width // 8, 8, 3).mean(axis=(1, 3))
    return means.reshape(-1, 3)


def test_page_client_and_recording_show_the_same_colours(daemon: RunningDaemon, tmp_path: Path) -> None:
    path = tmp_path / "colours.mp4"
    in_python = asyncio.run(watch_and_record(daemon.url, path))
    with running_chromium() as browser:
        watched = WatchedPage(browser.new_page())
        watched.open(daemon.url)
        rgba = watched.evaluate(LAST_PICTURE, {"model": "numbers", "seed": SEED, "maxFrames": FRAMES})
    in_page = np.array(rgba, np.uint8).reshape(HEIGHT, WIDTH, 4)[CODES:, :, :3]
    with av.open(str(path)) as container:
        *_, last = container.decode(video=0)
    # A player knows nothing but the file: its tags alone have to lead to the right matrix and range.
    recorded = last.reformat(format="gbrp", dst_colorspace=last.colorspace, dst_color_range="JPEG").to_ndarray()
    in_recording = np.asarray(recorded, np.uint8)[CODES:]

    for other in (in_page, in_recording):
        matrix, offset = fit(in_python, other)
        np.testing.assert_allclose(matrix, np.eye(3), atol=TOLERANCE)
        np.testing.assert_allclose(offset, 0, atol=2)
    assert watched.complaints == []
