"""uvicorn's HTTP as the daemon needs it: bounded before a request is whole, and what is no request gets an error of ours.

What a request asks is answered by the app. Here is what never gets that far: bytes that are no HTTP, heads that are too large
or too late; and how much of what comes waits here.
"""

from __future__ import annotations

import asyncio
import json
import sys

import httptools
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from ithaka.server.errors import ApiError, error_body
from ithaka.server.routes.guards import DISCARDED_BYTES, JSON, LINGER_S, SECURITY_HEADERS

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers together; as much for the trailers of a body in chunks."""
PIECE_BYTES = 4096
"""Read at a time, so that a read full of requests is worked off one by one."""
TLS_HANDSHAKE = b"\x16\x03"


class HeldFlow(FlowControl):
    """Nothing more is read while some of what was read waits, whoever asks for more."""

    is_held = False

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()


class BoundedHttpProtocol(HttpToolsProtocol):
    """A connection that is cut where a request's head takes too long or gets too big; a body is the app's to bound.

    The time runs from the connection's start, later from a request's first bytes, and does not begin anew with more bytes.
    Between requests uvicorn's own bound on idle connections counts. One request after another is parsed: what a client sends
    ahead of its answers waits unread.
    """

    def __init__(self, config: uvicorn.Config, server_state: ServerState, *, head_timeout_s: float) -> None:
        super().__init__(config, server_state, {})
        self._head_timeout_s = head_timeout_s
        self._timer: asyncio.TimerHandle | None = None
        """For the head, later for what a refused client still sends."""
        self._held = bytearray()
        self._is_in_fields = False
        """Of a head, or of trailers."""
        self._num_field_bytes = 0
        self._is_refused = False
        self._num_discarded = 0

    # -- what comes ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow: HeldFlow = HeldFlow(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self._num_discarded += len(data)
            if self._num_discarded > DISCARDED_BYTES:
                self.transport.abort()
            return
        self._held += data
        self._read_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._held.clear()
        self._cancel_timer()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._read_on()

    def _read_on(self) -> None:
        while self._held and not self.pipeline and self._is_reading():
            piece = bytes(self._held[:PIECE_BYTES])
            del self._held[:PIECE_BYTES]
            if self.cycle is None and not self._is_in_fields and piece.startswith(TLS_HANDSHAKE):
                words = "these are bytes of TLS, and this port speaks plain HTTP; use http:// and ws:// addresses"
                self._refuse(ApiError("request_malformed", words))
                return
            super().data_received(piece)
            self._bound_head(len(piece))
        if not self._is_reading():
            self._held.clear()
            return
        was_held, self.flow.is_held = self.flow.is_held, bool(self._held)
        if self._held:
            self.flow.pause_reading()
        elif was_held and not self.pipeline:
            self.flow.resume_reading()

    def _is_reading(self) -> bool:
        """False once the connection ends, or is a WebSocket's."""
        return not (self._is_refused or self.transport.is_closing()) and self.transport.get_protocol() is self

    # -- the parser's calls --------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._is_in_fields = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_fields = False
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """The last chunk has no body: after its header come trailers."""
        self._is_in_fields = True

    def on_body(self, body: bytes) -> None:
        self._is_in_fields = False
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_fields = False
        super().on_message_complete()

    # -- bounds --------------------------------------------------------------------------------------------------------

    def _bound_head(self, num_bytes: int) -> None:
        if not self._is_reading():
            if not self._is_refused:
                self._cancel_timer()
            return
        self._num_field_bytes = self._num_field_bytes + num_bytes if self._is_in_fields else 0
        if self._num_field_bytes > MAX_HEAD_BYTES:
            self._refuse(ApiError("head_too_large", f"request line and headers have at most {MAX_HEAD_BYTES} bytes together"))
        elif self.cycle is not None and not self.cycle.response_complete:
            self._cancel_timer()
        else:
            self._expect_head()

    def _expect_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self._head_timeout_s, self._head_is_late)

    def _head_is_late(self) -> None:
        self._timer = None
        if self._is_in_fields:
            words = f"request line and headers did not come within {self._head_timeout_s:g} s"
            self._refuse(ApiError("head_timeout", words))
        else:
            self.transport.abort()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- refusals ------------------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """Called where the parser's error is caught; it says more than ``msg``."""
        fault = sys.exception()
        is_of_ours = fault is None or isinstance(fault, httptools.HttpParserCallbackError)
        words = "the request's target can't be read" if is_of_ours else f"that is no request of HTTP: {fault}"
        self._refuse(ApiError("request_malformed", words))

    def _refuse(self, error: ApiError) -> None:
        """Nothing more is heard from this client. It is told why, unless that would stand in the middle of an answer or be
        taken for that to an earlier request.
        """
        self._is_refused = True
        self._cancel_timer()
        self._unset_keepalive_if_required()
        self.flow.is_held = False
        self.flow.resume_reading()
        cycle = self.cycle
        is_unanswered = cycle is not None and not cycle.response_complete
        if is_unanswered and not cycle.more_body:
            cycle.keep_alive = False  # What was asked before is answered, and that is the end.
        elif self.pipeline or (is_unanswered and cycle.response_started):
            self.transport.close()
        else:
            if is_unanswered:
                cycle.disconnected = True
                cycle.message_event.set()
            self._tell(error)

    def _tell(self, error: ApiError) -> None:
        """To close at once would reset the connection under what the client still sends, and lose that word."""
        body = json.dumps(error_body(error.code, str(error))).encode()
        fields = {
            **{name.lower(): value for name, value in SECURITY_HEADERS.items()},
            "cache-control": "no-store",
            "content-type": JSON,
            "content-length": str(len(body)),
            "connection": "close",
        }
        lines = [*self.server_state.default_headers, *((name.encode(), value.encode()) for name, value in fields.items())]
        head = b"".join(name + b": " + value + b"\r\n" for name, value in lines)
        self.transport.write(STATUS_LINE[error.status] + head + b"\r\n" + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_S, self.transport.close)
