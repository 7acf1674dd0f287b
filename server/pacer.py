"""How fast a session may be generated: media rate, whole chunks, a lead of at most one chunk.

Pure: every call takes the time. A chunk of ``chunk_frames`` frames falls due every ``chunk_frames / fps`` seconds. One that
is taken late by less than a period keeps the beat; one taken later starts a new beat, so that a client that held the
stream up is never answered with a burst. Pausing stops the beat where it stands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Pacer:
    """``due_s`` is when the next chunk may start, None while paused or not begun; ``left_s`` what a pause left of the wait."""

    fps: int
    chunk_frames: int
    is_unpaced: bool = False
    paced_through: int = 0
    due_s: float | None = None
    left_s: float = 0.0

    @property
    def period_s(self) -> float:
        return self.chunk_frames / self.fps

    def play(self, now_s: float) -> Pacer:
        """Begin, or go on after a pause with what was left of the wait."""
        return self if self.due_s is not None else replace(self, due_s=now_s + self.left_s)

    def pause(self, now_s: float) -> Pacer:
        return self if self.due_s is None else replace(self, due_s=None, left_s=max(0.0, self.due_s - now_s))

    def allows(self, now_s: float) -> bool:
        """Whether one more chunk may be granted now."""
        return self.due_s is not None and (self.is_unpaced or now_s >= self.due_s)

    def take(self, now_s: float) -> Pacer:
        """Grant one chunk; only when ``allows``."""
        assert self.due_s is not None and self.allows(now_s)
        through = self.paced_through + self.chunk_frames
        if self.is_unpaced:
            return replace(self, paced_through=through)
        late_s = now_s - self.due_s
        base_s = self.due_s if late_s < self.period_s else now_s
        return replace(self, paced_through=through, due_s=base_s + self.period_s)

    def next_moment_s(self) -> float | None:
        """When ``allows`` turns true by itself; None while paused or unpaced."""
        return None if self.is_unpaced else self.due_s
