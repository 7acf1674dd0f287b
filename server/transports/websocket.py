"""Protocol version 1 over a WebSocket: text messages are JSON, binary messages are frames."""

from __future__ import annotations

from starlette.websockets import WebSocket, WebSocketDisconnect

from ithaka.server.errors import ProtocolViolation
from ithaka.server.session.messages import ClientMessage, ServerMessage, parse_client_message, write_message
from ithaka.server.transports.base import FrameToSend, TransportLost
from ithaka.server.transports.frame_bytes import pack_frame

SUBPROTOCOL = "ithaka.v1"


class WebSocketTransport:
    """An accepted WebSocket. Sending waits while the socket is above its high-water mark."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket

    async def receive(self) -> ClientMessage:
        event = await self._socket.receive()
        if event["type"] == "websocket.disconnect":
            raise TransportLost(f"closed with {event.get('code')}")
        text = event.get("text")
        if text is None:
            raise ProtocolViolation("binary_not_allowed", "a client sends text messages only")
        return parse_client_message(text)

    async def send(self, message: ServerMessage) -> None:
        try:
            await self._socket.send_text(write_message(message))
        except (WebSocketDisconnect, RuntimeError) as error:
            raise TransportLost(str(error)) from None

    async def send_frame(self, frame: FrameToSend) -> None:
        try:
            await self._socket.send_bytes(pack_frame(frame))
        except (WebSocketDisconnect, RuntimeError) as error:
            raise TransportLost(str(error)) from None

    async def close(self, code: int) -> None:
        try:
            await self._socket.close(code)
        except (WebSocketDisconnect, RuntimeError):
            return
