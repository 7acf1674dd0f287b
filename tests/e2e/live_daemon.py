"""A daemon with live sessions, keys and a foreign page that may use it, for tests that play them."""

from __future__ import annotations

from typing import Any

import av
import httpx
import numpy as np
import numpy.typing as npt

from ithaka.workers.families.synthetic.barcode import Barcode, read
from tests.e2e.running_daemon import RunningDaemon

KEY = "a-key-of-this-test-only"
OPERATOR = {"Authorization": f"Bearer {KEY}"}
PAGE_ORIGIN = "https://player.example.org"
CONFIG = f"""
access: {{api_keys: [{KEY}]}}
server: {{allowed_origins: ["{PAGE_ORIGIN}"]}}
webrtc: {{ice_servers: [{{urls: ["turn:127.0.0.1:9?transport=tcp"], secret: "of the turn server"}}]}}
models:
  - name: numbers
    family: synthetic
    device: cpu
    max_sessions: 4
    options: {{width: 320, height: 192, fps: 16, chunk_frames: 2}}
sessions: {{drain_timeout_s: 1, detach_timeout_s: 10}}
"""


def create(daemon: RunningDaemon, **body: Any) -> dict[str, Any]:
    answer = httpx.post(f"{daemon.url}/v1/sessions", json={"model": "numbers", **body}, headers=OPERATOR)
    assert answer.status_code == 201, answer.text
    created: dict[str, Any] = answer.json()
    return created


def delete(daemon: RunningDaemon, session: dict[str, Any]) -> None:
    httpx.delete(f"{daemon.url}/v1/sessions/{session['id']}?force=true", headers=OPERATOR)


def look(daemon: RunningDaemon, session: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{daemon.url}/v1/sessions/{session['id']}", headers=OPERATOR).json()
    return found


def bearer(session: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {session['token']}"}


def barcode_of(picture: av.VideoFrame) -> Barcode:
    luma: npt.NDArray[np.uint8] = picture.to_ndarray(format="gray").astype(np.uint8)
    barcode = read(luma)
    assert barcode is not None, "the picture is damaged"
    return barcode
