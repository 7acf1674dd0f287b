"""Controls over HTTP, for clients that hold no stream."""

from __future__ import annotations

from fastapi import APIRouter

from ithaka.server.routes.json_body import JsonBodyRoute
from ithaka.server.routes.schemas import ControlRequest, ControlTaken, error_answers
from ithaka.server.routes.services import ControlledSession
from ithaka.server.routes.sessions import ALWAYS, BODY

router = APIRouter(prefix="/v1/sessions", tags=["sessions"], route_class=JsonBodyRoute)


@router.post(
    "/{session_id}/controls",
    status_code=202,
    summary="Send a control",
    responses=error_answers(
        *ALWAYS,
        *BODY,
        "control_not_taken",
        "control_unknown_key",
        "invalid_control",
        "control_stale",
        "session_unknown",
        "session_ended",
        "session_not_started",
    ),
)
async def control(session: ControlledSession, body: ControlRequest) -> ControlTaken:
    """Used by the next chunk that is planned; its frames carry the `control_id`."""
    return ControlTaken(control_id=session.control(body, control_id=body.control_id, is_strict=True))
