"""The application: routes, guards and the one shape of an error. Wiring only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse

from ithaka.server.errors import ApiError
from ithaka.server.routes import controls, events, health, metrics, models, recordings, sessions, stream, webrtc, whep
from ithaka.server.routes.guards import ConnectionBound, RequestGuard, SecurityHeaders, error_response
from ithaka.server.routes.methods import KnownMethods
from ithaka.server.routes.page import PAGE_FOLDER, page_app
from ithaka.server.routes.query import only_known_query
from ithaka.server.routes.services import Services

_CODES_OF_STATUS = {404: "path_unknown", 405: "method_not_allowed"}

log = structlog.get_logger()


def create_app(services: Services, *, num_connections: Callable[[], int], page_folder: Path = PAGE_FOLDER) -> FastAPI:
    """``num_connections``: how many are open, that of the request too."""
    app = FastAPI(
        title="Ithaka",
        version="1",
        description="Sessions of interactive video and world models. Frames come over the WebSocket of `stream_path`.",
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(only_known_query)],
    )
    app.state.services = services
    routers = [
        module.router for module in (sessions, controls, events, models, health, metrics, stream, webrtc, whep, recordings)
    ]
    for router in routers:
        app.include_router(router)
    app.mount("/", page_app(page_folder))
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _fault)
    server = services.config.server
    routes = [route for router in (app.router, *routers) for route in router.routes]
    app.add_middleware(KnownMethods, routes=routes)
    app.add_middleware(
        RequestGuard,
        guard=services.access.guard,
        max_body_bytes=server.max_body_bytes,
        body_timeout_s=server.body_timeout_s,
    )
    if server.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=server.allowed_origins,
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "If-Match"],
            expose_headers=["Location", "Retry-After", "ETag", "Link", "Accept-Patch"],
        )
    app.add_middleware(ConnectionBound, max_connections=server.max_connections, num_open=num_connections)
    app.add_middleware(SecurityHeaders)
    return app


async def _api_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _validation_error(request: Request, error: Exception) -> JSONResponse:
    """The first fault, with the path of its field."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return error_response(ApiError("invalid_json", "the body is not JSON", field="body"))
    path = ".".join(str(part) for part in first["loc"])
    is_bodiless = (path, first["type"]) == ("body", "missing")
    fault = "there is none; send a JSON object" if is_bodiless else first["msg"].removeprefix("Value error, ")
    return error_response(ApiError("invalid_request", f"{path}: {fault}", field=path))


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == 400:  # FastAPI's word for bytes that are no text.
        return error_response(ApiError("invalid_json", "the body is not JSON in UTF-8", field="body"))
    code = _CODES_OF_STATUS.get(error.status_code, "internal")
    message = f"{request.method} {request.url.path}: {error.detail}"
    return error_response(ApiError(code, message, headers=dict(error.headers or {})))


async def _fault(request: Request, error: Exception) -> JSONResponse:
    log.error("request.failed", method=request.method, path=request.url.path, exc_info=error)
    return error_response(ApiError("internal", "a fault of the server; it is in its log"))
