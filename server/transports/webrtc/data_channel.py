"""Protocol version 1 over an ordered, reliable data channel: text messages are JSON, binary messages are frames.

A frame longer than ``MESSAGE_BYTES`` goes out in several binary messages; the first begins with the header, whose
``payload_bytes`` says when the frame is whole.
"""

from __future__ import annotations

import asyncio

from aiortc import InvalidStateError, RTCDataChannel

from ithaka.server.errors import ProtocolViolation
from ithaka.server.session.messages import ClientMessage, ServerMessage, parse_client_message, write_message
from ithaka.server.session.rate import RateBound
from ithaka.server.session.timers import Timers
from ithaka.server.transports.base import FrameToSend, TransportLost
from ithaka.server.transports.frame_bytes import pack_frame
from ithaka.server.transports.webrtc.inbox import Inbox

MESSAGE_BYTES = 64 * 1024
"""Of a frame, and less for a peer that takes less: every browser takes messages of this size."""
HIGH_BYTES = 1024 * 1024
LOW_BYTES = 256 * 1024
FLUSH_TIMEOUT_S = 1.0
FLOOD_FACTOR = 4
"""Times the messages that a connection may send: folding controls has a price too."""


class DataChannelMessages:
    """Sending waits while more than ``HIGH_BYTES`` lie in the channel's own buffer."""

    def __init__(
        self,
        channel: RTCDataChannel,
        timers: Timers,
        *,
        max_messages_per_s: int,
        piece_bytes: int,
    ) -> None:
        """``piece_bytes`` of a frame at most go to the peer in one message."""
        self._channel = channel
        self._piece_bytes = piece_bytes
        self._timers = timers
        self._rate = RateBound(FLOOD_FACTOR * max_messages_per_s, timers.now_s())
        self._inbox = Inbox(timers)
        self._low = asyncio.Event()
        self._is_lost = False
        channel.bufferedAmountLowThreshold = LOW_BYTES
        channel.on("message", self._arrived)
        channel.on("bufferedamountlow", self._low.set)

    async def receive(self) -> ClientMessage:
        """Raises TransportLost, ProtocolViolation."""
        return await self._inbox.take()

    async def send(self, message: ServerMessage) -> None:
        """Raises TransportLost."""
        await self._send(write_message(message))

    async def send_frame(self, frame: FrameToSend) -> None:
        """Raises TransportLost."""
        data = pack_frame(frame)
        for start in range(0, len(data), self._piece_bytes):
            await self._send(data[start : start + self._piece_bytes])

    def refuse(self, violation: ProtocolViolation) -> None:
        """Nothing more is taken from the peer; ``receive`` raises it."""
        self._inbox.fail(violation)

    def lose(self) -> None:
        """The connection is gone."""
        self._is_lost = True
        self._inbox.fail(TransportLost("the data channel is closed"))
        self._low.set()

    async def flush(self) -> None:
        """Wait until the channel's buffer has gone out; not for long, since nobody may take it."""
        self._channel.bufferedAmountLowThreshold = 0
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                while self._channel.bufferedAmount and not self._is_lost:
                    self._low.clear()
                    await self._low.wait()
        except TimeoutError:
            return
        finally:
            self._inbox.close()

    async def _send(self, data: str | bytes) -> None:
        while self._channel.bufferedAmount > HIGH_BYTES and not self._is_lost:
            self._low.clear()
            await self._low.wait()
        if self._is_lost:
            raise TransportLost("the data channel is closed")
        try:
            self._channel.send(data)
        except (InvalidStateError, ValueError) as error:
            raise TransportLost(f"the data channel takes nothing: {error or type(error).__name__}") from None

    def _arrived(self, data: str | bytes) -> None:
        try:
            if not self._rate.take(self._timers.now_s()):
                raise ProtocolViolation("rate_exceeded", "far too many messages in a second")
            if isinstance(data, bytes):
                raise ProtocolViolation("binary_not_allowed", "a client sends text messages only")
            self._inbox.put(parse_client_message(data))
        except ProtocolViolation as violation:
            self._inbox.fail(violation)
