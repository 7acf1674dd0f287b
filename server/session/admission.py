"""Who may use a model now, who waits, and who is turned away. First come, first served; no clock, no I/O.

A place is held from admission until the engine says that the session's memory is free, which may be after its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ithaka.server.engine_client import ModelState, ModelStatus
from ithaka.server.errors import ApiError

RETRY_AFTER_S = 5
"""Told to a client that found the queue full. Nobody knows when a user leaves; this is a polite pause."""

_GIVEN_UP = frozenset({ModelState.FAILED, ModelState.STOPPED})


@dataclass(slots=True)
class _Room:
    status: ModelStatus
    inside: set[str] = field(default_factory=set)
    waiting: dict[str, None] = field(default_factory=dict)
    """Ordered as they came."""

    @property
    def has_place(self) -> bool:
        return self.status.state is ModelState.READY and len(self.inside) < self.status.max_sessions


class Admission:
    """``max_queued`` bounds the queue of each model."""

    def __init__(self, max_queued: int) -> None:
        self._max_queued = max_queued
        self._rooms: dict[str, _Room] = {}

    def update(self, status: ModelStatus) -> tuple[list[str], list[str]]:
        """A model is new or changed. Returns the sessions that now have a place, and those that will never get one."""
        room = self._rooms.setdefault(status.name, _Room(status))
        room.status = status
        if status.state in _GIVEN_UP:
            hopeless = list(room.waiting)
            room.waiting.clear()
            return [], hopeless
        return self._fill(room), []

    def statuses(self) -> tuple[ModelStatus, ...]:
        return tuple(room.status for room in self._rooms.values())

    def status(self, model: str) -> ModelStatus:
        """Raises ApiError ``model_unknown``."""
        if model not in self._rooms:
            raise ApiError(
                "model_unknown", f"no model is named {model!r}; there are {', '.join(sorted(self._rooms)) or 'none'}"
            )
        return self._rooms[model].status

    def request(self, session_id: str, model: str) -> bool:
        """True when the session has a place at once, False when it waits.

        Raises ApiError ``model_unknown``, ``model_unavailable`` or ``queue_full``.
        """
        status = self.status(model)
        room = self._rooms[model]
        if status.state in _GIVEN_UP:
            raise ApiError("model_unavailable", f"model {model!r} can't be used: {status.message or status.state}")
        if room.has_place and not room.waiting:
            room.inside.add(session_id)
            return True
        if len(room.waiting) >= self._max_queued:
            why = f"all {status.max_sessions} places are taken" if status.state is ModelState.READY else f"it is {status.state}"
            raise ApiError(
                "queue_full",
                f"model {model!r} has no place now ({why}), and the {self._max_queued} in its queue are taken",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        room.waiting[session_id] = None
        return False

    def leave_queue(self, session_id: str) -> bool:
        """Whether it was in one: then others have moved up."""
        for room in self._rooms.values():
            if session_id in room.waiting:
                del room.waiting[session_id]
                return True
        return False

    def release(self, session_id: str) -> list[str]:
        """The session's memory is free. Returns the sessions that now have a place."""
        for room in self._rooms.values():
            if session_id in room.inside:
                room.inside.remove(session_id)
                return self._fill(room)
        return []

    def position(self, session_id: str) -> int | None:
        """From 1; None when it does not wait."""
        for room in self._rooms.values():
            if session_id in room.waiting:
                return list(room.waiting).index(session_id) + 1
        return None

    def num_waiting(self, model: str) -> int:
        return len(self._rooms[model].waiting)

    def num_inside(self, model: str) -> int:
        return len(self._rooms[model].inside)

    def _fill(self, room: _Room) -> list[str]:
        admitted: list[str] = []
        while room.waiting and room.has_place:
            session_id = next(iter(room.waiting))
            del room.waiting[session_id]
            room.inside.add(session_id)
            admitted.append(session_id)
        return admitted
