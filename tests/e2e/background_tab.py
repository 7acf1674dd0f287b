"""A tab that is really in the background.

Playwright makes every page believe that it is seen, so this speaks to Chromium itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import websockets

from tests.e2e.browser import ARGUMENTS, CHROMIUM

GONE_WITHIN_S = 10


class Tab:
    """One page, and another that can be put in front of it."""

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._session = ""
        self._events: list[str] = []

    async def open(self, url: str) -> None:
        target = (await self._call("Target.createTarget", url="about:blank"))["targetId"]
        self._session = (await self._call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        await self._call("Page.enable", self._session)
        self._events.clear()
        await self._call("Page.navigate", self._session, url=url)
        while "Page.loadEventFired" not in self._events:
            await self._receive()

    async def hide(self) -> None:
        other = await self._call("Target.createTarget", url="about:blank")
        await self._call("Target.activateTarget", targetId=other["targetId"])
        await self.evaluate(
            "new Promise((resolve) => document.hidden ? resolve() : addEventListener('visibilitychange', () => resolve()))"
        )

    async def evaluate(self, expression: str) -> Any:
        answer = await self._call(
            "Runtime.evaluate", self._session, expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def _call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        envelope = {"sessionId": session} if session else {}
        await self._socket.send(json.dumps({"id": number, "method": method, "params": params, **envelope}))
        while (answer := await self._receive()).get("id") != number:
            pass
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await self._socket.recv())
        self._events.append(message.get("method", ""))
        return message


@contextlib.asynccontextmanager
async def background_tab(profile: Path) -> AsyncIterator[Tab]:
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        *ARGUMENTS,
        "--headless=new",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        "about:blank",
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        while not (found := re.search(rb"ws://\S+", line := await process.stderr.readline())):
            assert line, "Chromium did not start"
        draining = asyncio.create_task(process.stderr.read())
        async with websockets.connect(found.group().decode(), max_size=None, proxy=None) as socket:
            yield Tab(socket)
            await socket.send(json.dumps({"id": 0, "method": "Browser.close"}))
        async with asyncio.timeout(GONE_WITHIN_S):
            await process.wait()
            await draining
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
