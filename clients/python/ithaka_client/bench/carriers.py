"""The ways a session's messages and frames can come: text messages as they are, frames as access units."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from ithaka_client.bench.access_unit import AccessUnit, numbered_h264
from ithaka_client.bench.plan import Plan
from ithaka_client.connection import CLOSED_NORMALLY, closed_error, open_socket
from ithaka_client.errors import DeadlineError
from ithaka_client.protocol import parse_frame

OPEN_TIMEOUT_S = 20.0


class Carrier(Protocol):
    """``acknowledges``: the server waits for acknowledgements of frames."""

    acknowledges: bool

    async def open(self) -> None:
        """Raises IthakaError."""
        ...

    async def send(self, message: str) -> None:
        """Raises IthakaError."""
        ...

    async def receive(self) -> str | AccessUnit | None:
        """A text message, a picture, or None when the connection is over. Raises IthakaError."""
        ...

    async def close(self) -> None: ...


class WebSocketCarrier:
    acknowledges = True

    def __init__(self, url: str, session_path: str, token: str) -> None:
        self._address = f"{url.replace('http', 'ws', 1)}{session_path}/stream"
        self._token = token
        self._socket: ClientConnection | None = None

    async def open(self) -> None:
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                self._socket = await open_socket(self._address, self._token)
        except TimeoutError:
            words = f"The WebSocket {self._address} was not open within {OPEN_TIMEOUT_S:g} s."
            raise DeadlineError("connect_timeout", words, retryable=True) from None

    async def send(self, message: str) -> None:
        assert self._socket is not None
        try:
            await self._socket.send(message)
        except ConnectionClosed as error:
            raise closed_error(error) from None

    async def receive(self) -> str | AccessUnit | None:
        assert self._socket is not None
        try:
            message = await self._socket.recv()
        except ConnectionClosed as error:
            if error.rcvd is not None and error.rcvd.code == CLOSED_NORMALLY:
                return None
            raise closed_error(error) from None
        return message if isinstance(message, str) else numbered_h264(parse_frame(message).payload)

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()


OpenCarrier = Callable[[Plan, str, str], Carrier]
"""Of a plan, a session's path and its token; as ``carrier_of``."""


def carrier_of(plan: Plan, session_path: str, token: str) -> Carrier:
    """Raises ImportError, saying what to install, where WebRTC is not there."""
    if plan.transport == "websocket":
        return WebSocketCarrier(plan.url, session_path, token)
    try:
        from ithaka_client.bench.webrtc_carrier import WebRtcCarrier
    except ImportError as error:
        raise ImportError(f"WebRTC needs `pip install ithaka-client[bench]` ({error})") from error
    return WebRtcCarrier(plan.url, session_path, token, codec=plan.codec if plan.transport == "webrtc" else None)


async def read_within(carrier: Carrier, timeout_s: float, *, awaited: str) -> str | AccessUnit | None:
    """``receive`` with an end to it. ``awaited``: what is to come, in words. Raises DeadlineError, and as ``receive``."""
    try:
        async with asyncio.timeout(timeout_s):
            return await carrier.receive()
    except TimeoutError:
        words = f"Nothing came for {timeout_s:g} s, not even a ping, while waiting for {awaited}."
        raise DeadlineError("connection_silent", words, retryable=True) from None
