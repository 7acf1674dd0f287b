"""uvicorn's server as the daemon needs it: without its own signals, and with our protocols."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import cast

import uvicorn

from ithaka.server.http_protocol import BoundedHttpProtocol

TICK_S = 1.0


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
        return BoundedHttpProtocol(self.config, self.server_state, head_timeout_s=self._head_timeout_s)
