"""One H.264 stream from I420 frames: Annex B, no reordering, one access unit out for each frame in."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import av
import numpy as np
from av.codec.context import Flags
from av.error import FFmpegError
from av.video.frame import PictureType
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc

from ithaka.workers.contract import Pixels
from ithaka.workers.encoding.codec_string import codec_string
from ithaka.workers.encoding.errors import EncodeError, EncoderOpenError, EncoderSizeError, FrameOrderError

MIN_SIDE, MAX_SIDE = 16, 4096
MAX_FPS = 240
_RATE_BUFFER_PER_S = 2
"""A constant rate holds over half a second: a key frame may be larger than its share, and its transfer still short."""


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Sizes in pixels, ``fps`` of media time; ``crf`` and ``preset`` are ignored where ``pixels`` is exact.

    ``bits_per_s`` other than 0 asks for a constant bit rate instead of a constant quality.
    """

    width: int
    height: int
    fps: int
    pixels: Pixels
    crf: int
    preset: str
    key_frame_interval_s: float
    bits_per_s: int = 0


@dataclass(frozen=True, slots=True)
class AccessUnit:
    """``data``: Annex B bytes, a key frame's with its parameter sets."""

    data: memoryview
    is_key: bool


class H264Encoder:
    """libx264 on one thread. ``codec`` is the string for the decoder, e.g. ``avc1.42C01E``.

    Lossy is constrained baseline at a constant rate factor, exact is High 4:4:4 Predictive at qp 0 (still 4:2:0): the only
    profile that has a lossless mode. Both are tagged BT.709 limited range. The key frames are ours alone: the first frame,
    one on request, and at least one every ``key_frame_interval_s`` of media time.
    """

    def __init__(self, settings: StreamSettings) -> None:
        """Raises EncoderSizeError, EncoderOpenError."""
        _check_size(settings)
        self._time_base = Fraction(1, settings.fps)
        self._key_interval_ticks = max(1, int(settings.key_frame_interval_s * settings.fps))
        self._context = _open(settings)
        self._height, self._width = settings.height, settings.width
        self._last_pts: int | None = None
        self._last_key_pts = 0
        try:
            self.codec = codec_string(bytes(self._context.extradata or b""))
        except ValueError as error:
            raise EncoderOpenError(str(error)) from error

    def set_bitrate(self, bits_per_s: int) -> None:
        """From the next frame on; only for a stream that was opened with a bit rate."""
        self._context.bit_rate = bits_per_s

    def encode(self, i420: memoryview, pts: int, *, is_key: bool) -> AccessUnit:
        """The access unit of one frame; ``i420`` may be reused when this returns.

        i420: height * 3/2 * width bytes, planes Y, U, V without padding; read in place where height % 4 == 0.
        pts: in ticks of 1/fps, greater than the last one. ``is_key`` asks for a key frame.
        Raises FrameOrderError, EncodeError.
        """
        if self._last_pts is not None and pts <= self._last_pts:
            raise FrameOrderError(f"pts {pts} after {self._last_pts}")
        is_key = is_key or self._last_pts is None or pts - self._last_key_pts >= self._key_interval_ticks
        picture = np.frombuffer(i420, np.uint8).reshape(self._height * 3 // 2, self._width)
        # PyAV 18 rounds the height of a buffer that it shares down to a multiple of 4; other heights are copied.
        share_or_copy = av.VideoFrame.from_numpy_buffer if self._height % 4 == 0 else av.VideoFrame.from_ndarray
        frame = share_or_copy(picture, format="yuv420p")
        frame.pts = pts
        frame.time_base = self._time_base
        frame.pict_type = PictureType.I if is_key else PictureType.NONE
        try:
            packets = self._context.encode(frame)
        except FFmpegError as error:
            raise EncodeError(f"libx264 refused frame {pts}") from error
        if len(packets) != 1:
            raise EncodeError(f"libx264 gave {len(packets)} packets for frame {pts}")
        packet = packets[0]
        self._last_pts = pts
        if packet.is_keyframe:
            self._last_key_pts = pts
        return AccessUnit(memoryview(packet), packet.is_keyframe)


def _check_size(settings: StreamSettings) -> None:
    for name, side in (("width", settings.width), ("height", settings.height)):
        if not MIN_SIDE <= side <= MAX_SIDE or side % 2:
            raise EncoderSizeError(f"{name} {side}: it must be even and lie in {MIN_SIDE}..{MAX_SIDE}")
    if not 1 <= settings.fps <= MAX_FPS:
        raise EncoderSizeError(f"fps {settings.fps}: it must lie in 1..{MAX_FPS}")


def _open(settings: StreamSettings) -> av.VideoCodecContext:
    context = av.VideoCodecContext.create("libx264", "w")
    context.width, context.height, context.pix_fmt = settings.width, settings.height, "yuv420p"
    context.time_base, context.framerate = Fraction(1, settings.fps), Fraction(settings.fps)
    # Sessions share the cores; threads within one would only add latency and memory.
    context.thread_count = 1
    context.max_b_frames = 0
    # Never by itself: see the class.
    context.gop_size = 2**30
    context.color_range = ColorRange.MPEG
    context.colorspace = Colorspace.ITU709
    context.color_primaries = ColorPrimaries.BT709
    context.color_trc = ColorTrc.BT709
    # The headers stand in ``extradata`` before the first frame (global header), and again in each key frame (repeat).
    context.flags |= Flags.global_header
    # crf 0 is lossless for x264, which baseline has not. A slower preset would save a sixth of a lossless stream's bytes
    # (CABAC) for three times the CPU.
    is_lossless = settings.pixels == "exact" or settings.crf == 0
    rate = {"qp": "0", "profile": "high444"} if is_lossless else {"crf": str(settings.crf), "profile": "baseline"}
    if settings.bits_per_s and not is_lossless:
        # x264 follows a new rate only in a stream whose largest rate was the mean one when it was opened.
        bits = settings.bits_per_s
        context.bit_rate = bits
        rate = {"profile": "baseline", "maxrate": str(bits), "bufsize": str(bits // _RATE_BUFFER_PER_S)}
    context.options = {
        "preset": "ultrafast" if is_lossless else settings.preset,
        "tune": "zerolatency",
        "forced-idr": "1",
        "sc_threshold": "0",
        "x264-params": "repeat-headers=1",
        **rate,
    }
    try:
        context.open()
    except (FFmpegError, ValueError) as error:
        shape = f"{settings.width}×{settings.height} at {settings.fps} frames a second"
        raise EncoderOpenError(f"libx264 does not open for {shape}") from error
    return context
