"""How many lossless 832×480 sessions at 16 fps one core carries to the wire: server and encode on core 0, all else on core 1.

``python -m benchmarks.wire_load [--sessions 8] [--seconds 20]``. The clients acknowledge each frame as decoded without
decoding it: what is measured is the daemon.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import struct
import tempfile
import time
from pathlib import Path

import httpx
import psutil
import websockets
from rich.console import Console

from benchmarks.daemon import Daemon, running_daemon

FPS = 16
CONFIG = """
models:
  - name: barcodes
    family: synthetic
    max_sessions: {sessions}
    options: {{width: 832, height: 480, fps: 16, chunk_frames: 4}}
"""
CARRIER_CORE, OTHER_CORE = 0, 1


async def stream(url: str, seconds: float, go: asyncio.Event) -> tuple[float, list[float]]:
    """Frames per second of one session after ``go``, and each frame's age at the client in ms."""
    async with httpx.AsyncClient(base_url=url) as http:
        session = (await http.post("/v1/sessions", json={"model": "barcodes"})).json()
    address = f"{url.replace('http', 'ws')}{session['stream_path']}"
    ages: list[float] = []
    async with websockets.connect(address, subprotocols=[websockets.Subprotocol("ithaka.v1")], max_size=2**24) as socket:
        hello = json.loads(await socket.recv())
        while hello["type"] != "hello":
            hello = json.loads(await socket.recv())
        await socket.send(json.dumps({"type": "resume", "stream": hello["stream"], "next_seq": 1}))
        deadline = 0.0
        while True:
            message = await socket.recv()
            if isinstance(message, str):
                if (told := json.loads(message))["type"] == "ping":
                    await socket.send(json.dumps({"type": "pong", "id": told["id"]}))
                continue
            seq, age_ms = struct.unpack_from("!Q", message, 8)[0], struct.unpack_from("!I", message, 36)[0]
            await socket.send(json.dumps({"type": "ack", "received_through": seq, "decoded_through": seq}))
            if go.is_set():
                now = time.monotonic()
                deadline = deadline or now + seconds
                ages.append(age_ms)
                if now >= deadline:
                    break
    async with httpx.AsyncClient(base_url=url) as http:
        await http.delete(f"/v1/sessions/{session['id']}", params={"force": "true"})
    return (len(ages) - 1) / seconds, ages


async def run(daemon: Daemon, sessions: int, seconds: float) -> tuple[list[float], list[float], float]:
    """Rates, ages, and the share of a core that server and encode used together."""
    go = asyncio.Event()
    tasks = [asyncio.create_task(stream(daemon.url, seconds, go)) for _ in range(sessions)]
    await asyncio.sleep(3)
    before, started = daemon.cpu_s("workers.encode"), time.monotonic()
    go.set()
    await asyncio.sleep(seconds - 1)
    share = (daemon.cpu_s("workers.encode") - before) / (time.monotonic() - started)
    results = await asyncio.gather(*tasks)
    return [rate for rate, _ in results], [age for _, ages in results for age in ages], share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    psutil.Process().cpu_affinity([OTHER_CORE])
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "load.yaml")
        config.write_text(CONFIG.format(sessions=options.sessions))
        with running_daemon(config) as daemon:
            for process in daemon.processes():
                is_carrier = process == daemon.process or "ithaka.workers.encode" in process.cmdline()
                for thread in process.threads():
                    psutil.Process(thread.id).cpu_affinity([CARRIER_CORE if is_carrier else OTHER_CORE])
            rates, ages, share = asyncio.run(run(daemon, options.sessions, options.seconds))
    console = Console()
    console.print(f"{options.sessions} sessions: {min(rates):.2f} to {max(rates):.2f} fps each (media rate {FPS})")
    console.print(f"server + encode: {share:.2f} of one core, so {options.sessions / share:.1f} sessions a core")
    quantiles = statistics.quantiles(ages, n=20)
    console.print(f"generated → sent: p50 {statistics.median(ages):.0f} ms, p95 {quantiles[18]:.0f} ms")


if __name__ == "__main__":
    main()
