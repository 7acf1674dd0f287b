"""A client that reads nothing stops its own generator; the daemon's memory stays as it is, and the others go on."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import websockets
from benchmarks.daemon import Daemon, running_daemon

from ithaka_client import Client

CONFIG = """
models:
  - {name: numbers, family: synthetic, max_sessions: 2, options: {width: 832, height: 480, fps: 60}}
log: {level: warning}
"""
WINDOW = 8
MAX_GROWTH_MIB = 16.0
"""Allocators breathe; the frames that the other session gets meanwhile are many times as much."""


def unique_mib(daemon: Daemon) -> float:
    return sum(process.memory_full_info().uss for process in daemon.processes()) / 2**20


async def stream(client: Client, frames: int) -> None:
    """A session that gets its frames, each of them."""
    async with await client.create_session("numbers", pacing="unpaced", pixels="exact", max_frames=frames) as session:
        seqs = [frame.seq async for frame in session.frames()]
        assert seqs == list(range(1, frames + 1))
        assert session.outcome is not None and session.outcome.delivered


async def test_a_client_that_reads_nothing_costs_no_memory(tmp_path: Path) -> None:
    config = tmp_path / "slow.yaml"
    config.write_text(CONFIG)
    with running_daemon(config) as daemon:
        async with Client(daemon.url) as client, httpx.AsyncClient(base_url=daemon.url, trust_env=False) as http:
            wish = {"model": "numbers", "pacing": "unpaced", "pixels": "exact", "window_frames": WINDOW}
            slow = (await http.post("/v1/sessions", json=wish)).json()
            address = f"{daemon.url.replace('http', 'ws')}{slow['stream_path']}"
            async with websockets.connect(
                address, subprotocols=[websockets.Subprotocol("ithaka.v1")], max_queue=1, compression=None, proxy=None
            ) as socket:
                hello = json.loads(await socket.recv())
                await socket.send(json.dumps({"type": "resume", "stream": hello["stream"], "next_seq": 1}))
                await stream(client, 40)
                before_mib = unique_mib(daemon)
                for _ in range(3):
                    await stream(client, 100)
                info = await client.session(slow["id"])
                assert (info.generated_seq, info.decoded_seq, info.state) == (WINDOW, 0, "streaming")
                assert unique_mib(daemon) - before_mib < MAX_GROWTH_MIB
