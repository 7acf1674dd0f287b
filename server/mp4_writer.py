"""Encoded access units into an MP4 file, as they are: nothing is decoded or encoded again."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Self

import av
from av.video.stream import VideoStream


class Mp4Writer:
    """One H.264 track; size and colour come from the stream's own parameter sets.

    A context manager; the file is whole once it is left. ``is_fragmented``: it can be played at any time, through the last
    group of pictures that was written, also when its writer was killed. Raises OSError where the path can't be written.
    """

    def __init__(self, path: Path, *, fps: int, is_fragmented: bool = False) -> None:
        flags = "+frag_keyframe+empty_moov+default_base_moof" if is_fragmented else "+faststart"
        self._container = av.open(str(path), "w", format="mp4", options={"movflags": flags, "flush_packets": "1"})
        self._time_base = Fraction(1, fps)
        self._stream: VideoStream | None = None

    def write(self, payload: bytes, *, pts: int, key: bool) -> None:
        """Append one access unit (Annex B); ``pts`` in frames. The first one is a key frame with SPS and PPS in band."""
        if self._stream is None:
            self._stream = self._describe(payload)
        packet = av.Packet(payload)
        packet.stream, packet.time_base = self._stream, self._time_base
        packet.pts = packet.dts = pts
        packet.duration = 1
        packet.is_keyframe = key
        self._container.mux(packet)

    def _describe(self, key_frame: bytes) -> VideoStream:
        # The muxer wants the parameter sets before the first packet; the demuxer finds them in it.
        with av.open(io.BytesIO(key_frame), format="h264") as probe:
            stream = self._container.add_stream_from_template(probe.streams.video[0])
        stream.time_base = self._time_base
        return stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._container.close()
