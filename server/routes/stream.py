"""The WebSocket of a session: checks who comes, then lets a peer do the talking."""

from __future__ import annotations

import structlog
from fastapi import APIRouter, WebSocket

from ithaka.server.errors import ERROR_CODES, ApiError, ProtocolViolation
from ithaka.server.routes.guards import error_response
from ithaka.server.routes.services import Services, services_of
from ithaka.server.session.messages import ErrorRaised
from ithaka.server.session.peer import Peer
from ithaka.server.transports.base import TransportLost
from ithaka.server.transports.websocket import SUBPROTOCOL, WebSocketTransport

router = APIRouter()
log = structlog.get_logger()


@router.websocket("/v1/sessions/{session_id}/stream")
async def stream(socket: WebSocket, session_id: str) -> None:
    """A refusal is told in the open connection, since a browser shows no page the status of a refused one."""
    services = services_of(socket)
    with services.streams.counted():
        await _serve(socket, session_id, services)


@router.websocket("/{path:path}")
async def nowhere(socket: WebSocket, path: str) -> None:
    """No page of ours opens this one, so the answer is the handshake's own."""
    error = ApiError("path_unknown", f"no WebSocket is served at /{path}; a session names its `stream_path`")
    await socket.send_denial_response(error_response(error))


async def _serve(socket: WebSocket, session_id: str, services: Services) -> None:
    offered = socket.scope["subprotocols"]
    await socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
    transport = WebSocketTransport(socket)
    try:
        await _peer(socket, session_id, offered, services, transport).run()
    except (ApiError, ProtocolViolation) as refusal:
        await _refuse(transport, refusal.code, str(refusal), services)
    except Exception:
        log.exception("connection.failed", session=session_id)
        await _refuse(transport, "internal", ERROR_CODES["internal"].meaning, services)


def _peer(socket: WebSocket, session_id: str, offered: list[str], services: Services, transport: WebSocketTransport) -> Peer:
    """Raises ApiError or ProtocolViolation."""
    headers = socket.headers
    services.access.guard.check(headers.getlist("host"), headers.getlist("origin"))
    if SUBPROTOCOL not in offered:
        raise ProtocolViolation("subprotocol_missing", f"offer the subprotocol {SUBPROTOCOL}")
    principal = services.access.identify(headers.get("authorization"), offered)
    principal.require_session(session_id, to_control=False)
    session = services.registry.get(session_id)
    return Peer(session, transport, principal.role, settings=services.peers, timers=services.timers, metrics=services.metrics)


async def _refuse(transport: WebSocketTransport, code: str, message: str, services: Services) -> None:
    services.metrics.violations.labels(code).inc()
    known = ERROR_CODES[code]
    assert known.close_code is not None
    try:
        await transport.send(ErrorRaised(code=code, message=message, retryable=known.retryable))
    except TransportLost:
        return
    await transport.close(known.close_code)
