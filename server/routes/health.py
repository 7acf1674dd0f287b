"""For probes: open to all, and silent about sessions."""

from __future__ import annotations

from fastapi import APIRouter

from ithaka.server.errors import ApiError
from ithaka.server.routes.schemas import HealthView, error_answers
from ithaka.server.routes.services import Registry

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="Is the server alive?")
async def alive() -> HealthView:
    return HealthView(status="ok")


@router.get("/readyz", summary="Can a session be taken?", responses=error_answers("not_ready", "model_unavailable"))
async def ready(registry: Registry) -> HealthView:
    """200 only while a group is ready; else the reason."""
    reason = registry.why_not_ready()
    if reason is not None and registry.is_given_up:
        raise ApiError("model_unavailable", reason)
    if reason is not None:
        raise ApiError("not_ready", reason)
    return HealthView(status="ready")
