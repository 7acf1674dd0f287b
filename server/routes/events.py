"""A session's states and counts as Server-Sent Events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from ithaka.server.errors import ApiError
from ithaka.server.routes.schemas import error_answers, session_view
from ithaka.server.routes.services import Registry, SeenSession, services_of
from ithaka.server.routes.sessions import ALWAYS
from ithaka.server.session.registry import SessionRegistry
from ithaka.server.session.session import Session
from ithaka.server.session.timers import NamedTimers, Timers

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
async def follow(session: SeenSession, registry: Registry, request: Request) -> StreamingResponse:
    """Ends with the session."""
    if len(session.watchers) >= MAX_LISTENERS:
        raise ApiError("listeners_full", f"{MAX_LISTENERS} event streams of this session are open, and no more fit")
    told = _events(session, registry, services_of(request).timers)
    return StreamingResponse(told, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _events(session: Session, registry: SessionRegistry, timers: Timers) -> AsyncIterator[str]:
    """Only the newest state is told: a slow listener misses those between, never the last."""
    woken, changed = asyncio.Event(), asyncio.Event()
    clock = NamedTimers(timers)

    def note_change() -> None:
        changed.set()
        woken.set()

    session.watchers.add(note_change)
    try:
        yield _state(session, registry)
        while not session.is_over:
            clock.arm("stats", timers.now_s() + STATS_INTERVAL_S, woken.set)
            await woken.wait()
            woken.clear()
            if changed.is_set():
                changed.clear()
                yield _state(session, registry)
            else:
                yield _stats(session)
        yield _event("closed", session_view(session, registry).model_dump_json())
    finally:
        clock.cancel_all()
        session.watchers.discard(note_change)


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
