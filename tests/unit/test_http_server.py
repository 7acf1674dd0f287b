"""What a connection may take before its request is whole; every wait here is for the server's closing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.certificates import make_certificate
from tests.served import Served, config_for, served

from ithaka.server.http_server import MAX_HEAD_BYTES

DEADLINE_S = 20.0
HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@contextlib.asynccontextmanager
async def connection(server: Served) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(server.url).port)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What comes until the server closes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := await reader.read(1024):
            received += piece
    return received


async def drip_until_cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """A byte of a header again and again, for as long as the server listens."""
    closed = asyncio.create_task(rest(reader))
    while not closed.done():
        with contextlib.suppress(ConnectionError):
            writer.write(b"x")
            await writer.drain()
        await asyncio.wait({closed}, timeout=0.01)
    return closed.result()


async def test_a_connection_that_says_nothing_is_cut() -> None:
    async with served(config_for(server={"head_timeout_s": 0.05})) as server, connection(server) as (reader, _):
        assert await rest(reader) == b""
        assert (await server.http.get("/healthz")).status_code == 200


async def test_headers_that_drip_in_are_cut_however_often_they_come() -> None:
    async with served(config_for(server={"head_timeout_s": 0.2})) as server, connection(server) as (reader, writer):
        writer.write(HEAD + b"X-Slow: ")
        assert await drip_until_cut(reader, writer) == b""


async def test_headers_of_a_later_request_are_bounded_too() -> None:
    async with served(config_for(server={"head_timeout_s": 0.2})) as server, connection(server) as (reader, writer):
        writer.write(HEAD + b"\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.write(HEAD + b"X-Slow: ")
        assert b"HTTP/1.1" not in await drip_until_cut(reader, writer)


async def test_a_head_without_end_is_cut_before_its_time() -> None:
    async with served(config_for(server={"head_timeout_s": 3600})) as server, connection(server) as (reader, writer):
        with contextlib.suppress(ConnectionError):
            writer.write(HEAD + b"X-Long: " + b"x" * MAX_HEAD_BYTES)
            await writer.drain()
        assert await rest(reader) == b""


@pytest.mark.parametrize("num_parts", [1, 3])
async def test_what_is_whole_in_time_lives_on(num_parts: int) -> None:
    """An answer that lasts and a stream outlive a connection that is cut for its silence after they began."""
    async with served(config_for(server={"head_timeout_s": 1})) as server:
        session = await server.create()
        async with server.connect(session) as client, connection(server) as (reader, writer):
            await client.greet()
            request = (
                f"GET /v1/sessions/{session['id']}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
            )
            cuts = [len(request) * part // num_parts for part in range(num_parts + 1)]
            for first, last in itertools.pairwise(cuts):
                writer.write(request[first:last])
                await writer.drain()
                await server.http.get("/healthz")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            async with connection(server) as (silent, _):
                assert await rest(silent) == b""
            await client.say("pause")
            while not (isinstance(message := await client.hear(), dict) and message.get("state") == "paused"):
                pass
            await server.http.delete(f"/v1/sessions/{session['id']}?force=true")
            assert b"closed" in await rest(reader)


async def test_a_tls_handshake_is_bounded(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    config = config_for(server={"head_timeout_s": 0.05, "tls_certificate": certificate, "tls_key": key})
    async with served(config) as server, connection(server) as (reader, _):
        assert await rest(reader) == b""
