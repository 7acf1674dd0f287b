"""What a connection may take before its request is whole; every wait here is for the server's closing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.certificates import make_certificate
from tests.served import Served, config_for, served

from ithaka.server.errors import ERROR_CODES
from ithaka.server.http_protocol import MAX_HEAD_BYTES, PIECE_BYTES, BoundedHttpProtocol

DEADLINE_S = 20.0
HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CHUNKED = (
    b"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
)


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


def told(answer: bytes, code: str) -> str:
    """The message of an answer that is this error, whole, in the one shape, and the last one."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *fields = head.decode().split("\r\n")
    assert status.startswith(f"HTTP/1.1 {ERROR_CODES[code].status} ")
    headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
    assert (headers["content-type"], headers["connection"]) == ("application/json", "close")
    assert (headers["content-length"], headers["x-content-type-options"]) == (str(len(body)), "nosniff")
    error: dict[str, Any] = json.loads(body)["error"]
    assert (error["code"], error["retryable"]) == (code, ERROR_CODES[code].retryable)
    return str(error["message"])


def events_of(session: dict[str, Any]) -> bytes:
    """A request whose answer lasts as long as the session."""
    return f"GET /v1/sessions/{session['id']}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


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
        assert "within 0.2 s" in told(await drip_until_cut(reader, writer), "head_timeout")


async def test_headers_of_a_later_request_are_bounded_too() -> None:
    async with served(config_for(server={"head_timeout_s": 0.2})) as server, connection(server) as (reader, writer):
        writer.write(HEAD + b"\r\n")
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
        writer.write(HEAD + b"X-Slow: ")
        told(await drip_until_cut(reader, writer), "head_timeout")


@pytest.mark.parametrize(
    "start",
    [HEAD + b"X-Long: ", b"GET /", b"GET / HTTP/1.1\r\nX", CHUNKED + b"0\r\nX-Trailer: "],
    ids=["header", "target", "name", "trailer"],
)
@pytest.mark.parametrize("num_bytes", [MAX_HEAD_BYTES, 4 * 1024 * 1024], ids=["just", "far"])
async def test_a_head_without_end_is_answered_before_its_time(start: bytes, num_bytes: int) -> None:
    async with served(config_for(server={"head_timeout_s": 3600})) as server, connection(server) as (reader, writer):
        writer.write(start + b"x" * num_bytes)
        await writer.drain()
        assert str(MAX_HEAD_BYTES) in told(await rest(reader), "head_too_large")


async def test_a_head_of_nearly_the_bound_is_read() -> None:
    async with served() as server, connection(server) as (reader, writer):
        writer.write(HEAD + b"X-Long: " + b"x" * (MAX_HEAD_BYTES - 200) + b"\r\nConnection: close\r\n\r\n")
        assert (await rest(reader)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n", "Content-Length"),
        (HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", "Transfer-Encoding"),
        (HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n", "Content-Length"),
        (HEAD + b"Content-Length: -1\r\n\r\n", "Content-Length"),
        (HEAD + b"Content-Length:\r\n\r\n", "Content-Length"),
        (HEAD + b"no header\r\n\r\n", "header"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "http://"),
        (b"hello\r\n\r\n", "method"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP"),
        (b"GET http://[ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "target"),
        (b"GET /\xff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "url"),
        (CHUNKED + b"zz\r\n", "chunk"),
        (CHUNKED + b"ffffffffffffffffff\r\n", "Chunk"),
    ],
)
async def test_what_is_no_request_is_answered_in_the_shape_of_an_error(sent: bytes, said: str) -> None:
    async with served() as server:
        async with connection(server) as (reader, writer):
            writer.write(sent)
            assert said in told(await rest(reader), "request_malformed")
        assert server.daemon.registry.all() == ()
        assert (await server.http.get("/healthz")).status_code == 200


async def test_a_request_is_answered_though_garbage_follows_it() -> None:
    """No second answer: it would be taken for that of a request which was never asked."""
    async with served() as server, connection(server) as (reader, writer):
        writer.write(HEAD + b"\r\n" + HEAD + b"\r\n" + b"garbage\r\n\r\n")
        answers = await rest(reader)
        assert (answers.count(b"HTTP/1.1 200 "), answers.count(b"HTTP/1.1 ")) == (2, 2)


async def test_no_error_stands_in_the_middle_of_an_answer() -> None:
    async with served() as server, connection(server) as (reader, writer):
        session = await server.create()
        writer.write(events_of(session))
        await reader.readuntil(b"event: state")
        writer.write(b"garbage\r\n\r\n")
        await writer.drain()
        await server.http.delete(f"/v1/sessions/{session['id']}?force=true")
        events = await rest(reader)
        assert b"closed" in events and b"HTTP/1.1" not in events


async def test_a_head_behind_an_answer_that_lasts_is_bounded_too() -> None:
    async with served() as server, connection(server) as (reader, writer):
        session = await server.create()
        writer.write(events_of(session))
        await reader.readuntil(b"event: state")
        writer.write(HEAD + b"X-Long: " + b"x" * (40 * 1024 * 1024))
        await rest(reader)
        assert not server.session(session["id"]).is_over, "it is the connection that ended"


async def test_requests_sent_ahead_are_answered_in_order_and_few_wait_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, start = [0], BoundedHttpProtocol._start_asgi_task

    def counted(self: BoundedHttpProtocol, *arguments: Any) -> None:
        waiting.append(len(self.pipeline))
        start(self, *arguments)

    monkeypatch.setattr(BoundedHttpProtocol, "_start_asgi_task", counted)
    async with served() as server, connection(server) as (reader, writer):
        paths = [("/healthz", 200), ("/v2", 404)] * 300
        requests = [f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" for path, _ in paths]
        last = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        writer.write("".join((*requests, last)).encode())
        answers = (await rest(reader)).split(b"HTTP/1.1 ")[1:]
        assert [int(answer[:3]) for answer in answers] == [*(status for _, status in paths), 200]
        assert max(waiting) <= PIECE_BYTES // min(map(len, requests))


async def test_requests_behind_an_answer_that_lasts_are_not_read() -> None:
    async with served() as server, connection(server) as (reader, writer):
        session = await server.create()
        writer.write(events_of(session))
        await reader.readuntil(b"event: state")
        (protocol,) = (
            known
            for known in server.daemon.http.server_state.connections
            if getattr(known, "cycle", None) is not None and known.cycle.scope["path"].endswith("/events")  # type: ignore[union-attr]
        )
        num_bytes = 32 * 1024 * 1024
        writer.write((HEAD + b"\r\n") * (num_bytes // len(HEAD)))
        left, num_still = writer.transport.get_write_buffer_size(), 0
        while num_still < 20:
            await server.http.get("/healthz")
            before, left = left, writer.transport.get_write_buffer_size()
            num_still = num_still + 1 if left == before else 0
        assert left > num_bytes // 2, "most of it has not left the client"
        assert isinstance(protocol, BoundedHttpProtocol)
        assert len(protocol.pipeline) <= PIECE_BYTES // len(HEAD) + 1
        assert len(protocol._held) <= 512 * 1024
        writer.transport.abort()


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
