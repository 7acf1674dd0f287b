"""The page in Chromium against the real daemon: what is on the screen, not only what is counted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import benchmarks
import pytest
from playwright.sync_api import Browser, expect

from ithaka.workers.families.synthetic.barcode import check
from tests.e2e.browser import DEADLINE_MS, WatchedPage, running_chromium
from tests.e2e.cuttable_proxy import CuttableProxy
from tests.e2e.running_daemon import RunningDaemon, running_daemon

pytestmark = pytest.mark.browser
SIZE = (192, 128)
KEY = "a-key-of-this-test-only"
WHEN_LOCKED = """
new Promise((resolve) => {
  const look = () => document.pointerLockElement !== null && resolve();
  document.addEventListener("pointerlockchange", look);
  look();
})
"""
READ_ALL_BARCODES = (Path(benchmarks.__file__).parent / "read_all_barcodes.js").read_text()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture
def watched(chromium: Browser) -> Iterator[WatchedPage]:
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    watched = WatchedPage(context.new_page())
    yield watched
    assert watched.complaints == []
    context.close()


def test_pictures_are_shown_and_their_delivery_is_confirmed(
    watched: WatchedPage, daemon: RunningDaemon, tmp_path: Path
) -> None:
    watched.open(daemon.url)
    watched.start("numbers")
    last = 0
    for wanted in (5, 20, 40):
        watched.await_number("shown", wanted)
        number = watched.barcode(*SIZE).number
        assert number >= wanted and number > last
        last = number
    assert watched.number("decoded") >= watched.number("shown") > 40
    assert float(watched.page.locator("#fps").inner_text()) > 0
    watched.screenshot(tmp_path / "streaming.png")
    verdict = watched.stop()
    assert verdict == f"Delivered: all {watched.barcode(*SIZE).number} frames arrived, confirmed by the daemon."
    assert watched.number("received") == watched.number("decoded") == watched.number("shown")
    expect(watched.page.locator("#phase")).to_have_text("Ended")


@pytest.mark.parametrize("carrier", ["websocket", "datachannel"])
@pytest.mark.parametrize(("model", "pacing"), [("numbers", "unpaced"), ("chunks", "unpaced"), ("chunks", "media")])
def test_every_barcode_arrives_once_in_order(
    watched: WatchedPage, daemon: RunningDaemon, model: str, pacing: str, carrier: str
) -> None:
    """The client library in the page, with pictures handed to the page instead of a canvas."""
    watched.open(daemon.url)
    wish = {"model": model, "pacing": pacing, "maxFrames": 96, "carrier": carrier}
    result = watched.evaluate(READ_ALL_BARCODES, wish)
    assert result["carriers"] == [[carrier, None]]
    assert result["numbers"] == list(range(1, 97)) == result["seqs"]
    assert result["error"] is None and result["outcome"]["delivered"] is True


def test_a_key_is_seen_in_the_picture_and_released_with_the_focus(watched: WatchedPage, daemon: RunningDaemon) -> None:
    watched.open(daemon.url)
    watched.start("numbers")
    cap = watched.page.get_by_role("button", name="W", exact=True)
    watched.await_number("shown", 3)
    watched.page.keyboard.down("w")
    expect(cap).to_have_attribute("data-held", "true")
    expect(watched.page.locator("#latency")).to_have_text(re.compile(r"^\d+ ms$"), timeout=DEADLINE_MS)
    assert watched.barcode(*SIZE).held == {"KeyW"}

    watched.evaluate("window.dispatchEvent(new Event('blur'))")
    expect(cap).to_have_attribute("data-held", "false")
    watched.await_number("shown", watched.number("shown") + 30)
    assert watched.barcode(*SIZE).held == frozenset()

    watched.page.get_by_role("button", name="Arrow left").hover()
    watched.page.mouse.down()
    watched.await_number("shown", watched.number("shown") + 30)
    assert watched.barcode(*SIZE).held == {"ArrowLeft"}
    watched.page.mouse.up()
    watched.page.keyboard.up("w")
    assert "Delivered" in watched.stop()


def test_a_click_locks_the_pointer_and_its_motion_is_sent(watched: WatchedPage, daemon: RunningDaemon) -> None:
    watched.open(daemon.url)
    watched.start("numbers")
    watched.await_number("shown", 3)
    watched.page.locator("canvas").click()
    watched.evaluate(WHEN_LOCKED)
    watched.page.mouse.move(500, 400)
    watched.page.mouse.move(540, 380)
    expect(watched.page.locator("#latency")).to_have_text(re.compile(r"^\d+ ms$"), timeout=DEADLINE_MS)
    assert "Delivered" in watched.stop()
    assert watched.evaluate("document.pointerLockElement") is None


def test_a_prompt_is_sent_while_it_runs_and_its_letters_steer_nothing(watched: WatchedPage, daemon: RunningDaemon) -> None:
    watched.open(daemon.url)
    watched.page.get_by_role("textbox", name="Prompt").fill("rain")
    watched.start("numbers")
    watched.await_number("shown", 3)
    assert watched.barcode(*SIZE).prompt_check == check(b"rain")
    watched.page.get_by_role("textbox", name="Prompt").fill("")
    watched.page.get_by_role("textbox", name="Prompt").press_sequentially("wasd")
    watched.page.get_by_role("textbox", name="Prompt").press("Enter")
    watched.await_number("shown", watched.number("shown") + 30)
    barcode = watched.barcode(*SIZE)
    assert (barcode.prompt_check, barcode.held) == (check(b"wasd"), frozenset())
    assert "Delivered" in watched.stop()


def test_paused_and_played_again(watched: WatchedPage, daemon: RunningDaemon) -> None:
    watched.open(daemon.url)
    watched.start("numbers")
    watched.page.get_by_role("button", name="Pause").click()
    expect(watched.page.locator("#phase")).to_have_text("Paused", timeout=DEADLINE_MS)
    watched.page.get_by_role("button", name="Play").click()
    watched.await_number("shown", watched.number("shown") + 10)
    assert "Delivered" in watched.stop()


def test_a_cut_connection_is_resumed_and_everything_is_delivered(watched: WatchedPage, proxy: CuttableProxy) -> None:
    watched.open(proxy.url)
    watched.start("numbers")
    for wanted in (20, 60):
        watched.await_number("shown", wanted)
        assert proxy.cut() > 0
    watched.await_number("shown", 100)
    proxy.go_down()
    expect(watched.page.locator("#phase")).to_have_text("Connection lost, trying again", timeout=DEADLINE_MS)
    proxy.come_back()
    expect(watched.page.locator("#phase")).to_have_text("Streaming", timeout=DEADLINE_MS)
    watched.await_number("shown", 140)
    verdict = watched.stop()
    assert verdict == f"Delivered: all {watched.barcode(*SIZE).number} frames arrived, confirmed by the daemon."
    watched.forgive_outages()


def test_a_page_whose_main_thread_hangs_still_acknowledges(watched: WatchedPage, daemon: RunningDaemon) -> None:
    watched.open(daemon.url)
    watched.start("numbers")
    watched.await_number("shown", 5)
    before = watched.number("shown")
    watched.evaluate("const until = performance.now() + 1500; while (performance.now() < until);")
    # Far more than the window of 8: the worker went on alone.
    watched.await_number("shown", before + 30)
    assert "Delivered" in watched.stop()


def test_a_page_that_is_left_gives_its_place_back(watched: WatchedPage, daemon: RunningDaemon, chromium: Browser) -> None:
    """Eight visits in a row to four places, none waited for: each would be held for 5 s otherwise."""
    for _ in range(8):
        watched.open(daemon.url)
        watched.start("numbers")
        watched.await_number("shown", 1)
    assert "Delivered" in watched.stop()


def test_the_page_fits_a_phone(watched: WatchedPage, daemon: RunningDaemon, tmp_path: Path) -> None:
    watched.page.set_viewport_size({"width": 390, "height": 844})
    watched.open(daemon.url)
    watched.start("chunks")
    watched.await_number("shown", 8)
    assert watched.evaluate("document.documentElement.scrollWidth") <= 390
    assert watched.barcode(320, 192).number >= 8
    watched.screenshot(tmp_path / "phone.png")
    assert "Delivered" in watched.stop()


def test_a_daemon_with_keys_asks_for_one(chromium: Browser, tmp_path: Path) -> None:
    config = f"""
