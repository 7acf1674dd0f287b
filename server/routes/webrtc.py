"""WebRTC for the page and the SDKs: an offer comes as JSON, the answer goes back; candidates may trickle in."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field

from ithaka.server.errors import ApiError
from ithaka.server.routes.json_body import JsonBodyRoute
from ithaka.server.routes.schemas import Schema, error_answers
from ithaka.server.routes.services import SeenSession, principal_of, services_of
from ithaka.server.routes.sessions import ALWAYS, BODY
from ithaka.server.transports.webrtc.offer import read_offer
from ithaka.server.transports.webrtc.settings import ice_servers

router = APIRouter(prefix="/v1/sessions", tags=["webrtc"], route_class=JsonBodyRoute)
Sdp = Annotated[str, Field(min_length=1, max_length=64 * 1024)]
OFFER = (
    "sdp_invalid",
    "codec_unsupported",
    "track_unsupported",
    "session_unknown",
    "session_ended",
    "session_not_started",
    "connections_full",
)
CANDIDATES = ("sdp_invalid", "ice_restart_unsupported", "candidates_full", "fragments_too_fast")
CONNECTION = ("session_unknown", "connection_unknown", "etag_mismatch")


class IceServerView(Schema):
    urls: tuple[str, ...]
    username: str
    credential: str


class IceView(Schema):
    """What a browser's RTCPeerConnection is made with."""

    ice_servers: tuple[IceServerView, ...]


class OfferBody(Schema):
    type: Literal["offer"]
    sdp: Sdp


class AnswerView(Schema):
    id: str
    type: Literal["answer"] = "answer"
    sdp: str


class FragmentBody(Schema):
    """Lines of RFC 8840, as in a WHEP PATCH."""

    sdp_fragment: Sdp


@router.get("/{session_id}/webrtc", summary="Get the ICE servers", responses=error_answers(*ALWAYS, "session_unknown"))
async def ice(session: SeenSession, request: Request) -> IceView:
    services = services_of(request)
    servers = ice_servers(services.config, session.session_id, services.wall_s())
    views = tuple(IceServerView(urls=known.urls, username=known.username, credential=known.credential) for known in servers)
    return IceView(ice_servers=views)


@router.post(
    "/{session_id}/webrtc", status_code=201, summary="Connect by WebRTC", responses=error_answers(*ALWAYS, *BODY, *OFFER)
)
async def connect(session: SeenSession, body: OfferBody, request: Request, response: Response) -> AnswerView:
    """As controller or viewer, by the token. The offer opens one reliable data channel for the messages of the protocol; with
    a video section that receives, frames come as a track where they may be lost, else over the channel.
    """
    principal = principal_of(request)
    answered = await services_of(request).rtc.answer(session, principal.role, principal, read_offer(body.sdp))
    response.headers["Location"] = f"{request.url.path}/{answered.connection_id}"
    response.headers["ETag"] = etag_of(answered.connection_id)
    return AnswerView(id=answered.connection_id, sdp=answered.sdp)


@router.patch(
    "/{session_id}/webrtc/{connection_id}",
    status_code=204,
    summary="Add candidates",
    responses=error_answers(*ALWAYS, *BODY, *CANDIDATES, *CONNECTION),
)
async def trickle(session: SeenSession, connection_id: str, body: FragmentBody, request: Request) -> None:
    """With `If-Match`, only where it names this connection's ETag."""
    require_match(request, connection_id)
    await services_of(request).rtc.add_candidates(session, principal_of(request), connection_id, body.sdp_fragment)


@router.delete(
    "/{session_id}/webrtc/{connection_id}",
    status_code=204,
    summary="End a connection",
    responses=error_answers(*ALWAYS, *CONNECTION),
)
async def disconnect(session: SeenSession, connection_id: str, request: Request) -> None:
    """The session goes on, as after a lost connection. With `If-Match`, only where it names this connection's ETag."""
    require_match(request, connection_id)
    await services_of(request).rtc.end(session, principal_of(request), connection_id)


def etag_of(connection_id: str) -> str:
    """A connection keeps its one ICE session, so that its id names both."""
    return f'"{connection_id}"'


def require_match(request: Request, connection_id: str) -> None:
    """Raises ApiError ``etag_mismatch``. A request without ``If-Match`` is taken for the only ICE session there is."""
    named = [tag.strip() for header in request.headers.getlist("if-match") for tag in header.split(",")]
    if named and not {"*", etag_of(connection_id)} & set(named):
        raise ApiError("etag_mismatch", f"If-Match has to be {etag_of(connection_id)}, the ETag that came with the answer")
