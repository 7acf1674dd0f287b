"""uvicorn's WebSocket as the daemon needs it: whatever ends a connection has a code of ours, told before it closes.

What the app itself refuses is told by the app. Here is what never gets that far: handshakes that are none, frames that are no
WebSocket's, messages that are too large or no text, frames that come too fast, and connections that are still open when the
daemon goes.
"""

from __future__ import annotations

import asyncio
import http
import json
import logging
from collections.abc import Callable
from typing import Any, NoReturn

import uvicorn
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.datastructures import Headers
from websockets.exceptions import ProtocolError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from ithaka.server.errors import ERROR_CODES, ProtocolViolation, error_body
from ithaka.server.session.messages import ErrorRaised, write_message
from ithaka.server.session.rate import RateBound

VIOLATION = "ithaka.violation"
"""In the event that tells the app of the end: the ProtocolViolation behind it, which the client was told already."""
MAX_FRAGMENTS = 256
"""Of one message."""
DISCARDED_BYTES = 32 * 1024 * 1024
"""Of what comes after we closed: read and thrown away, so that the client gets to the last word."""


class TellingServerProtocol(ServerProtocol):
    """Says why before it closes. Every frame counts, of a message or not, and none is parsed beyond the bound."""

    def __init__(self, *, max_message_bytes: int, max_frames_per_s: int, now_s: Callable[[], float]) -> None:
        super().__init__(max_size=max_message_bytes, logger=logging.getLogger("uvicorn.error"))
        self._max_message_bytes = max_message_bytes
        self._max_frames_per_s = max_frames_per_s
        self._now_s = now_s
        self._rate = RateBound(max_frames_per_s, now_s())
        self._num_fragments = 0
        self._excess: ProtocolViolation | None = None
        self.violation: ProtocolViolation | None = None
        self._ping: bytes | None = None
        """The last one that has no answer. Those before it need none."""

    def recv_frame(self, frame: Frame) -> None:
        """A ping is kept, not answered. Raises ProtocolError."""
        if not self._rate.take(self._now_s()):
            self._exceed("rate_exceeded", f"more than {self._max_frames_per_s} frames in a second")
        if frame.opcode is Opcode.CONT:
            self._num_fragments += 1
        elif frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._num_fragments = 1
        if self._num_fragments > MAX_FRAGMENTS:
            self._exceed("message_too_large", f"a message has at most {MAX_FRAGMENTS} fragments")
        if frame.opcode is Opcode.PING:
            self._ping = bytes(frame.data)
            self.events.append(frame)
        else:
            super().recv_frame(frame)

    def answer_ping(self) -> bool:
        """Send a pong for the last ping. False where there is none that waits, or it is too late or too early."""
        if self._ping is None or self.state is not State.OPEN:
            return False
        self.send_pong(self._ping)
        self._ping = None
        return True

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

    def _exceed(self, code: str, words: str) -> NoReturn:
        self._excess = ProtocolViolation(code, words)
        raise ProtocolError(words)

    def _violation(self, code: CloseCode | int, reason: str) -> ProtocolViolation:
        if self._excess is not None:
            return self._excess
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
        *,
        max_frames_per_s: int,
        now_s: Callable[[], float],
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn: TellingServerProtocol = TellingServerProtocol(
            max_message_bytes=config.ws_max_size, max_frames_per_s=max_frames_per_s, now_s=now_s
        )
        self._num_discarded = 0

    def data_received(self, data: bytes) -> None:
        if self.close_sent:
            self._num_discarded += len(data)
            if self._num_discarded > DISCARDED_BYTES:
                self.transport.abort()
                return
        self.conn.receive_data(data)
        # What came whole before the fault is heard.
        self.handle_events()
        if self.conn.parser_exc is not None:
            self.handle_parser_exception()
        elif self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    def handle_ping(self) -> None:
        """One answer at most waits to go out, however many pings come while the client reads nothing."""
        if self.writable.is_set() and self.conn.answer_ping():
            self.transport.write(b"".join(self.conn.data_to_send()))

    def resume_writing(self) -> None:
        super().resume_writing()
        self.handle_ping()

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        # uvicorn takes a handshake that was answered by an HTTP response for one that was forgotten.
        self.handshake_complete |= self.initial_response is not None and self.close_sent
        self.handle_ping()

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
