"""What can be served."""

from __future__ import annotations

from fastapi import APIRouter

from ithaka.server.routes.schemas import ModelList, ModelView, error_answers, model_view
from ithaka.server.routes.services import AnyPrincipal, Registry
from ithaka.server.routes.sessions import ALWAYS

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.get("", summary="List models", responses=error_answers(*ALWAYS))
async def list_all(registry: Registry, _: AnyPrincipal) -> ModelList:
    return ModelList(models=tuple(model_view(status, registry) for status in registry.models()))


@router.get("/{name}", summary="Look at a model", responses=error_answers(*ALWAYS, "model_unknown"))
async def look(name: str, registry: Registry, _: AnyPrincipal) -> ModelView:
    """Its size, rate, controls and state."""
    return model_view(registry.model(name), registry)
