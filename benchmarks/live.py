"""The figures of live delivery: generation to decoded in Chromium, and what a WebRTC session costs the server.

``python -m benchmarks.live latency`` · ``… cost --sessions 6`` · ``… controls`` · ``… loss --loss 0.02 --delay-ms 20``
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import sync_playwright

from benchmarks.daemon import Daemon, running_daemon
from benchmarks.lossy_relay import LossyRelay
from ithaka_client.bench.carriers import Carrier
from ithaka_client.bench.load import run
from ithaka_client.bench.plan import CODECS, TRANSPORTS, Plan
from ithaka_client.bench.report import as_table
from ithaka_client.bench.webrtc_carrier import WebRtcCarrier

PAGE = Path(__file__).parent / "live_page.js"
CHROMIUM = "/usr/bin/chromium"
CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--autoplay-policy=no-user-gesture-required"]
ENCODE_ENTRY = "ithaka.workers.encode"


@contextmanager
def serving(width: int, height: int, fps: int, chunk_frames: int, max_sessions: int = 16) -> Iterator[Daemon]:
    """A daemon with one synthetic model of this size."""
    options = f"{{width: {width}, height: {height}, fps: {fps}, chunk_frames: {chunk_frames}}}"
    model = f"{{name: synthetic, family: synthetic, device: cpu, max_sessions: {max_sessions}, options: {options}}}"
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "live.yaml"
        config.write_text(f"models: [{model}]\n")
        with running_daemon(config) as daemon:
            yield daemon


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def latency(arguments: argparse.Namespace) -> dict[str, Any]:
    """One live session in Chromium; times in milliseconds."""
    with serving(arguments.width, arguments.height, arguments.fps, arguments.chunk_frames) as daemon, sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        page = browser.new_page()
        page.goto(f"{daemon.url}/")
        session = httpx.post(f"{daemon.url}/v1/sessions", json={"model": "synthetic", "delivery": "live"}).json()
        viewer = httpx.post(f"{daemon.url}/v1/sessions/{session['id']}/token", json={"role": "viewer"}).json()
        told = {
            "url": daemon.url,
            "session": session["id"],
            "token": session["token"],
            "viewerToken": viewer["token"],
            "fps": arguments.fps,
            "seconds": arguments.seconds,
            "offsetMs": (time.time() - time.monotonic()) * 1000,
        }
        before_s, began_s = daemon.cpu_s(ENCODE_ENTRY), time.monotonic()
        seen = page.evaluate(PAGE.read_text(), told)
        cores = (daemon.cpu_s(ENCODE_ENTRY) - before_s) / (time.monotonic() - began_s)
        dropped = httpx.get(f"{daemon.url}/v1/sessions/{session['id']}").json()["dropped_frames"]
        browser.close()
    return {
        "declared": seen["count"],
        "decoded": seen["decoded"],
        "dropped": dropped,
        "lost": seen["lost"][:20],
        "first_picture_ms": round(seen["firstPictureMs"]),
        "generated_to_sent_ms": {"p50": percentile(seen["sentMs"], 0.5), "p95": percentile(seen["sentMs"], 0.95)},
        "generated_to_decoded_ms": {"p50": percentile(seen["decodedMs"], 0.5), "p95": percentile(seen["decodedMs"], 0.95)},
        "in_the_browser_mean_ms": seen["inBrowserMs"],
        "bits_per_s_at_the_end": round(seen["lastBitsPerS"]),
        "server_and_encode_cores": cores,
    }


def cost(arguments: argparse.Namespace) -> dict[str, Any]:
    """CPU of server and encode for so many sessions at once; the client only receives."""
    with serving(arguments.width, arguments.height, arguments.fps, arguments.chunk_frames) as daemon:
        plan = Plan(
            url=daemon.url,
            api_key=None,
            model="synthetic",
            num_sessions=arguments.sessions,
            transport=arguments.transport,
            delivery="live" if arguments.transport == "webrtc" else "lossless",
            duration_s=arguments.seconds,
            controls_per_s=0,
            decodes=False,
            codec=arguments.codec,
        )
        before = {name: daemon.cpu_s(*needles) for name, needles in _PARTS.items()}
        result = asyncio.run(run(plan))
        used = {name: daemon.cpu_s(*needles) - before[name] for name, needles in _PARTS.items()}
    print(as_table(result))
    streamed_s = sum(known.received_frames for known in result.sessions) / arguments.fps
    return {
        "sessions": arguments.sessions,
        "server_cores_per_session": used["server"] / streamed_s,
        "encode_cores_per_session": (used["both"] - used["server"]) / streamed_s,
        "sessions_per_core": streamed_s / used["both"],
        "lost_frames": sum(known.lost_frames for known in result.sessions),
    }


_PARTS: dict[str, tuple[str, ...]] = {"server": (), "both": (ENCODE_ENTRY,)}


def controls(arguments: argparse.Namespace) -> dict[str, Any]:
    """60 control messages a second on the data channel: from sending one to the first decoded frame that used it."""
    with serving(arguments.width, arguments.height, arguments.fps, arguments.chunk_frames) as daemon:
        plan = Plan(daemon.url, None, "synthetic", 1, "webrtc", "live", arguments.seconds, 60.0, False)
        result = asyncio.run(run(plan))
    print(as_table(result))
    return asdict(result.sessions[0].control_to_photon_ms)


def loss(arguments: argparse.Namespace) -> dict[str, Any]:
    """One live session through a network that loses and delays: which frames came, and how late."""
    return asyncio.run(_play_through_loss(arguments))


async def _play_through_loss(arguments: argparse.Namespace) -> dict[str, Any]:
    relay = LossyRelay(loss=arguments.loss, delay_s=arguments.delay_ms / 1000, seed=arguments.seed)

    def open_carrier(plan: Plan, path: str, token: str) -> Carrier:
        return WebRtcCarrier(plan.url, path, token, codec=plan.codec, reroute=relay.reroute)

    with serving(arguments.width, arguments.height, arguments.fps, arguments.chunk_frames) as daemon:
        plan = Plan(daemon.url, None, "synthetic", 1, "webrtc", "live", arguments.seconds, 0.0, False)
        result = await run(plan, open_carrier)
    await relay.close()
    print(as_table(result))
    known = result.sessions[0]
    return {
        "loss": arguments.loss,
        "delay_ms_one_way": arguments.delay_ms,
        "seed": arguments.seed,
        "datagrams_lost": {"down": relay.down.lost, "of": relay.down.lost + relay.down.passed, "up": relay.up.lost},
        "declared": known.declared_frames,
        "received": known.received_frames,
        "received_share": known.received_frames / max(1, known.declared_frames),
        "dropped_before_the_encoder": known.dropped_frames,
        "lost": known.lost,
        "generated_to_received_ms": asdict(known.generated_to_decoded_ms),
        "error": known.error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live")
    parser.add_argument("figure", choices=("latency", "cost", "controls", "loss"))
    parser.add_argument("--width", type=int, default=832)
    parser.add_argument("--height", type=int, default=480)
    parser.add_argument("--fps", type=int, default=16)
    parser.add_argument("--chunk-frames", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--transport", choices=TRANSPORTS, default="webrtc")
    parser.add_argument("--codec", choices=CODECS, default="h264", help="of the track")
    parser.add_argument("--loss", type=float, default=0.02, help="share of the datagrams that are lost, either way")
    parser.add_argument("--delay-ms", type=float, default=20.0, help="one way")
    parser.add_argument("--seed", type=int, default=1, help="of the losses")
    arguments = parser.parse_args()
    figures = {"latency": latency, "cost": cost, "controls": controls, "loss": loss}
    print(json.dumps(figures[arguments.figure](arguments), indent=2))


if __name__ == "__main__":
    main()