access: {{api_keys: [{KEY}]}}
models:
  - {{name: numbers, family: synthetic, device: cpu, options: {{width: 192, height: 128, fps: 30, frames: 20}}}}
"""
    with running_daemon(tmp_path, config) as daemon:
        context = chromium.new_context()
        asked = WatchedPage(context.new_page())
        asked.open(daemon.url)
        asked.page.get_by_label("Key").fill("not-the-key-at-all")
        asked.page.get_by_role("button", name="Start").click()
        expect(asked.page.get_by_role("alert")).to_contain_text("Check the key", timeout=DEADLINE_MS)
        asked.page.get_by_label("Key").fill(KEY)
        asked.page.get_by_role("button", name="Start").click()
        expect(asked.page.locator("#verdict")).to_contain_text("Delivered: all 20 frames", timeout=DEADLINE_MS)
        assert all("401" in complaint for complaint in asked.complaints)

        given = WatchedPage(chromium.new_context().new_page())
        given.open(f"{daemon.url}/#token={KEY}")
        given.page.get_by_role("button", name="Start").click()
        expect(given.page.locator("#verdict")).to_contain_text("Delivered: all 20 frames", timeout=DEADLINE_MS)
        assert KEY not in given.page.url and given.complaints == []


def test_a_session_that_fails_says_so_and_another_can_be_started(watched: WatchedPage, daemon: RunningDaemon) -> None:
    watched.open(daemon.url)
    watched.page.get_by_role("combobox", name="World").select_option("broken")
    watched.page.get_by_role("button", name="Start").click()
    expect(watched.page.get_by_role("alert")).to_contain_text("after frame 20", timeout=DEADLINE_MS)
    expect(watched.page.locator("#verdict")).to_have_text("Delivered: all 20 frames arrived, confirmed by the daemon.")
    watched.start("numbers")
    watched.await_number("shown", 3)
    expect(watched.page.get_by_role("alert")).to_be_hidden()
    assert "Delivered" in watched.stop()


def test_a_daemon_that_is_gone_is_told_in_words(watched: WatchedPage, proxy: CuttableProxy) -> None:
    watched.open(proxy.url)
    expect(watched.page.get_by_role("button", name="Start")).to_be_enabled()
    proxy.go_down()
    expect(watched.page.locator("#phase")).to_have_text("The daemon can't be reached", timeout=DEADLINE_MS)
    proxy.come_back()
    expect(watched.page.locator("#phase")).to_have_text("Not connected", timeout=DEADLINE_MS)
    watched.forgive_outages()
