"""Methods of a path: HEAD is GET without its body, and a refusal names every method that the path knows."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ithaka.server.errors import ApiError
from ithaka.server.routes.guards import error_response


class _HeadersSent(OSError):
    """The rest of the answer is not wanted. An OSError, as a carrier's that is gone."""


class KnownMethods:
    """Stands before the router, whose mounted page would answer for every method that a route of ours does not take."""

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = self._methods(scope) if scope["type"] == "http" else set()
        if not known or scope["method"] in known:
            await self._app(scope, receive, send)
        elif scope["method"] == "HEAD" and "GET" in known:
            await self._head(scope, receive, send)
        else:
            allowed = ", ".join(sorted(known | ({"HEAD"} if "GET" in known else set())))
            message = f"{scope['path']} takes {allowed}, not {scope['method']}"
            await error_response(ApiError("method_not_allowed", message, headers={"Allow": allowed}))(scope, receive, send)

    def _methods(self, scope: Scope) -> set[str]:
        """Of the routes at this path; none where only the page may know it."""
        found: set[str] = set()
        for route in self._routes:
            if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
                found |= route.methods or set()
        return found

    async def _head(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_headers(message: Message) -> None:
            if message["type"] != "http.response.body":
                await send(message)
                return
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            raise _HeadersSent

        try:
            await self._app({**scope, "method": "GET"}, receive, send_headers)
        except (_HeadersSent, ClientDisconnect):
            return
