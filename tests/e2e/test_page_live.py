"""The page in a real browser: live sessions by WebRTC, the way round where there is none, and links for those who only look."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from ithaka.workers.families.synthetic.barcode import Barcode
from tests.e2e.browser import DEADLINE_MS, WatchedPage, running_chromium
from tests.e2e.running_daemon import RunningDaemon, running_daemon
from tests.e2e.test_webrtc_page import CONFIG, NOWHERE

pytestmark = pytest.mark.browser
SIZE = 320, 192
KEY = "a-key-of-this-test-only"
WITHOUT_H264 = """
const all = RTCRtpReceiver.getCapabilities.bind(RTCRtpReceiver);
RTCRtpReceiver.getCapabilities = (kind) => {
  const known = all(kind);
  return { ...known, codecs: known.codecs.filter(({ mimeType }) => !/h264/i.test(mimeType)) };
};
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path_factory.mktemp("page"), f"access: {{api_keys: [{KEY}]}}\n{CONFIG}") as running:
        yield running


@contextmanager
def opened(chromium: Browser, url: str, *, before: str = "") -> Iterator[WatchedPage]:
    """A page of a visitor who has nothing but this address; ``before`` runs in it first."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    context.add_init_script(before)
    watched = WatchedPage(context.new_page())
    watched.open(url)
    yield watched
    assert watched.complaints == []
    context.close()


def choose_live(watched: WatchedPage) -> None:
    watched.page.get_by_role("combobox", name="Frames").select_option("live")


def made_link(watched: WatchedPage) -> str:
    watched.page.get_by_role("button", name="Make").click()
    link = watched.page.get_by_role("textbox", name="For viewers")
    expect(link).to_have_value(re.compile("#watch="), timeout=DEADLINE_MS)
    return link.input_value()


def video_barcode(watched: WatchedPage) -> Barcode:
    return watched.barcode(*SIZE, shown_in="video")


def test_a_live_session_is_shown_and_steered_by_webrtc(chromium: Browser, daemon: RunningDaemon) -> None:
    with opened(chromium, f"{daemon.url}/#token={KEY}") as watched:
        choose_live(watched)
        watched.start("numbers")
        expect(watched.page.locator("#carrier")).to_have_text("WebRTC")
        watched.await_number("shown", 10)
        first = video_barcode(watched).number
        watched.page.keyboard.down("w")
        watched.await_number("shown", watched.number("shown") + 24)
        seen = video_barcode(watched)
        assert seen.held == {"KeyW"} and seen.number > first
        watched.page.keyboard.up("w")
        verdict = watched.stop()
        assert re.fullmatch(r"Live: \d+ pictures shown, each the newest there was\.", verdict)
        expect(watched.page.locator("#phase")).to_have_text("Ended")
        expect(watched.page.locator("video")).to_be_visible()
        assert video_barcode(watched).number >= seen.number, "the last picture stays"


def test_a_browser_without_h264_plays_in_vp8_and_still_knows_its_frames(chromium: Browser, daemon: RunningDaemon) -> None:
    with opened(chromium, f"{daemon.url}/#token={KEY}", before=WITHOUT_H264) as watched:
        choose_live(watched)
        watched.start("numbers")
        expect(watched.page.locator("#carrier")).to_have_text("WebRTC")
        watched.await_number("shown", 10)
        watched.page.keyboard.down("w")
        # Only the numbers beside the track say which picture used the control.
        expect(watched.page.locator("#latency")).to_have_text(re.compile(r"^\d+ ms$"), timeout=DEADLINE_MS)
        watched.await_number("shown", watched.number("shown") + 10)
        assert video_barcode(watched).held == {"KeyW"}
        watched.page.keyboard.up("w")
        watched.stop()


def test_who_does_not_want_webrtc_does_not_get_it(chromium: Browser, daemon: RunningDaemon) -> None:
    with opened(chromium, f"{daemon.url}/#token={KEY}", before="window.RTCPeerConnection = undefined;") as watched:
        watched.page.get_by_role("combobox", name="Frames").select_option("live-websocket")
        watched.start("numbers")
        carrier = watched.page.locator("#carrier")
        expect(carrier).to_have_text("WebSocket")
        expect(carrier).to_have_attribute("title", "")
        watched.await_number("shown", 10)
        assert watched.barcode(*SIZE).number >= 10
        assert watched.stop().startswith("Live: ")


@pytest.mark.parametrize(("frames", "verdict"), [("live", "Live: "), ("lossless-datachannel", "Delivered: all ")])
def test_where_webrtc_finds_no_way_the_page_says_so_and_goes_on(
    chromium: Browser, tmp_path: Path, frames: str, verdict: str
) -> None:
    with running_daemon(tmp_path, NOWHERE) as nowhere, opened(chromium, nowhere.url) as watched:
        watched.page.get_by_role("combobox", name="Frames").select_option(frames)
        watched.start("numbers")
        carrier = watched.page.locator("#carrier")
        expect(carrier).to_have_text("WebSocket")
        expect(carrier).to_have_attribute("title", re.compile("WebRTC|ICE"))
        watched.await_number("shown", 10)
        assert watched.barcode(*SIZE).number >= 10
        assert watched.stop().startswith(verdict)


@pytest.mark.parametrize(
    ("delivery", "carrier", "shown_in"), [("live", "WebRTC", "video"), ("lossless", "WebSocket", "canvas")]
)
def test_a_link_shows_the_session_to_others_and_steers_nothing(
    chromium: Browser, daemon: RunningDaemon, delivery: str, carrier: str, shown_in: str
) -> None:
    with opened(chromium, f"{daemon.url}/#token={KEY}") as host:
        host.page.get_by_role("combobox", name="Frames").select_option(delivery)
        host.start("numbers")
        expect(host.page.locator("#carrier")).to_have_text(carrier)
        host.await_number("shown", 5)
        link = made_link(host)
        assert KEY not in link
        with opened(chromium, link) as guest:
            expect(guest.page.locator("#phase")).to_have_text("Streaming", timeout=DEADLINE_MS)
            expect(guest.page.locator("#carrier")).to_have_text(carrier)
            guest.await_number("shown", 5)
            first = guest.barcode(*SIZE, shown_in=shown_in).number
            expect(guest.page.locator("#keys")).to_be_hidden()
            for name in ("World", "Seed", "Key", "Prompt", "For viewers"):
                expect(guest.page.get_by_label(name, exact=True)).to_be_hidden()
            guest.page.keyboard.down("w")
            guest.await_number("shown", guest.number("shown") + 24)
            seen = guest.barcode(*SIZE, shown_in=shown_in)
            assert seen.number > first and seen.held == frozenset()
            # The link is in hand; keys steer again once it is let go.
            host.evaluate("document.activeElement.blur()")
            host.page.keyboard.down("w")
            guest.await_number("shown", guest.number("shown") + 24)
            assert guest.barcode(*SIZE, shown_in=shown_in).held == {"KeyW"}
            host.page.keyboard.up("w")
            host.stop()
            expect(guest.page.locator("#phase")).to_have_text("Ended", timeout=DEADLINE_MS)
            expect(guest.page.locator("#verdict")).to_have_text(re.compile(r"^You saw \d+ pictures\.$"))


def test_a_guest_that_leaves_ends_nothing_and_an_old_link_says_so(chromium: Browser, daemon: RunningDaemon) -> None:
    with opened(chromium, f"{daemon.url}/#token={KEY}") as host:
        choose_live(host)
        host.start("numbers")
        link = made_link(host)
        with opened(chromium, link) as guest:
            guest.await_number("shown", 3)
            guest.page.get_by_role("button", name="Leave").click()
            expect(guest.page.locator("#phase")).to_have_text("Ended")
            host.await_number("shown", host.number("shown") + 10)
            guest.page.get_by_role("button", name="Watch").click()
            guest.await_number("shown", 3)
        host.stop()
        with opened(chromium, link) as late:
            expect(late.page.get_by_role("alert")).to_be_visible(timeout=DEADLINE_MS)
            late.forgive_refusals()
