"""Access units in, pictures out, one for one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import av
import numpy as np
from av.codec.context import Flags
from av.video.reformatter import ColorRange, Colorspace, Interpolation
from numpy.typing import NDArray

from ithaka_client.errors import DecodeError
from ithaka_client.protocol import EncodedFrame


@dataclass(frozen=True)
class Frame:
    """One decoded frame.

    ``pts`` counts in 1/fps seconds, ``control_id`` names the newest control that its chunk used (0: none), ``age_ms`` is the
    time from generation to sending. ``received_at_s`` and ``decoded_at_s`` are readings of the monotonic clock.
    """

    seq: int
    pts: int
    control_id: int
    chunk: int
    age_ms: int
    is_key: bool
    received_at_s: float
    decoded_at_s: float
    picture: av.VideoFrame

    @cached_property
    def rgb(self) -> NDArray[np.uint8]:
        """uint8 ``[height, width, 3]``, full range, converted from BT.709 limited range at the first use."""
        # Planar, since the scaler's direct way to packed RGB is up to 3 steps off (white came out as 253).
        picture = self.picture.reformat(
            format="gbrp",
            src_colorspace=Colorspace.ITU709,
            dst_colorspace=Colorspace.ITU709,
            src_color_range=ColorRange.MPEG,
            dst_color_range=ColorRange.JPEG,
            interpolation=Interpolation.BILINEAR | Interpolation.ACCURATE_RND,
        )
        return np.ascontiguousarray(picture.to_ndarray(), dtype=np.uint8)

    @cached_property
    def yuv(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
        """The decoded samples as they are: Y ``[height, width]``, U and V ``[height/2, width/2]``, uint8, limited range."""
        width, height = self.picture.width, self.picture.height
        samples = np.asarray(self.picture.to_ndarray(format="yuv420p"), dtype=np.uint8).reshape(-1)
        luma, chroma = width * height, (width // 2) * (height // 2)
        return (
            samples[:luma].reshape(height, width),
            samples[luma : luma + chroma].reshape(height // 2, width // 2),
            samples[luma + chroma : luma + 2 * chroma].reshape(height // 2, width // 2),
        )


class Decoder:
    """The decoder of one connection; it starts at a key frame. Not safe to use from two threads at once.

    ``codec``: sessions send H.264; VP8 comes on tracks of peers without it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, codec: Literal["h264", "vp8"] = "h264") -> None:
        # One picture out for one in: frame threads would hold some back.
        context = av.CodecContext.create(codec, "r")
        assert isinstance(context, av.VideoCodecContext)
        context.thread_type = "SLICE"
        context.flags |= Flags.low_delay
        self._context = context
        self._clock = clock

    def decode(self, encoded: EncodedFrame, received_at_s: float) -> Frame:
        """Raises DecodeError."""
        packet = av.Packet(encoded.payload)
        packet.pts = packet.dts = encoded.seq
        try:
            pictures = self._context.decode(packet)
        except av.FFmpegError as error:
            raise DecodeError(encoded.seq, f"Frame {encoded.seq} could not be decoded: {error}.") from error
        if len(pictures) != 1 or pictures[0].pts != encoded.seq:
            raise DecodeError(encoded.seq, f"Frame {encoded.seq} gave {len(pictures)} pictures instead of one.")
        return Frame(
            seq=encoded.seq,
            pts=encoded.pts,
            control_id=encoded.control_id,
            chunk=encoded.chunk,
            age_ms=encoded.age_ms,
            is_key=encoded.is_key,
            received_at_s=received_at_s,
            decoded_at_s=self._clock(),
            picture=pictures[0],
        )
