"""What the routes work with; one of it for each application."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends, Request
from starlette.requests import HTTPConnection

from ithaka.configs.schema import ServeConfig
from ithaka.server.auth import Access, Principal
from ithaka.server.metrics import Metrics
from ithaka.server.recording.recordings import Recordings
from ithaka.server.routes.open_streams import OpenStreams
from ithaka.server.session.peer import PeerSettings
from ithaka.server.session.registry import SessionRegistry
from ithaka.server.session.session import Session
from ithaka.server.session.timers import Timers
from ithaka.server.transports.webrtc.connections import WebRtcConnections


@dataclass(frozen=True, slots=True)
class Services:
    config: ServeConfig
    registry: SessionRegistry
    access: Access
    metrics: Metrics
    timers: Timers
    peers: PeerSettings
    rtc: WebRtcConnections
    recordings: Recordings
    wall_s: Callable[[], float]
    """Seconds since 1970."""
    streams: OpenStreams = field(default_factory=OpenStreams)


def services_of(connection: HTTPConnection) -> Services:
    return cast(Services, connection.app.state.services)


def principal_of(request: Request) -> Principal:
    return services_of(request).access.identify(request.headers.get("authorization"))


def operator(request: Request) -> Principal:
    principal = principal_of(request)
    principal.require_operator()
    return principal


def registry_of(request: Request) -> SessionRegistry:
    return services_of(request).registry


def session_to_see(request: Request, session_id: str) -> Session:
    """The session in the path, for any token of it."""
    principal_of(request).require_session(session_id, to_control=False)
    return registry_of(request).get(session_id)


def session_to_control(request: Request, session_id: str) -> Session:
    """The session in the path, for its controller."""
    principal_of(request).require_session(session_id, to_control=True)
    return registry_of(request).get(session_id)


AnyPrincipal = Annotated[Principal, Depends(principal_of)]
Operator = Annotated[Principal, Depends(operator)]
Registry = Annotated[SessionRegistry, Depends(registry_of)]
SeenSession = Annotated[Session, Depends(session_to_see)]
ControlledSession = Annotated[Session, Depends(session_to_control)]
