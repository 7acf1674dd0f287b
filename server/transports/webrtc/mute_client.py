"""A player that receives video and says nothing: what the protocol expects of a client is said in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ithaka.server.session.messages import ClientMessage, Eos, Fin, Hello, Ping, Pong, Resume, Role, ServerMessage
from ithaka.server.transports.base import TransportLost


class MuteClient:
    """``num_reports`` counts the player's receiver reports: one that sends none any more answers no ping."""

    def __init__(self, role: Role, num_reports: Callable[[], int]) -> None:
        self._role = role
        self._num_reports = num_reports
        self._reports_at_ping = 0
        # One answer for each of the server's messages, and the server sends no second ping before the first is answered.
        self._answers: asyncio.Queue[ClientMessage | None] = asyncio.Queue(maxsize=8)

    async def send(self, message: ServerMessage) -> None:
        if isinstance(message, Hello) and self._role == "controller":
            await self._answers.put(Resume(type="resume", stream=message.stream, next_seq=message.next_seq))
        elif isinstance(message, Ping) and self._num_reports() > self._reports_at_ping:
            self._reports_at_ping = self._num_reports()
            await self._answers.put(Pong(type="pong", id=message.id))
        elif isinstance(message, Eos) and self._role == "controller":
            # It can't say what it saw, so nothing is claimed to be delivered.
            await self._answers.put(Fin(type="fin", decoded_count=0, last_seq=message.last_seq))

    async def receive(self) -> ClientMessage:
        answer = await self._answers.get()
        if answer is None:
            raise TransportLost("the connection is closed")
        return answer

    def lose(self) -> None:
        """The connection is gone."""
        while not self._answers.empty():
            self._answers.get_nowait()
        self._answers.put_nowait(None)

    async def flush(self) -> None:
        """Nothing waits here."""
