"""A WebRTC connection as a carrier of messages and frames."""

from __future__ import annotations

from typing import Protocol

from ithaka.server.session.messages import ClientMessage, ServerMessage
from ithaka.server.transports.base import FrameToSend, TransportLost
from ithaka.server.transports.webrtc.data_channel import DataChannelMessages
from ithaka.server.transports.webrtc.link import Link


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
        elif isinstance(self._messages, DataChannelMessages):
            await self._messages.send_frame(frame)
        else:
            raise TransportLost("a connection without track and data channel carries no frames")

    async def close(self, code: int) -> None:
        """The code has no place here: what was wrong was told as an ``error``, or the last state says it."""
        await self._messages.flush()
        await self._link.close()
