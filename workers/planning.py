"""Which session's chunk comes next. Pure: the loop asks, nobody waits here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionProgress:
    """How far a session is and how far it may go, in frames."""

    session_id: str
    generated: int = 0
    through_seq: int = 0


def may_run(session: SessionProgress, chunk_frames: int) -> bool:
    """Whether a whole chunk lies within the session's grant."""
    return session.generated + chunk_frames <= session.through_seq


def choose(waiting: Sequence[SessionProgress], *, chunk_frames: int, free_slots: int) -> str | None:
    """The session to run next, or None when nothing may run.

    ``waiting`` is in the order of the last service, longest ago first, so the first that may run is the fair choice: a
    session that may run waits for at most one chunk of each other one, and one that may not costs the others nothing.
    """
    if free_slots < chunk_frames:
        return None
    return next((session.session_id for session in waiting if may_run(session, chunk_frames)), None)
