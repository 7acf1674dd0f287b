"""What every HTTP request passes before any route: Host and Origin, the body's size and type; headers for every answer."""

from __future__ import annotations

import asyncio
import contextlib
import email.message
import re
from collections.abc import AsyncGenerator, Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ithaka.server.auth import HostGuard
from ithaka.server.errors import ApiError, error_body

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "font-src 'self'",
        "media-src 'self' blob:",
        "connect-src 'self'",
        "worker-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
JSON = "application/json"
SDP = "application/sdp"
FRAGMENT = "application/trickle-ice-sdpfrag"
BODY_TYPES = frozenset({JSON, SDP, FRAGMENT})
"""None of them can a foreign page send without asking first."""
_WHEP = re.compile(r"/v1/sessions/[^/]+/whep(?P<connection>/[^/]+)?")
DISCARDED_BYTES = 16 * 1024 * 1024
"""Of what a refused client still sends: read and thrown away, so that it gets to the answer."""
LINGER_S = 2.0
"""So long a refused client may send nothing before its connection is closed."""
RETRY_AFTER_S = 5
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def error_response(error: ApiError) -> JSONResponse:
    return JSONResponse(error_body(error.code, str(error), error.field), error.status, error.headers)


class SecurityHeaders:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers)


class ConnectionBound:
    """503 for a request that comes on one connection too many, which ends with it; one for a WebSocket too."""

    def __init__(self, app: ASGIApp, max_connections: int, num_open: Callable[[], int]) -> None:
        self._app = app
        self._max_connections = max_connections
        self._num_open = num_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._num_open() <= self._max_connections:
            await self._app(scope, receive, send)
        else:
            message = f"{self._max_connections} connections are open (server.max_connections), and no more fit"
            headers = {"Connection": "close", "Retry-After": str(RETRY_AFTER_S)}
            await error_response(ApiError("too_many_connections", message, headers=headers))(scope, receive, send)


class BodyTooLarge(ApiError):
    def __init__(self, max_body_bytes: int) -> None:
        super().__init__("body_too_large", f"a body has at most {max_body_bytes} bytes", headers={"Connection": "close"})


class RequestGuard:
    """Foreign Host or Origin: 403. Body above ``max_body_bytes``: 413, as soon as it is announced or has come. One of a
    foreign type: 415; one that is not whole after ``body_timeout_s``: 408.
    """

    def __init__(self, app: ASGIApp, guard: HostGuard, max_body_bytes: int, body_timeout_s: float) -> None:
        self._app = app
        self._guard = guard
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._guard.check(headers.getlist("host"), headers.getlist("origin"))
            async with asyncio.timeout(self._body_timeout_s):
                body = await self._body(headers, receive, body_type_of(scope["path"]))
        except TimeoutError:
            message = f"the body did not come within {self._body_timeout_s:g} s"
            error = ApiError("body_timeout", message, headers={"Connection": "close"})
            await error_response(error)(scope, receive, send)
            return
        except BodyTooLarge as error:
            await self._answer_first(error_response(error), scope, receive, send)
            return
        except ApiError as error:
            await error_response(error)(scope, receive, send)
            return
        except ClientDisconnect:
            return  # Half a body is no request.
        await self._app(scope, _replay(body, receive), send)

    async def _body(self, headers: Headers, receive: Receive, expected: str) -> bytes:
        """The whole body. ``expected`` is the type to name to who sends a foreign one. Raises ApiError and ClientDisconnect."""
        if not _has_body(headers):
            return b""
        if int(headers.get("content-length", "0")) > self._max_body_bytes:
            raise BodyTooLarge(self._max_body_bytes)
        body = bytearray()
        async with contextlib.aclosing(_pieces(receive)) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > self._max_body_bytes:
                    raise BodyTooLarge(self._max_body_bytes)
        kind = email.message.Message()
        kind["content-type"] = headers.get("content-type", "")
        if kind.get_content_type() not in BODY_TYPES:
            raise ApiError("unsupported_media_type", f"send the body as Content-Type: {expected}")
        return bytes(body)

    async def _answer_first(self, answer: JSONResponse, scope: Scope, receive: Receive, send: Send) -> None:
        """The whole answer goes out, and stays the last but one word while the client still sends: with the last one its
        connection is closed, and closed under what is on its way it would be reset, and the answer lost.
        """

        async def send_open(message: Message) -> None:
            await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

        await answer(scope, receive, send_open)
        with contextlib.suppress(TimeoutError, ClientDisconnect):
            async with asyncio.timeout(self._body_timeout_s):
                await _discard(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def body_type_of(path: str) -> str:
    """The type of a body at this path."""
    whep = _WHEP.fullmatch(path)
    if whep is None:
        return JSON
    return FRAGMENT if whep["connection"] else SDP


async def _pieces(receive: Receive) -> AsyncGenerator[bytes, None]:
    """The body as it comes. Raises ClientDisconnect."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


async def _discard(receive: Receive) -> None:
    """The rest of a body. Raises ClientDisconnect, and TimeoutError when it does not go on."""
    loop, num_bytes = asyncio.get_running_loop(), 0
    async with asyncio.timeout(LINGER_S) as silence, contextlib.aclosing(_pieces(receive)) as pieces:
        async for piece in pieces:
            num_bytes += len(piece)
            if num_bytes > DISCARDED_BYTES:
                return
            silence.reschedule(loop.time() + LINGER_S)


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body that was read, then whatever the connection says."""
    is_told = False

    async def replayed() -> Message:
        nonlocal is_told
        if is_told:
            return await receive()
        is_told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
