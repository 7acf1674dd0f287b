"""The sessions whose memory lives on this rank."""

from __future__ import annotations

from typing import Any

from ithaka.workers.families.base import FamilyError, FamilySession, ModelFamily
from ithaka.workers.families.stages import Denoiser


class SessionLimitError(FamilyError):
    """More sessions than the model was configured for."""

    code = "session_limit"


class SessionMemory:
    """Opens, finds and closes sessions of ``family``, at most ``max_sessions`` at once."""

    def __init__(self, family: ModelFamily | Denoiser, max_sessions: int) -> None:
        self._family = family
        self._max_sessions = max_sessions
        self._sessions: dict[str, FamilySession] = {}

    @property
    def reserved_bytes(self) -> int:
        """Device bytes that the open sessions hold on this rank."""
        return len(self._sessions) * self._family.spec.session_memory_bytes

    @property
    def is_full(self) -> bool:
        return len(self._sessions) >= self._max_sessions

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._sessions

    def open(self, session_id: str, *, seed: int, prompt: str, options: dict[str, Any]) -> None:
        """Raises SessionLimitError, or what the family raises; then nothing is held."""
        if self.is_full or session_id in self._sessions:
            raise SessionLimitError(f"{len(self._sessions)} of {self._max_sessions} sessions are open; {session_id} can't be")
        self._sessions[session_id] = self._family.open_session(session_id, seed=seed, prompt=prompt, options=options)

    def get(self, session_id: str) -> FamilySession:
        """The memory of an open session. Raises KeyError for another."""
        return self._sessions[session_id]

    def close(self, session_id: str) -> None:
        """Free the session's memory; one that is not open is left alone."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._family.close_session(session)

    def close_all(self) -> None:
        for session_id in list(self._sessions):
            self.close(session_id)
