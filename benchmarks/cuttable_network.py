"""The network between a page's WebRTC and the server, in a thread of its own: it can be cut while the page is watched."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from playwright.sync_api import Page, Route

from benchmarks.lossy_relay import LossyRelay

CutWay = Literal["both ways", "to the page", "from the page"]


class CuttableNetwork:
    """Every datagram passes through ``relay``; what a page fetches, and its WebSockets, do not."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.relay = LossyRelay(loss=0, delay_s=0, seed=1)

    def cut(self, way: CutWay) -> None:
        """For good."""
        if way != "from the page":
            self.relay.down.loss = 1
        if way != "to the page":
            self.relay.up.loss = 1

    def lead(self, route: Route) -> None:
        """The server's answers name the relay in the place of the server."""
        if route.request.method != "POST":
            route.continue_()
            return
        answer = route.fetch()
        body = answer.json()
        rerouted = asyncio.run_coroutine_threadsafe(self.relay.reroute(body["sdp"]), self._loop)
        route.fulfill(response=answer, json={**body, "sdp": rerouted.result()})


@contextmanager
def cuttable_network(page: Page) -> Iterator[CuttableNetwork]:
    """For all WebRTC connections that the page opens meanwhile."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    network = CuttableNetwork(loop)
    page.route(re.compile("/webrtc$"), network.lead)
    try:
        yield network
    finally:
        asyncio.run_coroutine_threadsafe(network.relay.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
