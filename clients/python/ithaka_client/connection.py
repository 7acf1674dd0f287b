"""One WebSocket of a session's stream: opened, spoken over, lost. It never reconnects; the session does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.http11 import Response
from websockets.typing import Subprotocol

from ithaka_client.errors import (
    ConnectFailedError,
    ConnectionLostError,
    DeadlineError,
    IthakaError,
    ProtocolError,
    StreamFailedError,
    StreamRefusedError,
    close_error,
    read_error,
)
from ithaka_client.protocol import (
    MAX_MESSAGE_BYTES,
    SUBPROTOCOL,
    TOKEN_SUBPROTOCOL_PREFIX,
    EncodedFrame,
    Hello,
    Ping,
    ServerError,
    ServerMessage,
    StateChanged,
    build_pong,
    parse_frame,
    parse_message,
)

SEND_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 2.0
KEEPALIVE_INTERVAL_S = 5.0
KEEPALIVE_TIMEOUT_S = 10.0
QUEUED_MESSAGES = 16
CLOSED_NORMALLY = 1000


class Connection:
    """``hello`` is the server's first word on this connection."""

    def __init__(self, socket: ClientConnection, hello: Hello) -> None:
        self._socket = socket
        self.hello = hello

    @classmethod
    async def open(cls, url: str, token: str | None, *, timeout_s: float) -> Connection:
        """Connect and wait for hello. Raises ConnectFailedError, DeadlineError, StreamError, ProtocolError."""
        socket: ClientConnection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                socket = await open_socket(url, token)
                return cls(socket, await _await_hello(socket))
        except BaseException as error:
            if socket is not None:
                await _close(socket)
            if isinstance(error, TimeoutError):
                raise DeadlineError("connect_timeout", f"No hello from {url} within {timeout_s:g} s.", retryable=True) from None
            raise

    async def send(self, message: str) -> None:
        """Raises ConnectionLostError; the reader of ``messages`` learns the reason."""
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self._socket.send(message)
        except ConnectionClosed as error:
            raise closed_error(error) from None
        except TimeoutError:
            raise ConnectionLostError("connection_lost", "The server takes no messages.", retryable=True) from None

    async def messages(self) -> AsyncIterator[EncodedFrame | ServerMessage]:
        """Until the server closes normally. Answers pings. Raises what the close code says, or ProtocolError."""
        while True:
            message = await _receive(self._socket)
            if message is None:
                return
            if isinstance(message, Ping):
                await self.send(build_pong(message.id))
            elif isinstance(message, ServerError):
                raise _server_error(message, await _await_close(self._socket))
            else:
                yield message

    async def close(self) -> None:
        """Idempotent, bounded, never raises."""
        await _close(self._socket)


async def open_socket(url: str, token: str | None) -> ClientConnection:
    """Without a deadline of its own. Raises ConnectFailedError, StreamError, ProtocolError."""
    offered = [SUBPROTOCOL] if token is None else [SUBPROTOCOL, TOKEN_SUBPROTOCOL_PREFIX + token]
    try:
        socket = await connect(
            url,
            subprotocols=[Subprotocol(name) for name in offered],
            compression=None,
            max_size=MAX_MESSAGE_BYTES,
            max_queue=QUEUED_MESSAGES,
            open_timeout=None,
            ping_interval=KEEPALIVE_INTERVAL_S,
            ping_timeout=KEEPALIVE_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
        )
    except InvalidStatus as error:
        raise _status_error(error.response) from None
    except (OSError, InvalidHandshake, InvalidURI) as error:
        raise ConnectFailedError("connect_failed", f"Can't open {url}: {error}.", retryable=True) from error
    if socket.subprotocol != SUBPROTOCOL:
        await _close(socket)
        raise ProtocolError(f"the server did not select {SUBPROTOCOL}", code="version_unsupported")
    return socket


async def _await_hello(socket: ClientConnection) -> Hello:
    while True:
        message = await _receive(socket)
        match message:
            case Hello():
                return message
            case StateChanged(state="closed" | "failed"):
                raise StreamFailedError(message.reason, f"The session ended before its first frame: it is {message.state}.")
            case None:
                raise StreamRefusedError("session_ended", "The session is over.")
            case ServerError():
                raise _server_error(message, await _await_close(socket))
            case Ping():
                await socket.send(build_pong(message.id))
            case EncodedFrame():
                raise ProtocolError("a frame came before hello")
            case _:
                pass


async def _receive(socket: ClientConnection) -> EncodedFrame | ServerMessage | None:
    """The next message, or None once the server has closed normally."""
    try:
        data = await socket.recv()
    except ConnectionClosed as error:
        if error.rcvd is not None and error.rcvd.code == CLOSED_NORMALLY:
            return None
        raise closed_error(error) from None
    return parse_message(data) if isinstance(data, str) else parse_frame(data)


def closed_error(error: ConnectionClosed) -> IthakaError:
    """What the server's close says, or that there was none."""
    if error.rcvd is None:
        return ConnectionLostError("connection_lost", "The connection was lost.", retryable=True)
    return close_error(error.rcvd.code, error.rcvd.reason)


async def _await_close(socket: ClientConnection) -> int:
    """The code with which the server closes after an error."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await socket.wait_closed()
    except TimeoutError:
        return 1006
    return socket.close_code or 1006


def _server_error(message: ServerError, close_code: int) -> IthakaError:
    return close_error(close_code, message.message, code=message.code, retryable=message.retryable)


def _status_error(response: Response) -> IthakaError:
    status, said = response.status_code, read_error(bytes(response.body or b""))
    code, message = str(said.get("code", "")), str(said.get("message", ""))
    close_codes = {401: 4401, 403: 4403, 404: 4404, 409: 4409, 410: 4410, 429: 4429}
    if status in close_codes:
        return close_error(close_codes[status], message, code=code)
    return ConnectFailedError(
        code or "connect_failed",
        message or f"The server answered the upgrade with HTTP status {status}.",
        retryable=bool(said.get("retryable", status >= 500)),
    )


async def _close(socket: ClientConnection) -> None:
    await socket.close()
