"""A WebRTC connection as a carrier of messages and frames."""

from __future__ import annotations

from typing import Protocol

from ithaka.server.session.messages import ClientMessage, Numbered, ServerMessage
from ithaka.server.transports.base import FrameToSend, TransportLost
from ithaka.server.transports.webrtc.data_channel import DataChannelMessages
from ithaka.server.transports.webrtc.link import Link
from ithaka.workers.contract import PacketHeader


class Messages(Protocol):
    """The way of the messages: a data channel, or words put into a mute player's mouth."""

    async def receive(self) -> ClientMessage: ...

    async def send(self, message: ServerMessage) -> None: ...

    async def flush(self) -> None: ...

    def lose(self) -> None: ...


class WebRtcTransport:
    """Frames go over the link's track; over the data channel where there is no track."""

    def __init__(self, link: Link, messages: Messages) -> None:
        self._link = link
        self._messages = messages
        link.on_lost(messages.lose)

    async def receive(self) -> ClientMessage:
        return await self._messages.receive()

    async def send(self, message: ServerMessage) -> None:
        await self._messages.send(message)

    async def send_frame(self, frame: FrameToSend) -> None:
        if self._link.track is not None:
            await self._link.track.push(frame)
            if self._link.codec == "vp8" and self._link.channel is not None:
                await self._messages.send(await self._number(frame.header))
        elif isinstance(self._messages, DataChannelMessages):
            await self._messages.send_frame(frame)
        else:
            raise TransportLost("a connection without track and data channel carries no frames")

    async def _number(self, header: PacketHeader) -> Numbered:
        """VP8 has no place for it. Raises TransportLost."""
        return Numbered(
            seq=header.seq,
            control_id=header.control_id,
            generated_us=header.generated_ns // 1000,
            rtp_timestamp=await self._link.rtp_timestamp(header.pts),
        )

    async def close(self, code: int) -> None:
        """The code has no place here: what was wrong was told as an ``error``, or the last state says it."""
        await self._messages.flush()
        await self._link.close()
