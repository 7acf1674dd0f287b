"""uvicorn's WebSocket as the daemon needs it: whatever ends a connection has a code of ours, told before it closes.

What the app itself refuses is told by the app. Here is what never gets that far: handshakes that are none, frames that are no
WebSocket's, messages that are too large or no text, and connections that are still open when the daemon goes.
"""

from __future__ import annotations

import asyncio
import http
import json
import logging
from typing import Any

import uvicorn
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.datastructures import Headers
from websockets.frames import CloseCode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from ithaka.server.errors import ERROR_CODES, ProtocolViolation, error_body
from ithaka.server.session.messages import ErrorRaised, write_message

VIOLATION = "ithaka.violation"
"""In the event that tells the app of the end: the ProtocolViolation behind it, which the client was told already."""


class TellingServerProtocol(ServerProtocol):
    """Says why before it closes."""

    def __init__(self, *, max_message_bytes: int) -> None:
        super().__init__(max_size=max_message_bytes, logger=logging.getLogger("uvicorn.error"))
        self._max_message_bytes = max_message_bytes
        self.violation: ProtocolViolation | None = None

    def fail(self, code: CloseCode | int, reason: str = "") -> None:
        """The client broke the protocol. No word reaches one that is gone, or said goodbye itself."""
        if self.state is State.OPEN and code != CloseCode.ABNORMAL_CLOSURE:
            self.violation = self._violation(code, reason)
            self._tell(self.violation)
            code, reason = self.violation.close_code, self.violation.code
        super().fail(code, reason)

    def end(self, violation: ProtocolViolation) -> None:
        """Tell and close, unless that has begun."""
        if self.state is State.OPEN:
            self._tell(violation)
            self.send_close(violation.close_code, violation.code)

    def reject(self, status: http.HTTPStatus | int, text: str) -> Response:
        """A handshake that can't be answered, in the one shape of an HTTP error."""
        is_fault = status == http.HTTPStatus.INTERNAL_SERVER_ERROR
        code = "internal" if is_fault else "upgrade_invalid"
        words = ERROR_CODES[code].meaning if is_fault else text.strip().partition("\n")[0]
        told, body = http.HTTPStatus(ERROR_CODES[code].status or status), json.dumps(error_body(code, words)).encode()
        headers = {"Connection": "close", "Content-Length": str(len(body)), "Content-Type": "application/json"}
        return Response(told.value, told.phrase, Headers(headers), body)

    def _tell(self, violation: ProtocolViolation) -> None:
        retryable = ERROR_CODES[violation.code].retryable
        error = ErrorRaised(code=violation.code, message=str(violation), retryable=retryable)
        self.send_text(write_message(error).encode())

    def _violation(self, code: CloseCode | int, reason: str) -> ProtocolViolation:
        match code:
            case CloseCode.MESSAGE_TOO_BIG:
                return ProtocolViolation("message_too_large", f"a message has at most {self._max_message_bytes} bytes")
            case CloseCode.INVALID_DATA:
                return ProtocolViolation("message_invalid", "a text message is UTF-8")
            case CloseCode.PROTOCOL_ERROR:
                return ProtocolViolation("frame_invalid", f"that is no frame of a WebSocket: {reason}")
            case _:
                return ProtocolViolation("internal", ERROR_CODES["internal"].meaning)


class TellingWebSocket(WebSocketsSansIOProtocol):
    """A connection whose end is told, and that stays until the client has heard it, ``close_timeout`` at most."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn: TellingServerProtocol = TellingServerProtocol(max_message_bytes=config.ws_max_size)

    def data_received(self, data: bytes) -> None:
        self.conn.receive_data(data)
        # What came whole before the fault is heard.
        self.handle_events()
        if self.conn.parser_exc is not None:
            self.handle_parser_exception()
        elif self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        # uvicorn takes a handshake that was answered by an HTTP response for one that was forgotten.
        self.handshake_complete |= self.initial_response is not None and self.close_sent

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.fail(CloseCode.INVALID_DATA)
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        """The client hears why. To close at once would reset the connection under what it still sends, and lose that word."""
        if self.close_sent:
            return
        close = self.conn.close_sent
        if close is None:
            # It spoke before its handshake was answered: there is no WebSocket to tell it by.
            self.disconnected = self.handshake_complete = True
            self.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
            self.transport.abort()
            return
        event = {"type": "websocket.disconnect", "code": close.code, "reason": close.reason, VIOLATION: self.conn.violation}
        self.queue.put_nowait(event)  # type: ignore[arg-type]
        self.close_sent = True
        self.transport.write(b"".join(self.conn.data_to_send()))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)

    def shutdown(self) -> None:
        if self.handshake_complete and not self.close_sent:
            self.conn.end(ProtocolViolation("server_stopping", ERROR_CODES["server_stopping"].meaning))
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.queue.put_nowait({"type": "websocket.disconnect", "code": 1001, "reason": "server_stopping"})
        super().shutdown()
