"""The socket of a connection, on which anybody may send: only its peer is heard, and only what is well-formed.

A peer is known by checks of ICE: they are signed with passwords that offer and answer brought. Media and data are taken from
places that a signed one came from, as RFC 8445 (12) has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aioice import Connection, ice, stun

from ithaka.server.transports.webrtc.datagram import kind_of
from ithaka.server.transports.webrtc.places import Place, Places

MAX_PLACES = 32
"""That a peer is heard from in a connection's life: its interfaces, its relays, a few changes of network."""
MAX_WAITING = 1024
"""Datagrams that nobody has read yet, as before the peer was chosen; more are lost."""
MAX_CONFLICTS = 8
"""Answers that say that both sides lead; each one makes another question."""
ROLE_CONFLICT = 487


class Hearing:
    """What all listeners of one connection know. ``on_heard`` is called whenever the peer has proven that it is there."""

    def __init__(self, agent: Connection, on_heard: Callable[[], None]) -> None:
        self._agent = agent
        self._on_heard = on_heard
        self._places = Places(MAX_PLACES)
        self._num_conflicts = 0

    def takes(self, message: stun.Message, place: Place) -> bool:
        """Whether ICE is to see it. A stranger gets no answer."""
        if message.message_class == stun.Class.REQUEST:
            if not (self._is_check(message) and self._places.take([place])):
                return False
            self._on_heard()
        elif self._is_signed_answer(message) and self._places.take([place]):
            self._on_heard()
            self._num_conflicts += message.error_code == ROLE_CONFLICT
        # Answers are looked up among the questions, of which some go to servers that sign nothing.
        return self._num_conflicts <= MAX_CONFLICTS

    def knows(self, place: Place) -> bool:
        return place in self._places

    def _is_check(self, message: stun.Message) -> bool:
        """The library relies on the priority, which every check has."""
        attributes, agent = message.attributes, self._agent
        return (
            message.message_method == stun.Method.BINDING
            and {"USERNAME", "PRIORITY"} <= attributes.keys()
            and agent._valid_username(attributes["USERNAME"])
            and message.check_message_integrity(agent.local_password.encode())
        )

    def _is_signed_answer(self, message: stun.Message) -> bool:
        password = self._agent.remote_password
        is_answer = message.message_class in (stun.Class.RESPONSE, stun.Class.ERROR)
        return is_answer and password is not None and message.check_message_integrity(password.encode())


class Listener(ice.StunProtocol):
    """aioice's, behind a door."""

    def __init__(self, agent: Connection, hearing: Hearing) -> None:
        super().__init__(agent)
        self._hearing = hearing

    def datagram_received(self, data: bytes | str, addr: tuple[Any, ...]) -> None:
        assert isinstance(data, bytes)
        place, kind = (addr[0], addr[1]), kind_of(data)
        if kind == "stun":
            if self._hearing.takes(stun.parse_message(data), place):
                super().datagram_received(data, addr)
        elif kind is not None and self._hearing.knows(place) and self.receiver._queue.qsize() < MAX_WAITING:
            self.receiver.data_received(data, self.local_candidate.component)
