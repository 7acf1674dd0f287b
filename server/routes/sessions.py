"""Create, look at and end sessions."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from ithaka.server.errors import ApiError
from ithaka.server.routes.json_body import JsonBodyRoute
from ithaka.server.routes.schemas import (
    CreateBody,
    CreatedView,
    SessionList,
    SessionView,
    TokenBody,
    TokenView,
    created_view,
    date_of,
    error_answers,
    session_view,
)
from ithaka.server.routes.services import ControlledSession, Operator, Registry, SeenSession, services_of

router = APIRouter(prefix="/v1/sessions", tags=["sessions"], route_class=JsonBodyRoute)
ALWAYS = (
    "invalid_request",
    "key_missing",
    "key_invalid",
    "token_expired",
    "role_not_allowed",
    "host_not_allowed",
    "origin_not_allowed",
)
BODY = ("invalid_json", "body_too_large", "unsupported_media_type")


@router.post(
    "",
    status_code=201,
    summary="Create a session",
    responses={
        202: {"model": CreatedView, "description": "Every place is taken; the session waits, see `queue_position`."},
        **error_answers(
            *ALWAYS,
            *BODY,
            "control_not_taken",
            "invalid_session_options",
            "model_unknown",
            "model_unavailable",
            "queue_full",
            "server_stopping",
            "recording_off",
        ),
    },
)
async def create(body: CreateBody, request: Request, response: Response, registry: Registry, _: Operator) -> CreatedView:
    """Admitted at once, or queued. The answer carries the token with which its controller connects."""
    services = services_of(request)
    if body.record:
        services.recordings.require()
    session = registry.create(body.wish())
    if body.record:
        services.recordings.begin(session)
    token, expires_s = services.access.tokens.mint(session.session_id, "controller")
    response.headers["Location"] = f"/v1/sessions/{session.session_id}"
    if registry.queue_position(session.session_id) is not None:
        response.status_code = 202
    return created_view(session, registry, token, expires_s)


@router.get("", summary="List sessions", responses=error_answers(*ALWAYS))
async def list_all(registry: Registry, _: Operator) -> SessionList:
    """Those that live, and those that ended not long ago."""
    return SessionList(sessions=tuple(session_view(session, registry) for session in registry.all()))


@router.get("/{session_id}", summary="Look at a session", responses=error_answers(*ALWAYS, "session_unknown"))
async def look(session: SeenSession, registry: Registry) -> SessionView:
    return session_view(session, registry)


@router.delete(
    "/{session_id}",
    status_code=202,
    summary="End a session",
    responses={
        200: {"model": SessionView, "description": "It is over."},
        **error_answers(*ALWAYS, "session_unknown"),
    },
)
async def end(session: ControlledSession, registry: Registry, response: Response, force: bool = False) -> SessionView:
    """Frames that were generated still go out and their delivery is confirmed; with `force` it is closed now."""
    if force:
        session.force("forced")
    else:
        session.end("ended")
    if session.is_over:
        response.status_code = 200
    return session_view(session, registry)


@router.post(
    "/{session_id}/token",
    status_code=201,
    summary="Get a fresh token",
    responses=error_answers(*ALWAYS, *BODY, "session_unknown", "session_ended"),
)
async def token(session_id: str, body: TokenBody, request: Request, registry: Registry, _: Operator) -> TokenView:
    """For the controller, or for a viewer that only watches."""
    session = registry.get(session_id)
    if session.is_over:
        raise ApiError("session_ended", f"the session is over: {session.message}")
    text, expires_s = services_of(request).access.tokens.mint(session.session_id, body.role)
    return TokenView(role=body.role, token=text, token_expires_at=date_of(expires_s))
