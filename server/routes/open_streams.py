"""How many streams are open, so that the daemon can let their last words out before it closes the sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator


class OpenStreams:
    def __init__(self) -> None:
        self._num_open = 0
        self._none = asyncio.Event()
        self._none.set()

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        self._num_open += 1
        self._none.clear()
        try:
            yield
        finally:
            self._num_open -= 1
            if self._num_open == 0:
                self._none.set()

    async def wait_none(self) -> None:
        await self._none.wait()
