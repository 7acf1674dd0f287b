"""Who is connected to a session: one that steers, and those that look."""

from __future__ import annotations

from ithaka.server.errors import ProtocolViolation
from ithaka.server.session.spec import Connection


class Seats:
    """For one controller and ``max_viewers`` viewers."""

    def __init__(self, max_viewers: int) -> None:
        self.controller: Connection | None = None
        self.viewers: set[Connection] = set()
        self._max_viewers = max_viewers

    @property
    def taken(self) -> tuple[Connection, ...]:
        """The controller first."""
        return (*(() if self.controller is None else (self.controller,)), *self.viewers)

    def add_viewer(self, peer: Connection) -> None:
        """Raises ProtocolViolation ``viewers_full``."""
        if len(self.viewers) >= self._max_viewers:
            raise ProtocolViolation("viewers_full", f"{self._max_viewers} viewers are connected, and no more fit")
        self.viewers.add(peer)

    def silent_controller(self) -> Connection | None:
        """The one that has to leave for another; None where the seat is free.

        Raises ProtocolViolation ``controller_connected`` where it is taken by one that lives.
        """
        if self.controller is None or self.controller.gives_way():
            return self.controller
        raise ProtocolViolation("controller_connected", "another controller is connected to this session")

    def clear(self) -> None:
        self.controller = None
        self.viewers.clear()
