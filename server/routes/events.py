"""A session's states and counts as Server-Sent Events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from ithaka.server.errors import ApiError
from ithaka.server.routes.schemas import error_answers, session_view
from ithaka.server.routes.services import Registry, SeenSession
from ithaka.server.routes.sessions import ALWAYS
from ithaka.server.session.registry import SessionRegistry
from ithaka.server.session.session import Session

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])
MAX_LISTENERS = 16
"""Event streams of one session."""
STATS_INTERVAL_S = 1.0


@router.get(
    "/{session_id}/events",
    summary="Follow a session",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "`state` after every change, `stats` once a second, `closed` at the end.",
            "content": {"text/event-stream": {"example": 'event: stats\ndata: {"generated_seq": 48, "viewers": 0}\n\n'}},
        },
        **error_answers(*ALWAYS, "session_unknown", "listeners_full"),
    },
)
async def follow(session: SeenSession, registry: Registry) -> StreamingResponse:
    """Ends with the session."""
    if len(session.watchers) >= MAX_LISTENERS:
        raise ApiError("listeners_full", f"{MAX_LISTENERS} event streams of this session are open, and no more fit")
    return StreamingResponse(_events(session, registry), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _events(session: Session, registry: SessionRegistry) -> AsyncIterator[str]:
    """Only the newest state is told: a slow listener misses those between, never the last."""
    changed = asyncio.Event()
    session.watchers.add(changed.set)
    try:
        yield _state(session, registry)
        while not session.is_over:
            try:
                async with asyncio.timeout(STATS_INTERVAL_S):
                    await changed.wait()
            except TimeoutError:
                yield _stats(session)
            else:
                changed.clear()
                yield _state(session, registry)
        yield _event("closed", session_view(session, registry).model_dump_json())
    finally:
        session.watchers.discard(changed.set)


def _state(session: Session, registry: SessionRegistry) -> str:
    return _event("state", session_view(session, registry).model_dump_json())


def _stats(session: Session) -> str:
    delivery = session.flow.delivery if session.flow else None
    counts = {
        "generated_seq": delivery.generated_through if delivery else 0,
        "sent_seq": delivery.sent_through if delivery else 0,
        "decoded_seq": delivery.decoded_through if delivery else 0,
        "retained_bytes": session.flow.retention.retained_bytes if session.flow else 0,
        "step_ms": session.step_ms,
        "viewers": session.num_viewers,
    }
    return _event("stats", json.dumps(counts))


def _event(name: str, data: str) -> str:
    return f"event: {name}\ndata: {data}\n\n"
