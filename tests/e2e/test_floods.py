"""Clients that send without end and read nothing: the daemon's memory stays as it is, and the others go on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path

import httpx
from benchmarks.daemon import Daemon, running_daemon

from ithaka_client import Client

CONFIG = """
models:
  - {name: numbers, family: synthetic, max_sessions: 2, options: {width: 832, height: 480, fps: 60}}
log: {level: warning}
"""
MAX_GROWTH_MIB = 16.0
"""Allocators breathe; what floods of this length would leave behind is several times as much."""
PIECE_BYTES = 64 * 1024
UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Version": "13",
}
MASK = b"\x00\x00\x00\x00"
FRAMES = {
    "pings": (b"", b"\x89\xfd" + MASK + b"?" * 125),
    "pongs": (b"", b"\x8a\xfd" + MASK + b"!" * 125),
    "empty fragments": (b"\x01\x80" + MASK, b"\x00\x80" + MASK),
    "fragments of a byte": (b"\x01\x80" + MASK, b"\x00\x81" + MASK + b" "),
}
BEHIND_AN_ANSWER_THAT_LASTS = {
    "requests": (b"", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
    "a head": (b"GET /healthz HTTP/1.1\r\nX-Long: ", b"x" * 1024),
}


def unique_mib(daemon: Daemon) -> float:
    """Of the server; its children hear nothing of a flood."""
    return float(daemon.process.memory_full_info().uss) / 2**20


async def stream(client: Client, frames: int) -> None:
    """A session that gets its frames, each of them."""
    async with await client.create_session("numbers", pacing="unpaced", pixels="exact", max_frames=frames) as session:
        seqs = [frame.seq async for frame in session.frames()]
        assert seqs == list(range(1, frames + 1))
        assert session.outcome is not None and session.outcome.delivered


async def send_without_end(port: int, request: bytes, first: bytes, each: bytes) -> None:
    """On one connection after another, once it is answered: as fast as the server takes it, until it takes no more."""
    piece = each * (PIECE_BYTES // len(each))
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        try:
            writer.write(request)
            assert (await reader.readuntil(b"\r\n\r\n")).split()[1] in (b"101", b"200")
            writer.write(first)
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
        finally:
            writer.transport.abort()


async def check_others_go_on(daemon: Daemon, client: Client, request: bytes, first: bytes, each: bytes) -> None:
    port = httpx.URL(daemon.url).port
    assert port is not None
    await stream(client, 40)
    before_mib = unique_mib(daemon)
    flood = asyncio.create_task(send_without_end(port, request, first, each))
    try:
        for _ in range(3):
            await stream(client, 60)
        assert not flood.done(), flood.exception()
        assert unique_mib(daemon) - before_mib < MAX_GROWTH_MIB
    finally:
        flood.cancel()
        await asyncio.gather(flood, return_exceptions=True)


def request_of(path: str, fields: Mapping[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in {"Host": "127.0.0.1", **fields}.items())
    return f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode()


async def test_floods_cost_no_memory_and_nobody_elses_frames(tmp_path: Path) -> None:
    """A viewer's token is enough to try."""
    config = tmp_path / "flood.yaml"
    config.write_text(CONFIG)
    with running_daemon(config) as daemon:
        async with Client(daemon.url) as client, httpx.AsyncClient(base_url=daemon.url, trust_env=False) as http:
            session = (await http.post("/v1/sessions", json={"model": "numbers"})).json()
            path = f"/v1/sessions/{session['id']}"
            token = (await http.post(f"{path}/token", json={"role": "viewer"})).json()["token"]
            upgrade = request_of(
                session["stream_path"], {**UPGRADE, "Sec-WebSocket-Protocol": f"ithaka.v1, ithaka.token.{token}"}
            )
            for first, each in FRAMES.values():
                await check_others_go_on(daemon, client, upgrade, first, each)
            for first, each in BEHIND_AN_ANSWER_THAT_LASTS.values():
                await check_others_go_on(daemon, client, request_of(f"{path}/events", {}), first, each)
