"""The addresses of a peer: as many as a connection takes in its whole life, since none is ever forgotten. Pure."""

from __future__ import annotations

from collections.abc import Iterable

Place = tuple[str, int]
"""An IP address in its usual spelling, and a port."""


class Places:
    """The same place counts once, however often it comes."""

    def __init__(self, most: int, known: Iterable[Place] = ()) -> None:
        self._most = most
        self._known = set(known)

    def __contains__(self, place: Place) -> bool:
        return place in self._known

    def take(self, places: Iterable[Place]) -> bool:
        """All of them, or none where they don't fit: False."""
        wanted = self._known.union(places)
        if len(wanted) > max(self._most, len(self._known)):
            return False
        self._known = wanted
        return True
