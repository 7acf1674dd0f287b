"""The web client plays live sessions in Chromium: by WebRTC, and by WebSocket where WebRTC does not come up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.e2e.browser import WatchedPage, running_chromium
from tests.e2e.running_daemon import running_daemon

pytestmark = pytest.mark.browser
PLAY = (Path(__file__).parent / "live_page.js").read_text()
CONFIG = """
models:
  - name: numbers
    family: synthetic
    device: cpu
    max_sessions: 2
    options: {width: 320, height: 192, fps: 16, chunk_frames: 2}
sessions: {drain_timeout_s: 2}
"""
NOWHERE = CONFIG + "webrtc: {announced_address: 192.0.2.1}\n"
"""An address that nobody has: no path for UDP."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


def play(chromium: Browser, url: str, **options: Any) -> dict[str, Any]:
    context = chromium.new_context()
    page = WatchedPage(context.new_page())
    page.open(url)
    seen: dict[str, Any] = page.evaluate(PLAY, {"model": "numbers", "waitFor": 24, **options})
    assert page.complaints == []
    context.close()
    return seen


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_daemon(tmp_path_factory.mktemp("page"), CONFIG) as daemon:
        yield daemon.url


def test_a_live_session_is_shown_by_webrtc(chromium: Browser, url: str) -> None:
    seen = play(chromium, url)
    assert (seen["carrier"], seen["why"]) == ("webrtc", None)
    assert seen["frames"] >= 24 and seen["error"] is None
    assert seen["outcome"]["state"] == "closed" and seen["outcome"]["lastSeq"] >= 24


def test_where_udp_finds_no_way_a_websocket_carries_it_and_the_page_is_told(chromium: Browser, tmp_path: Path) -> None:
    with running_daemon(tmp_path, NOWHERE) as daemon:
        seen = play(chromium, daemon.url)
    assert seen["carrier"] == "websocket" and seen["why"]
    assert seen["carrierMs"] < 3500, "three seconds, and the time to ask for a session"
    assert seen["frames"] >= 24 and seen["error"] is None


def test_a_deadline_of_no_time_falls_back_at_once(chromium: Browser, url: str) -> None:
    seen = play(chromium, url, timeoutMs=1)
    assert seen["carrier"] == "websocket" and "in time" in seen["why"]
    assert seen["frames"] >= 24 and seen["error"] is None
