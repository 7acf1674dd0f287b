"""A track that is fed with encoded packets instead of pictures."""

from __future__ import annotations

import asyncio
from fractions import Fraction

import av
from aiortc import MediaStreamTrack
from aiortc.mediastreams import VIDEO_TIME_BASE, MediaStreamError, convert_timebase
from av.stream import Stream

from ithaka.server.transports.base import FrameToSend, TransportLost


class PacketTrack(MediaStreamTrack):
    """Holds one frame; ``push`` waits until the one before it was taken by the sender."""

    kind = "video"

    def __init__(self, fps: int) -> None:
        super().__init__()
        self._time_base = Fraction(1, fps)
        self._frame: FrameToSend | None = None
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._first_pts: int | None = None
        self._first_sent = asyncio.Event()

    def ticks(self, pts: int) -> int:
        """On the clock of RTP, as the sender counts them."""
        return int(convert_timebase(pts, self._time_base, VIDEO_TIME_BASE))

    async def first_sent(self) -> int:
        """The first frame's pts, once its last packet is out. Raises TransportLost once the track has stopped."""
        await self._first_sent.wait()
        if self._first_pts is None or self.readyState != "live":
            raise TransportLost("the track has stopped")
        return self._first_pts

    async def push(self, frame: FrameToSend) -> None:
        """Raises TransportLost once the track has stopped."""
        await self._emptied.wait()
        if self.readyState != "live":
            raise TransportLost("the track has stopped")
        self._emptied.clear()
        self._frame = frame
        self._filled.set()

    async def recv(self) -> av.Packet[Stream]:
        """The next packet, for the RTP sender. Raises MediaStreamError once the track has stopped."""
        if self._first_pts is not None:
            self._first_sent.set()
        await self._filled.wait()
        if self.readyState != "live" or self._frame is None:
            raise MediaStreamError
        packet = av.Packet(self._frame.payload)
        packet.pts = packet.dts = self._frame.header.pts
        packet.time_base = self._time_base
        if self._first_pts is None:
            self._first_pts = self._frame.header.pts
        self._frame = None
        self._filled.clear()
        self._emptied.set()
        return packet

    def stop(self) -> None:
        super().stop()
        self._first_sent.set()
        self._filled.set()
        self._emptied.set()
