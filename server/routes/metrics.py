"""Numbers for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from ithaka.server.routes.schemas import error_answers
from ithaka.server.routes.services import Operator, services_of
from ithaka.server.routes.sessions import ALWAYS

router = APIRouter(tags=["health"])


@router.get(
    "/metrics",
    summary="Prometheus text",
    response_class=PlainTextResponse,
    responses={
        200: {"content": {"text/plain": {"example": 'ithaka_sessions{state="streaming"} 1.0'}}},
        **error_answers(*ALWAYS),
    },
)
async def text(request: Request, _: Operator) -> Response:
    services = services_of(request)
    services.registry.measure()
    return Response(services.metrics.text(), media_type=CONTENT_TYPE_LATEST)
