"""WHEP (draft-ietf-wish-whep): ordinary players receive a session's video by one POST of their offer.

A player has no messages. With ``?role=controller`` and a right to control it stands in the controller's place, so that the
session generates for it; controls then come by ``POST …/controls``.
"""

from __future__ import annotations

import email.message

from fastapi import APIRouter, Request
from starlette.responses import Response

from ithaka.server.errors import ApiError
from ithaka.server.routes.guards import FRAGMENT, SDP
from ithaka.server.routes.schemas import error_answers
from ithaka.server.routes.services import SeenSession, principal_of, services_of
from ithaka.server.routes.sessions import ALWAYS
from ithaka.server.routes.webrtc import CANDIDATES, CONNECTION, OFFER, etag_of, require_match
from ithaka.server.session.messages import Role
from ithaka.server.session.session import Session
from ithaka.server.transports.webrtc.offer import read_offer
from ithaka.server.transports.webrtc.settings import IceServer, ice_servers

router = APIRouter(prefix="/v1/sessions", tags=["webrtc"])
_BODY = ("body_too_large", "unsupported_media_type")
_SDP_BODY = {"requestBody": {"required": True, "content": {SDP: {"schema": {"type": "string"}}}}}
_FRAGMENT_BODY = {"requestBody": {"required": True, "content": {FRAGMENT: {"schema": {"type": "string"}}}}}


@router.options("/{session_id}/whep", status_code=204, summary="What can be posted", responses=error_answers(*ALWAYS))
async def options(session: SeenSession, request: Request) -> Response:
    return Response(status_code=204, headers={"Accept-Post": SDP, **_links(session, request)})


@router.post(
    "/{session_id}/whep",
    status_code=201,
    summary="Play by WHEP",
    response_class=Response,
    openapi_extra=_SDP_BODY,
    responses={
        201: {"description": "The answer; `Location` is the connection.", "content": {SDP: {"schema": {"type": "string"}}}},
        **error_answers(*ALWAYS, *_BODY, *OFFER),
    },
)
async def play(session: SeenSession, request: Request, role: Role = "viewer") -> Response:
    """Viewers watch; see the role for players that are alone with their session."""
    principal = principal_of(request)
    principal.require_session(session.session_id, to_control=role == "controller")
    offer = read_offer(await _text(request, SDP))
    answered = await services_of(request).rtc.answer(session, role, principal, offer)
    headers = {
        "Location": f"{request.url.path}/{answered.connection_id}",
        "ETag": etag_of(answered.connection_id),
        "Accept-Patch": FRAGMENT,
        **_links(session, request),
    }
    return Response(answered.sdp, 201, headers, media_type=SDP)


@router.patch(
    "/{session_id}/whep/{connection_id}",
    status_code=204,
    summary="Add candidates",
    openapi_extra=_FRAGMENT_BODY,
    responses=error_answers(*ALWAYS, *_BODY, *CANDIDATES, *CONNECTION),
)
async def trickle(session: SeenSession, connection_id: str, request: Request) -> None:
    """With `If-Match`, only where it names this connection's ETag."""
    fragment = await _text(request, FRAGMENT)
    require_match(request, connection_id)
    await services_of(request).rtc.add_candidates(session, principal_of(request), connection_id, fragment)


@router.delete(
    "/{session_id}/whep/{connection_id}",
    status_code=200,
    summary="Stop playing",
    response_class=Response,
    responses=error_answers(*ALWAYS, *CONNECTION),
)
async def stop(session: SeenSession, connection_id: str, request: Request) -> Response:
    """With `If-Match`, only where it names this connection's ETag."""
    require_match(request, connection_id)
    await services_of(request).rtc.end(session, principal_of(request), connection_id)
    return Response(status_code=200)


async def _text(request: Request, expected: str) -> str:
    """The body. Raises ApiError."""
    kind = email.message.Message()
    kind["content-type"] = request.headers.get("content-type", "")
    if kind.get_content_type() != expected:
        raise ApiError("unsupported_media_type", f"send the body as Content-Type: {expected}")
    try:
        return (await request.body()).decode()
    except UnicodeDecodeError:
        raise ApiError("sdp_invalid", "the body is not UTF-8") from None


def _links(session: Session, request: Request) -> dict[str, str]:
    """The ICE servers, as WHEP tells them."""
    services = services_of(request)
    servers = ice_servers(services.config, session.session_id, services.wall_s())
    links = [_link(url, known) for known in servers for url in known.urls]
    return {"Link": ", ".join(links)} if links else {}


def _link(url: str, server: IceServer) -> str:
    plain = f'<{url}>; rel="ice-server"'
    if not server.username:
        return plain
    return f'{plain}; username="{server.username}"; credential="{server.credential}"; credential-type="password"'
