"""When to acknowledge: a decoded frame at once, a received one soon, and never more often than the server wants to hear."""

from __future__ import annotations

import asyncio
import contextlib

from ithaka_client.connection import Connection
from ithaka_client.errors import ConnectionLostError
from ithaka_client.position import StreamPosition
from ithaka_client.protocol import build_ack

RECEIVED_DELAY_S = 0.05
SHORTEST_INTERVAL_S = 0.005
"""At 200 acknowledgements a second an unpaced stream stays clear of the server's limit of messages."""


class Acknowledger:
    def __init__(self, position: StreamPosition) -> None:
        self._position = position
        self._received = asyncio.Event()
        self._decoded = asyncio.Event()

    def note_received(self) -> None:
        self._received.set()

    def note_decoded(self) -> None:
        self._received.set()
        self._decoded.set()

    def take(self) -> str:
        """The acknowledgement of everything so far; nothing is owed after it."""
        self._received.clear()
        self._decoded.clear()
        return build_ack(self._position.received_through, self._position.decoded_through)

    async def run(self, connection: Connection) -> None:
        """Until the connection is lost."""
        with contextlib.suppress(ConnectionLostError):
            while True:
                await self._received.wait()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RECEIVED_DELAY_S):
                        await self._decoded.wait()
                await connection.send(self.take())
                await asyncio.sleep(SHORTEST_INTERVAL_S)
