"""The page in a real browser: a live session that has to wait still gets WebRTC, and one that loses it goes on by WebSocket."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from benchmarks.cuttable_network import CuttableNetwork, CutWay, cuttable_network
from playwright.sync_api import Browser, expect

from tests.e2e.browser import DEADLINE_MS, WatchedPage, barcode_in, running_chromium
from tests.e2e.running_daemon import RunningDaemon, running_daemon
from tests.e2e.screencast import screencast

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
NOTE_STATES = """
window.givenUpIn = [];
const close = RTCPeerConnection.prototype.close;
RTCPeerConnection.prototype.close = function () {
  window.givenUpIn.push(this.connectionState);
  close.call(this);
};
let onAsked = () => {};
window.asked = (count) => new Promise((resolve) => (onAsked = () => (count -= 1) === 0 && resolve()));
const send = RTCDataChannel.prototype.send;
RTCDataChannel.prototype.send = function (text) {
  send.call(this, text);
  if (text === '{"type":"pong","id":0}') onAsked();
};
"""
"""What the browser thought of each connection that the page gave up; when the page has asked whether the server is there."""


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
    context.add_init_script(NOTE_STATES)
    page = WatchedPage(context.new_page())
    page.open(daemon.url)
    choose(page, "live")
    yield page
    assert page.complaints == []
    context.close()


def choose(watched: WatchedPage, frames: str) -> None:
    watched.page.get_by_role("combobox", name="Frames").select_option(frames)


@pytest.fixture
def network(watched: WatchedPage) -> Iterator[CuttableNetwork]:
    with cuttable_network(watched.page) as running:
        yield running


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


WHYS: dict[CutWay, str] = {
    "both ways": "WebRTC fell silent.",
    "to the page": "WebRTC fell silent.",
    "from the page": "Nothing gets to the server by WebRTC any more.",
}


@pytest.mark.parametrize("way", WHYS)
def test_a_session_whose_network_is_cut_goes_on_by_websocket(
    watched: WatchedPage, network: CuttableNetwork, way: CutWay
) -> None:
    watched.start("numbers")
    carrier = watched.page.locator("#carrier")
    expect(carrier).to_have_text("WebRTC")
    watched.await_number("shown", 10)
    watched.page.keyboard.down("w")
    watched.await_number("shown", watched.number("shown") + 10)
    assert network.relay.down.passed > 0, "the picture comes through the relay"
    before = watched.barcode(*SIZE, shown_in="video").number
    network.cut(way)
    expect(carrier).to_have_text("WebSocket", timeout=2 * DEADLINE_MS)
    expect(carrier).to_have_attribute("title", WHYS[way])
    assert watched.evaluate("window.givenUpIn") == ["connected"], "long before the browser doubts it"
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


@pytest.mark.parametrize("is_paused", [False, True], ids=["playing", "paused"])
def test_no_picture_is_missing_on_the_screen_while_the_websocket_takes_over(
    watched: WatchedPage, network: CuttableNetwork, is_paused: bool
) -> None:
    watched.start("numbers")
    watched.await_number("shown", 10)
    if is_paused:
        watched.page.get_by_role("button", name="Pause").click()
        expect(watched.page.locator("#phase")).to_have_text("Paused")
    box = watched.page.locator("video").bounding_box()
    assert box is not None
    x, y, width, height = (round(box[side]) for side in ("x", "y", "width", "height"))
    with screencast(watched.page) as seen:
        network.cut("both ways")
        expect(watched.page.locator("canvas")).to_be_visible(timeout=2 * DEADLINE_MS)
        if not is_paused:
            watched.await_number("shown", watched.number("shown") + 16)
    stands = watched.barcode(*SIZE).number
    crops = [picture.crop((x, y, x + width, y + height)) for picture in seen]
    known = [barcode_in(crop, *SIZE) for crop in crops]
    assert known and None not in known, "each picture on the screen is one of the session"
    numbers = [barcode.number for barcode in known if barcode is not None]
    assert numbers == sorted(numbers)
    if is_paused:
        expect(watched.page.locator("#phase")).to_have_text("Paused")
        assert numbers[-1] == stands
        watched.page.get_by_role("button", name="Play").click()
        watched.await_number("shown", watched.number("shown") + 8)
        assert watched.barcode(*SIZE).number > stands
    watched.stop()
    watched.forgive_refusals()


def test_a_lossless_session_comes_by_data_channel_and_its_delivery_is_confirmed(watched: WatchedPage) -> None:
    choose(watched, "lossless-datachannel")
    watched.start("numbers")
    expect(watched.page.locator("#carrier")).to_have_text("Data channel")
    watched.page.keyboard.down("w")
    expect(watched.page.locator("#latency")).to_have_text(re.compile(r"^\d+ ms$"), timeout=DEADLINE_MS)
    assert watched.barcode(*SIZE).held == {"KeyW"}
    watched.page.keyboard.up("w")
    watched.await_number("shown", 40)
    verdict = watched.stop()
    assert verdict == f"Delivered: all {watched.barcode(*SIZE).number} frames arrived, confirmed by the daemon."


@pytest.mark.parametrize("way", WHYS)
def test_a_lossless_session_whose_data_channel_is_cut_goes_on_by_websocket_and_loses_nothing(
    watched: WatchedPage, network: CuttableNetwork, way: CutWay
) -> None:
    choose(watched, "lossless-datachannel")
    watched.start("numbers")
    carrier = watched.page.locator("#carrier")
    expect(carrier).to_have_text("Data channel")
    watched.page.keyboard.down("w")
    watched.await_number("shown", 10)
    network.cut(way)
    expect(carrier).to_have_text("WebSocket", timeout=2 * DEADLINE_MS)
    expect(carrier).to_have_attribute("title", WHYS[way])
    assert watched.evaluate("window.givenUpIn") == ["connected"], "long before the browser doubts it"
    expect(watched.page.locator("#phase")).to_have_text("Streaming", timeout=DEADLINE_MS)
    watched.await_number("shown", watched.number("shown") + 32)
    assert watched.barcode(*SIZE).held == {"KeyW"}, "what is held down is told again"
    watched.page.keyboard.up("w")
    verdict = watched.stop()
    assert verdict == f"Delivered: all {watched.barcode(*SIZE).number} frames arrived, confirmed by the daemon."
    watched.forgive_refusals()


def test_a_paused_data_channel_is_kept_and_given_up_when_it_is_cut(watched: WatchedPage, network: CuttableNetwork) -> None:
    choose(watched, "lossless-datachannel")
    watched.start("numbers")
    watched.await_number("shown", 10)
    watched.page.get_by_role("button", name="Pause").click()
    expect(watched.page.locator("#phase")).to_have_text("Paused")
    passed = network.relay.down.passed
    watched.evaluate("window.asked(4)")
    carrier = watched.page.locator("#carrier")
    expect(carrier).to_have_text("Data channel")
    assert network.relay.down.passed > passed, "the server answers, though it has nothing to say"
    network.cut("both ways")
    expect(carrier).to_have_text("WebSocket", timeout=2 * DEADLINE_MS)
    expect(watched.page.locator("#phase")).to_have_text("Paused", timeout=DEADLINE_MS)
    shown = watched.barcode(*SIZE).number
    watched.page.get_by_role("button", name="Play").click()
    watched.await_number("shown", shown + 16)
    assert watched.stop().startswith("Delivered: all ")
    watched.forgive_refusals()


def test_one_that_waits_in_line_gets_its_data_channel_once_it_has_its_place(
    watched: WatchedPage, daemon: RunningDaemon
) -> None:
    choose(watched, "lossless-datachannel")
    holder = httpx.post(f"{daemon.url}/v1/sessions", json={"model": "numbers"}).json()
    watched.page.get_by_role("combobox", name="World").select_option("numbers")
    with watched.page.expect_request(re.compile("/events$")):
        watched.page.get_by_role("button", name="Start").click()
    expect(watched.page.locator("#phase")).to_have_text("Waiting in line, place 1", timeout=DEADLINE_MS)
    httpx.delete(f"{daemon.url}/v1/sessions/{holder['id']}?force=true").raise_for_status()
    expect(watched.page.locator("#phase")).to_have_text("Streaming", timeout=DEADLINE_MS)
    expect(watched.page.locator("#carrier")).to_have_text("Data channel")
    watched.await_number("shown", 10)
    assert watched.stop().startswith("Delivered: all ")
