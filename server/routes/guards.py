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
"""Of a body that is too large: read and thrown away, so that the client gets to the answer."""
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


class RequestGuard:
    """Foreign Host or Origin: 403. Body above ``max_body_bytes``: 413, whether announced or not. One of a foreign type: 415;
    one that is not whole after ``body_timeout_s``: 408.
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
        body = bytearray()
        async with contextlib.aclosing(_pieces(receive, DISCARDED_BYTES)) as pieces:
            async for piece in pieces:
                body += piece[: max(0, self._max_body_bytes + 1 - len(body))]
        if len(body) > self._max_body_bytes:
            message = f"a body has at most {self._max_body_bytes} bytes"
            raise ApiError("body_too_large", message, headers={"Connection": "close"})
        kind = email.message.Message()
        kind["content-type"] = headers.get("content-type", "")
        if kind.get_content_type() not in BODY_TYPES:
            raise ApiError("unsupported_media_type", f"send the body as Content-Type: {expected}")
        return bytes(body)


def body_type_of(path: str) -> str:
    """The type of a body at this path."""
    whep = _WHEP.fullmatch(path)
    if whep is None:
        return JSON
    return FRAGMENT if whep["connection"] else SDP


async def _pieces(receive: Receive, bound_bytes: int) -> AsyncGenerator[bytes, None]:
    """The body as it comes, through ``bound_bytes``: a client reads no answer before it has sent most of its body."""
    num_bytes = 0
    while num_bytes <= bound_bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece = message.get("body", b"")
        num_bytes += len(piece)
        yield piece
        if not message.get("more_body", False):
            return


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
