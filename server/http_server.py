"""uvicorn as the daemon needs it: without its own signals, and with bounds on what comes before a request is whole."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers together."""
TICK_S = 1.0


class BoundedHttpProtocol(HttpToolsProtocol):
    """A connection that is cut where a request's head takes too long or gets too big; a body is the app's to bound.

    The time runs from the connection's start, later from a request's first bytes, and does not begin anew with more bytes.
    Between requests uvicorn's own bound on idle connections counts.
    """

    def __init__(
        self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any], *, head_timeout_s: float
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._head_timeout_s = head_timeout_s
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head(0)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._has_request():
            self._forget_head()
        else:
            self._expect_head(len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        super().connection_lost(exc)

    def _has_request(self) -> bool:
        """Whether the last request is with the app, or the connection is no longer this protocol's."""
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return True
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_head(self, num_bytes: int) -> None:
        self._head_bytes += num_bytes
        if self._head_bytes > MAX_HEAD_BYTES:
            self.transport.abort()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_timeout_s, self.transport.abort)

    def _forget_head(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: they would close connections before sessions could drain."""

    def __init__(self, config: uvicorn.Config, *, head_timeout_s: float) -> None:
        super().__init__(config)
        self._head_timeout_s = head_timeout_s
        self.is_listening = asyncio.Event()
        self._is_leaving = asyncio.Event()

    def leave(self) -> None:
        """Take no more connections and close those there are; ``serve`` returns then."""
        self.should_exit = True
        self._is_leaving.set()

    async def main_loop(self) -> None:
        """A turn a second, for the date in the headers of answers; uvicorn's own has ten, to see whether it should exit."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._is_leaving.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's own for sockets that are given, with our protocol and a bound on TLS handshakes."""
        loop, ssl = asyncio.get_running_loop(), self.config.ssl
        self.servers = [
            await loop.create_server(
                self._connection,
                sock=listener,
                ssl=ssl,
                ssl_handshake_timeout=None if ssl is None else self._head_timeout_s,
                backlog=self.config.backlog,
            )
            for listener in sockets or ()
        ]
        self.started = True
        self.is_listening.set()

    def abort_connections(self) -> None:
        """Cut what did not close in time, its unsent bytes too."""
        for connection in list(self.server_state.connections):
            transport = cast("asyncio.Transport | None", getattr(connection, "transport", None))
            if transport is not None:
                transport.abort()

    def _connection(self) -> BoundedHttpProtocol:
        return BoundedHttpProtocol(self.config, self.server_state, {}, head_timeout_s=self._head_timeout_s)
