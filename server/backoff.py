"""When to start again what failed, and when to give up. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """``num_failures`` counts failed starts in a row."""

    first_s: float
    max_s: float
    max_failures: int
    num_failures: int = 0

    def failed(self) -> Backoff:
        """After a start that did not become ready."""
        return Backoff(self.first_s, self.max_s, self.max_failures, self.num_failures + 1)

    def succeeded(self) -> Backoff:
        """After a start that did."""
        return Backoff(self.first_s, self.max_s, self.max_failures)

    @property
    def is_spent(self) -> bool:
        """No further start is worth it."""
        return self.num_failures >= self.max_failures

    @property
    def delay_s(self) -> float:
        """Before the next start: doubles with each failure, up to ``max_s``."""
        doublings = min(max(0, self.num_failures - 1), 64)
        return min(self.max_s, self.first_s * float(2**doublings))
