"""The bit rates of live sessions' encoders: they follow what the controller's connection carries, within bounds. Pure."""

from __future__ import annotations

from ithaka.configs.schema import EncodeSection

SMALLEST_CHANGE = 0.1
"""Of the rate; an estimate that moves less is noise."""


class LiveRates:
    def __init__(self, section: EncodeSection) -> None:
        self._section = section
        self._bits_per_s: dict[str, int] = {}

    def open(self, session_id: str) -> int:
        """The rate to begin with."""
        self._bits_per_s[session_id] = self._section.live_bits_per_s
        return self._section.live_bits_per_s

    def estimate(self, session_id: str, bits_per_s: int) -> int | None:
        """The new rate, or None where nothing is to be changed, or the session has no rate."""
        wanted = min(max(bits_per_s, self._section.live_min_bits_per_s), self._section.live_max_bits_per_s)
        current = self._bits_per_s.get(session_id)
        if current is None or abs(wanted - current) < current * SMALLEST_CHANGE:
            return None
        self._bits_per_s[session_id] = wanted
        return wanted

    def close(self, session_id: str) -> None:
        self._bits_per_s.pop(session_id, None)
