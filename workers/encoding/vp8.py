"""The same frames in VP8, for receivers without H.264: opened on demand, at the session's thread."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
import structlog
from av.error import FFmpegError
from av.video.frame import PictureType

from ithaka.workers.encoding.encoder import AccessUnit, StreamSettings

CPU_USED = "-6"
"""Of libvpx in real time: larger numbers are faster; a negative one keeps to it."""

_log = structlog.get_logger(__name__)


class Vp8Branch:
    """Off until ``open``. Wishes come from the main thread, ``encode`` runs on the session's.

    A fault here ends the branch alone: the session's stream goes on.
    """

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self._wanted_bits_per_s = 0
        self._is_key_requested = False
        self._encoder: Vp8Encoder | None = None

    def open(self, bits_per_s: int) -> None:
        self._wanted_bits_per_s = bits_per_s

    def close(self) -> None:
        self._wanted_bits_per_s = 0

    def request_key_frame(self) -> None:
        self._is_key_requested = True

    def encode_again(self, i420: memoryview, pts: int) -> AccessUnit | None:
        """A key frame of a picture that was encoded before, for who comes now. What follows begins with a key frame too, since
        whoever saw the picture the first time does not get this one.
        """
        self._encoder = None
        unit = self.encode(i420, pts)
        self._is_key_requested = True
        return unit

    def encode(self, i420: memoryview, pts: int) -> AccessUnit | None:
        """See H264Encoder.encode; None while it is off."""
        bits_per_s = self._wanted_bits_per_s
        if not bits_per_s:
            self._encoder = None
            return None
        is_key, self._is_key_requested = self._is_key_requested, False
        try:
            if self._encoder is None:
                self._encoder = Vp8Encoder(self._settings, bits_per_s)
            return self._encoder.encode(i420, pts, is_key=is_key)
        except (FFmpegError, ValueError) as error:
            _log.error("encode.vp8_failed", reason=str(error))
            self._encoder, self._wanted_bits_per_s = None, 0
            return None


class Vp8Encoder:
    """libvpx in real time, one thread, no lag, at a rate that stays: this codec is there so that there is a picture at all."""

    def __init__(self, settings: StreamSettings, bits_per_s: int) -> None:
        """Raises FFmpegError."""
        context = av.VideoCodecContext.create("libvpx", "w")
        context.width, context.height, context.pix_fmt = settings.width, settings.height, "yuv420p"
        context.time_base, context.framerate = Fraction(1, settings.fps), Fraction(settings.fps)
        context.thread_count = 1
        context.bit_rate = bits_per_s
        context.gop_size = max(1, int(settings.key_frame_interval_s * settings.fps))
        context.options = {
            "deadline": "realtime",
            "cpu-used": CPU_USED,
            "lag-in-frames": "0",
            "error-resilient": "default",
            "maxrate": str(bits_per_s),
            "minrate": str(bits_per_s),
            "bufsize": str(bits_per_s // 2),
        }
        context.open()
        self._context = context
        self._time_base = Fraction(1, settings.fps)
        self._height, self._width = settings.height, settings.width

    def encode(self, i420: memoryview, pts: int, *, is_key: bool) -> AccessUnit | None:
        """None where libvpx left the frame out to keep its rate. Raises FFmpegError."""
        picture = np.frombuffer(i420, np.uint8).reshape(self._height * 3 // 2, self._width)
        frame = av.VideoFrame.from_ndarray(picture, format="yuv420p")
        frame.pts = pts
        frame.time_base = self._time_base
        frame.pict_type = PictureType.I if is_key else PictureType.NONE
        packets = self._context.encode(frame)
        return AccessUnit(memoryview(packets[0]), packets[0].is_keyframe) if packets else None
