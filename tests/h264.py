"""Real access units for tests, as the encode process makes them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ithaka.server.session.retention import EncodedFrame
from ithaka.workers.contract import PacketHeader
from ithaka.workers.encoding.encoder import H264Encoder, StreamSettings

WIDTH, HEIGHT, FPS = 128, 64, 16


def frames(count: int, *, key_frame_interval_s: float = 0.5, first_seq: int = 1) -> Iterator[EncodedFrame]:
    """``count`` grey pictures whose brightness grows with their number."""
    encoder = H264Encoder(StreamSettings(WIDTH, HEIGHT, FPS, "lossy", 20, "ultrafast", key_frame_interval_s))
    for seq in range(first_seq, first_seq + count):
        picture = np.full((HEIGHT * 3 // 2, WIDTH), 16 + seq % 200, np.uint8)
        unit = encoder.encode(picture.data.cast("B"), seq - 1, is_key=False)
        header = PacketHeader("s", seq, seq - 1, 0, seq - 1, unit.is_key, 0, 0)
        yield EncodedFrame(header, bytes(unit.data))
