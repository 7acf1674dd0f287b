"""Frames that were received and not yet decoded. Bounded; when it is full the reader waits, and with it the server."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from ithaka_client.protocol import EncodedFrame


@dataclass(frozen=True, slots=True)
class ReceivedFrame:
    """``connection`` counts the connections of the session: a decoder lives as long as one. ``at_s``: the monotonic clock."""

    connection: int
    frame: EncodedFrame
    at_s: float


class Inbox:
    """One reader puts, one consumer takes."""

    def __init__(self) -> None:
        self._frames: deque[ReceivedFrame] = deque()
        self._changed = asyncio.Condition()
        self._capacity = 1
        self._is_closed = False

    async def restart(self, capacity: int) -> None:
        """A new connection: what the old one left undecoded comes again."""
        async with self._changed:
            self._frames.clear()
            self._capacity = capacity
            self._changed.notify_all()

    async def put(self, frame: ReceivedFrame) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._frames) < self._capacity)
            self._frames.append(frame)
            self._changed.notify_all()

    async def take(self) -> ReceivedFrame | None:
        """None once it is closed and empty."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._is_closed or bool(self._frames))
            if not self._frames:
                return None
            frame = self._frames.popleft()
            self._changed.notify_all()
            return frame

    async def close(self) -> None:
        """No frame follows. Those inside can still be taken."""
        async with self._changed:
            self._is_closed = True
            self._changed.notify_all()
