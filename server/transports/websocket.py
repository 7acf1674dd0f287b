"""Protocol version 1 over a WebSocket: text messages are JSON, binary messages are frames."""

from __future__ import annotations

from starlette.websockets import WebSocket, WebSocketDisconnect

from ithaka.server.errors import ProtocolViolation
from ithaka.server.session.messages import (
    ClientMessage,
    ErrorRaised,
    ServerMessage,
    StateChanged,
    parse_client_message,
    write_message,
)
from ithaka.server.transports.base import FrameToSend, TransportLost
from ithaka.server.transports.frame_bytes import pack_frame
from ithaka.server.websocket_protocol import VIOLATION

SUBPROTOCOL = "ithaka.v1"
MAX_REASON_BYTES = 123
"""Of a close frame."""


class WebSocketTransport:
    """An accepted WebSocket. Sending waits while the socket is above its high-water mark.

    The close frame's reason is the code that was told last: that of the error, or of the session's end.
    """

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._told = ""

    async def receive(self) -> ClientMessage:
        event = await self._socket.receive()
        if event["type"] == "websocket.disconnect":
            violation: ProtocolViolation | None = event.get(VIOLATION)
            if violation is not None:
                raise violation
            raise TransportLost(f"closed with {event.get('code')}")
        text = event.get("text")
        if text is None:
            raise ProtocolViolation("binary_not_allowed", "a client sends text messages only")
        return parse_client_message(text)

    async def send(self, message: ServerMessage) -> None:
        if isinstance(message, ErrorRaised):
            self._told = message.code
        elif isinstance(message, StateChanged):
            self._told = message.reason
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
            await self._socket.close(code, self._told.encode()[:MAX_REASON_BYTES].decode(errors="ignore"))
        except (WebSocketDisconnect, RuntimeError):
            return
