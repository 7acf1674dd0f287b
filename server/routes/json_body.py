"""Routes whose body is JSON: read strictly before anything looks at it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from ithaka.server.errors import ApiError
from ithaka.server.json_text import read_json


class JsonBodyRequest(Request):
    _value: Any = None
    _is_read = False

    async def json(self) -> Any:
        """Raises ApiError ``invalid_json``."""
        if not self._is_read:
            try:
                self._value = read_json(await self.body())
            except ValueError as error:
                raise ApiError("invalid_json", f"the body is not JSON: {error}", field="body") from None
            self._is_read = True
        return self._value


class JsonBodyRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            strict = JsonBodyRequest(request.scope, request.receive)
            # Here, not where FastAPI reads it: that makes one fault of whatever is raised.
            if self.body_field is not None and await strict.body():
                await strict.json()
            return await handle(strict)

        return handle_strictly
