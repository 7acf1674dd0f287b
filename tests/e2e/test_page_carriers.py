"""The page in a real browser: a live session that has to wait still gets WebRTC, and one that loses it goes on by WebSocket."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from benchmarks.lossy_relay import LossyRelay
from playwright.sync_api import Browser, Route, expect

from tests.e2e.browser import DEADLINE_MS, WatchedPage, running_chromium
from tests.e2e.running_daemon import RunningDaemon, running_daemon

pytestmark = pytest.mark.browser
SIZE = 320, 192
CONFIG = """
models:
  - name: numbers
    family: synthetic
    device: cpu
    max_sessions: 1
    options: {width: 320, height: 192, fps: 16, chunk_frames: 2}
sessions: {drain_timeout_s: 2}
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path_factory.mktemp("carriers"), CONFIG) as running:
        yield running


@pytest.fixture
def watched(chromium: Browser, daemon: RunningDaemon) -> Iterator[WatchedPage]:
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    page = WatchedPage(context.new_page())
    page.open(daemon.url)
    page.page.get_by_role("combobox", name="Frames").select_option("live")
    yield page
    assert page.complaints == []
    context.close()


class Network:
    """Datagrams between the page and the server pass through here, in a thread of its own, until it is cut."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.relay = LossyRelay(loss=0, delay_s=0, seed=1)

    def lead(self, route: Route) -> None:
        answer = route.fetch()
        body = answer.json()
        rerouted = asyncio.run_coroutine_threadsafe(self.relay.reroute(body["sdp"]), self._loop)
        route.fulfill(response=answer, json={**body, "sdp": rerouted.result()})

    def cut(self, *, both_ways: bool) -> None:
        self.relay.down.loss = 1
        if both_ways:
            self.relay.up.loss = 1


@pytest.fixture
def network(watched: WatchedPage) -> Iterator[Network]:
    with running_loop() as loop:
        running = Network(loop)
        watched.page.route(re.compile("/webrtc$"), lambda route: running.lead(route) if is_offer(route) else route.continue_())
        yield running
        asyncio.run_coroutine_threadsafe(running.relay.close(), loop).result()


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def is_offer(route: Route) -> bool:
    return route.request.method == "POST"


def test_a_live_session_that_waits_in_line_comes_by_webrtc_once_it_has_its_place(
    watched: WatchedPage, daemon: RunningDaemon
) -> None:
    holder = httpx.post(f"{daemon.url}/v1/sessions", json={"model": "numbers"}).json()
    watched.page.get_by_role("combobox", name="World").select_option("numbers")
    with watched.page.expect_request(re.compile("/events$")):
        watched.page.get_by_role("button", name="Start").click()
    expect(watched.page.locator("#phase")).to_have_text("Waiting in line, place 1", timeout=DEADLINE_MS)
    expect(watched.page.locator("#carrier")).to_have_text("–")
    httpx.delete(f"{daemon.url}/v1/sessions/{holder['id']}?force=true").raise_for_status()
    expect(watched.page.locator("#phase")).to_have_text("Streaming", timeout=DEADLINE_MS)
    expect(watched.page.locator("#carrier")).to_have_text("WebRTC")
    watched.await_number("shown", 10)
    assert watched.stop().startswith("Live: ")


def test_one_that_waits_can_be_left(watched: WatchedPage, daemon: RunningDaemon) -> None:
    holder = httpx.post(f"{daemon.url}/v1/sessions", json={"model": "numbers"}).json()
    watched.page.get_by_role("combobox", name="World").select_option("numbers")
    with watched.page.expect_request(re.compile("/events$")) as told:
        watched.page.get_by_role("button", name="Start").click()
    expect(watched.page.locator("#phase")).to_have_text("Waiting in line, place 1", timeout=DEADLINE_MS)
    with watched.page.expect_response(lambda response: response.request.method == "DELETE"):
        watched.page.get_by_role("button", name="Stop").click()
    expect(watched.page.locator("#phase")).to_have_text("Ended")
    left = httpx.get(told.value.url.removesuffix("/events")).json()
    assert (left["state"], left["reason"]) == ("closed", "forced")
    httpx.delete(f"{daemon.url}/v1/sessions/{holder['id']}?force=true").raise_for_status()


@pytest.mark.parametrize("both_ways", [True, False], ids=["both ways", "to the page only, so that the server hears it still"])
def test_a_session_whose_network_is_cut_goes_on_by_websocket(watched: WatchedPage, network: Network, both_ways: bool) -> None:
    watched.start("numbers")
    carrier = watched.page.locator("#carrier")
    expect(carrier).to_have_text("WebRTC")
    watched.await_number("shown", 10)
    watched.page.keyboard.down("w")
    watched.await_number("shown", watched.number("shown") + 10)
    assert network.relay.down.passed > 0, "the picture comes through the relay"
    before = watched.barcode(*SIZE, shown_in="video").number
    network.cut(both_ways=both_ways)
    expect(carrier).to_have_text("WebSocket", timeout=2 * DEADLINE_MS)
    expect(carrier).to_have_attribute("title", re.compile("WebRTC"))
    expect(watched.page.locator("#phase")).to_have_text("Streaming", timeout=DEADLINE_MS)
    # Half a second may be in flight: beyond that, each picture needs an acknowledgement by this carrier.
    watched.await_number("shown", watched.number("shown") + 32)
    expect(watched.page.locator("video")).to_be_hidden()
    seen = watched.barcode(*SIZE)
    assert seen.number > before
    assert seen.held == {"KeyW"}, "what is held down is told again"
    watched.page.keyboard.up("w")
    watched.await_number("shown", watched.number("shown") + 16)
    assert watched.barcode(*SIZE).held == frozenset()
    assert watched.stop().startswith("Live: ")
    # The server may have noticed first; then there is nothing left for the page to give back.
    watched.forgive_refusals()
