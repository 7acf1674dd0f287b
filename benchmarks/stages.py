"""What parts on devices of their own give, through the whole daemon: frames compared, frames per second, a part that is killed.

``python -m benchmarks.stages [--frames 300] [--compared 60] [--cpu]`` serves the shipped labyrinth in every placement that the
devices allow from one daemon: the whole model on one device, ranks on two, decoding on the other device, decoding beside the
step. A client walks in each, unpaced. Then the decode process of a daemon of its own is killed in mid-session.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import psutil
import yaml

from benchmarks import daemon
from ithaka_client import Client, IthakaError

Placements = Mapping[str, dict[str, Any]]
PLACEMENTS: Placements = {
    "whole": {"ranks": 1},
    "ranks-2": {"ranks": 2},
    "decode-apart": {"stages": {"denoise": [0], "decode": [1]}},
    "decode-beside": {"stages": {"denoise": [0], "decode": [0]}},
    "ranks-2-decode-beside": {"stages": {"denoise": [0, 1], "decode": [0]}},
}
WARM_FRAMES = 40
WINDOW_FRAMES = 16
Picture = npt.NDArray[np.uint8]


def config_of(placements: Placements, device: str, dtype: str, folder: Path) -> Path:
    """A file that serves each placement as a model of that name."""
    models = [
        {"name": name, "family": "labyrinth", "device": device, "options": {"dtype": dtype}, **values}
        for name, values in placements.items()
    ]
    path = folder / f"{'-'.join(placements)[:40]}-{dtype}.yaml"
    path.write_text(yaml.safe_dump({"models": models}))
    return path


async def walk(url: str, model: str, num_frames: int, *, is_exact: bool) -> tuple[list[Picture], list[float]]:
    """The frames' samples, where they are exact, and when each was decoded."""
    pictures: list[Picture] = []
    decoded_s: list[float] = []
    async with (
        Client(url) as client,
        await client.create_session(
            model,
            seed=3,
            prompt="sunset",
            pixels="exact" if is_exact else "lossy",
            pacing="unpaced",
            window_frames=WINDOW_FRAMES,
            max_frames=num_frames,
        ) as session,
    ):
        async for frame in session.frames():
            decoded_s.append(frame.decoded_at_s)
            if is_exact:
                pictures.append(frame.picture.to_ndarray(format="yuv420p").astype(np.uint8))
        assert session.outcome is not None and session.outcome.delivered, session.outcome
    assert len(decoded_s) == num_frames
    return pictures, decoded_s


def compare(placements: Placements, folder: Path, device: str, num_frames: int) -> None:
    """Every placement's frames beside the first one's, in float32."""
    with daemon.running_daemon(config_of(placements, device, "float32", folder)) as running:
        await_all(running.url)
        print(f"all {len(placements)} placements ready after {running.ready_s:.1f} s and more", flush=True)
        whole: list[Picture] = []
        for name in placements:
            pictures, _ = asyncio.run(walk(running.url, name, num_frames, is_exact=True))
            whole = whole or pictures
            off = [np.abs(a.astype(int) - b.astype(int)) for a, b in zip(whole, pictures, strict=True)]
            moves = float(np.mean(np.abs(pictures[0].astype(int) - pictures[-1].astype(int))))
            print(
                f"{name:24} {num_frames} frames: largest difference {max(int(one.max()) for one in off)} of 255, "
                f"{sum(bool(one.any()) for one in off)} frames differ; first to last {moves:.1f} a sample",
                flush=True,
            )


def rates(placements: Placements, folder: Path, device: str, num_frames: int) -> None:
    """Frames per second of every placement, as the model is shipped."""
    with daemon.running_daemon(config_of(placements, device, "auto", folder)) as running:
        await_all(running.url)
        for _ in range(2):
            for name in placements:
                _, decoded_s = asyncio.run(walk(running.url, name, num_frames, is_exact=False))
                steady = decoded_s[WARM_FRAMES:]
                between_ms = 1000 * np.diff(steady)
                rate = (len(steady) - 1) / (steady[-1] - steady[0])
                print(f"{name:24} {rate:7.1f} frames/s, median {np.median(between_ms):.2f} ms between frames", flush=True)


def kill(folder: Path, device: str) -> None:
    """The decode process dies in mid-session; the group comes back; the daemon ends on SIGTERM and leaves nothing."""
    config = config_of({"decode-apart": PLACEMENTS["decode-apart"]}, device, "auto", folder)
    process = daemon.start("--log-level", "error", "-c", config)
    try:
        url = daemon.read_url(process)
        daemon.await_ready(process, url)
        server = psutil.Process(process.pid)
        asyncio.run(_kill_decode(url, server))
        daemon.await_ready(process, url)
        restarts = httpx.get(f"{url}/v1/models", trust_env=False).json()["models"][0]["restarts"]
        asyncio.run(walk(url, "decode-apart", 40, is_exact=False))
        print(f"after it: {restarts} restart, 40 frames delivered", flush=True)
        children = server.children(recursive=True)
        process.send_signal(signal.SIGTERM)
        status = process.wait(daemon.STOP_TIMEOUT_S)
        _, alive = psutil.wait_procs(children, timeout=0)
        print(f"SIGTERM: status {status}, {len(alive)} processes left", flush=True)
    finally:
        process.kill()
        process.wait()


async def _kill_decode(url: str, server: psutil.Process) -> None:
    workers = [child for child in server.children() if "ithaka.workers.main" in child.cmdline()]
    decode = max(workers, key=lambda child: child.create_time())
    num_frames, killed_s = 0, 0.0
    try:
        async with Client(url) as client, await client.create_session("decode-apart", seed=3, pacing="unpaced") as session:
            async for _ in session.frames():
                num_frames += 1
                if num_frames == 30:
                    decode.kill()
                    killed_s = time.monotonic()
            ending = repr(session.outcome)
    except IthakaError as error:
        ending = f"{type(error).__name__} {getattr(error, 'code', '')}: {error}"
    print(f"decode killed at frame 30, {num_frames} came, {time.monotonic() - killed_s:.2f} s later: {ending}", flush=True)


def await_all(url: str) -> None:
    """Until every model is ready."""
    deadline_s = time.monotonic() + daemon.READY_TIMEOUT_S
    while any(model["state"] != "ready" for model in httpx.get(f"{url}/v1/models", trust_env=False).json()["models"]):
        if time.monotonic() > deadline_s:
            raise TimeoutError(httpx.get(f"{url}/v1/models", trust_env=False).text)
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=300, help="of each walk whose rate is measured")
    parser.add_argument("--compared", type=int, default=60, help="frames of each walk that is compared")
    parser.add_argument("--only", nargs="+", choices=PLACEMENTS, default=list(PLACEMENTS), help="the first is the measure")
    parser.add_argument("--rates-only", action="store_true", help="neither kill nor compare")
    parser.add_argument("--cpu", action="store_true", help="processes instead of devices")
    options = parser.parse_args()
    device = "cpu" if options.cpu else "cuda"
    chosen = {name: PLACEMENTS[name] for name in options.only}
    with tempfile.TemporaryDirectory() as folder:
        if "decode-apart" in chosen and not options.rates_only:
            kill(Path(folder), device)
        if not options.rates_only:
            compare(chosen, Path(folder), device, options.compared)
        rates(chosen, Path(folder), device, options.frames)


if __name__ == "__main__":
    main()
