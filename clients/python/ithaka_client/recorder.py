"""The received access units as an MP4 file, without encoding them again."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Self

import av
from av.container import OutputContainer
from av.video.stream import VideoStream

from ithaka_client.errors import UsageError
from ithaka_client.protocol import EncodedFrame


class Recorder:
    """Writes frames in the order they are given; a recording starts at the first key frame among them.

    ``num_frames`` counts what was written. The file is complete after ``close``.
    """

    def __init__(self, path: str | Path, *, fps: int) -> None:
        self.path = Path(path)
        self.num_frames = 0
        self._time_base = Fraction(1, fps)
        self._first_pts = 0
        self.is_closed = False
        self._container: OutputContainer = av.open(str(self.path), mode="w", format="mp4")
        self._stream: VideoStream | None = None

    def write(self, frame: EncodedFrame) -> None:
        if self.is_closed:
            raise UsageError(f"The recording {self.path} is closed.")
        if self._stream is None:
            if not frame.is_key:
                return
            self._stream = self._open_stream(frame.payload)
            self._first_pts = frame.pts
        packet = av.Packet(frame.payload)
        packet.stream = self._stream
        packet.time_base = self._time_base
        packet.pts = packet.dts = frame.pts - self._first_pts
        packet.duration = 1
        packet.is_keyframe = frame.is_key
        self._container.mux(packet)
        self.num_frames += 1

    def _open_stream(self, access_unit: bytes) -> VideoStream:
        # A demuxer reads size, parameter sets and colour tags out of the first key frame, so nothing has to be said twice.
        with av.open(io.BytesIO(access_unit), format="h264") as source:
            stream = self._container.add_stream_from_template(source.streams.video[0])
        stream.time_base = self._time_base
        return stream

    def close(self) -> None:
        """Idempotent."""
        if not self.is_closed:
            self.is_closed = True
            self._container.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
