"""WHEP: a player that is not ours plays a session in Chromium, from another origin."""

from __future__ import annotations

import base64
import http.server
import io
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser

from ithaka.workers.families.synthetic.barcode import read
from tests.e2e.browser import running_chromium
from tests.e2e.live_daemon import CONFIG, PAGE_ORIGIN, bearer, create, delete
from tests.e2e.running_daemon import RunningDaemon, running_daemon

LIBRARY = Path(__file__).parents[2] / "clients/web/node_modules/whip-whep/whep.js"
PLAY = (Path(__file__).parent / "play_whep.js").read_text()


class PlayerSite(http.server.BaseHTTPRequestHandler):
    """A page of somebody else, with the library."""

    def do_GET(self) -> None:
        is_library = self.path == "/whep.js"
        body = LIBRARY.read_bytes() if is_library else b"<!doctype html><title>player</title><link rel=icon href=data:,>"
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript" if is_library else "text/html")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), PlayerSite) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, origin: str) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path_factory.mktemp("whep"), CONFIG.replace(PAGE_ORIGIN, origin)) as running:
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


@pytest.mark.browser
def test_a_player_that_is_not_ours_plays_a_session_from_another_origin(
    chromium: Browser, daemon: RunningDaemon, origin: str
) -> None:
    session = create(daemon, delivery="live")
    context = chromium.new_context()
    page = context.new_page()
    page.goto(f"{origin}/")
    played = page.evaluate(
        PLAY,
        {
            "url": f"{daemon.url}/v1/sessions/{session['id']}/whep?role=controller",
            "token": session["token"],
            "seconds": 3,
            "library": f"{origin}/whep.js",
        },
    )
    context.close()
    assert played["width"] == 320
    assert played["framesDecoded"] >= 32, "three seconds at 16 frames a second, with time to start"
    picture = Image.open(io.BytesIO(base64.b64decode(played["picture"].partition(",")[2])))
    barcode = read(np.asarray(picture.convert("L")))
    assert barcode is not None and barcode.number >= 32
    gone = httpx.delete(played["address"], headers=bearer(session))
    assert gone.json()["error"]["code"] == "connection_unknown", "the player has ended its connection itself"
    delete(daemon, session)
