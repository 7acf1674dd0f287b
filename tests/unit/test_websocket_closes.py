"""Every way in which the server closes a WebSocket, or does not open it, has a stable code of ours."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import struct
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import websockets
from tests.served import DEADLINE_S, Client, Served, config_for, served

from ithaka.server.routes import stream

MASK = b"\x00\x00\x00\x00"
BOUND = 2048
UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Version": "13",
}


def frame(first_byte: int, payload: bytes = b"", *, announced: int | None = None, masked: bool = True) -> bytes:
    """As a client may send it, or not. ``announced``: the length in the header, where it is another."""
    length = len(payload) if announced is None else announced
    bit = 0x80 if masked else 0
    if length < 126:
        head = bytes((first_byte, bit | length))
    elif length < 1 << 16:
        head = bytes((first_byte, bit | 126)) + struct.pack("!H", length)
    else:
        head = bytes((first_byte, bit | 127)) + struct.pack("!Q", length)
    return head + (MASK if masked else b"") + payload


@pytest.fixture
async def server() -> AsyncIterator[Served]:
    async with served(config_for(server={"max_body_bytes": BOUND})) as found:
        yield found


@contextlib.asynccontextmanager
async def raw_connection(
    server: Served, session: dict[str, Any]
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """The handshake's request is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(server.url).port)
    fields = (*UPGRADE.items(), ("Host", "127.0.0.1"), ("Sec-WebSocket-Protocol", "ithaka.v1"))
    request = f"GET {session['stream_path']} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields)
    writer.write(f"{request}\r\n".encode())
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def streaming(server: Served, client: Client) -> None:
    await client.greet()
    await client.frames(2)


@pytest.mark.parametrize(
    ("sent", "code", "close_code"),
    [
        pytest.param(frame(0x81, b"x" * (BOUND + 1)), "message_too_large", 1009, id="too large by one byte"),
        pytest.param(frame(0x82, b"x" * (BOUND + 1)), "message_too_large", 1009, id="binary"),
        pytest.param(frame(0x81, announced=1 << 62), "message_too_large", 1009, id="announced, never sent"),
        pytest.param(
            frame(0x01, b"x" * BOUND) + frame(0x80, b"x" * BOUND),
            "message_too_large",
            1009,
            id="in fragments, each small enough",
        ),
        pytest.param(frame(0x81, b'"\xff"'), "message_invalid", 1008, id="no UTF-8"),
        pytest.param(frame(0x01, b'"\xc3') + frame(0x80, b'"'), "message_invalid", 1008, id="no UTF-8, in fragments"),
        pytest.param(frame(0x81, b"{}", masked=False), "frame_invalid", 1008, id="not masked"),
        pytest.param(frame(0xF1, b"{}"), "frame_invalid", 1008, id="reserved bits"),
        pytest.param(frame(0x83, b"{}"), "frame_invalid", 1008, id="unknown opcode"),
        pytest.param(frame(0x80, b"{}"), "frame_invalid", 1008, id="goes on with nothing"),
        pytest.param(frame(0x01, b"{") + frame(0x81, b"{}"), "frame_invalid", 1008, id="begins anew in the middle"),
        pytest.param(frame(0x09, b"?"), "frame_invalid", 1008, id="a ping in fragments"),
        pytest.param(frame(0x89, b"?" * 126), "frame_invalid", 1008, id="a ping too long"),
        pytest.param(frame(0x88, b"\x03\xed"), "frame_invalid", 1008, id="a close code that is none"),
    ],
)
async def test_what_is_no_message_is_answered_before_the_close(
    server: Served, caplog: pytest.LogCaptureFixture, sent: bytes, code: str, close_code: int
) -> None:
    session = await server.create()
    async with server.connect(session) as client:
        await streaming(server, client)
        client.socket.transport.write(sent)
        assert await client.refused() == (code, close_code)
        assert client.socket.close_reason == code
    await server.until_state(session["id"], "detached")
    async with server.connect(session) as client:
        await client.greet()
        assert (await client.frame()).seq == 1, "the session lives on"
    assert f'ithaka_connection_errors_total{{code="{code}"}} 1.0' in (await server.http.get("/metrics")).text
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == [], (
        "a client's fault is no fault of ours"
    )
    assert [entry for entry in server.logs if entry["log_level"] == "error"] == []


async def test_a_client_in_the_middle_of_a_huge_message_hears_why(server: Served) -> None:
    """It reads only now and then, and its connection is not reset under what it still sends."""
    session = await server.create()
    async with raw_connection(server, session) as (reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(frame(0x81, b"x" * (16 << 20)))
        await writer.drain()
        heard = await reader.read()
    assert b'"code":"message_too_large"' in heard
    assert heard.endswith(b"\x88\x13" + struct.pack("!H", 1009) + b"message_too_large")


async def test_a_client_that_speaks_before_it_is_answered_is_cut(
    server: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, serve, asked, may_answer = await server.create(), stream._serve, asyncio.Event(), asyncio.Event()

    async def held(*arguments: Any) -> None:
        asked.set()
        await may_answer.wait()
        await serve(*arguments)

    monkeypatch.setattr(stream, "_serve", held)
    async with raw_connection(server, session) as (reader, writer):
        await asked.wait()
        writer.write(frame(0xF1))
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    may_answer.set()
    await server.until(lambda: len(server.daemon.http.server_state.connections) == 1)
    async with server.connect(session) as client:
        await streaming(server, client)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_message_of_just_the_bound_is_read(server: Served) -> None:
    session = await server.create()
    async with server.connect(session) as client:
        await streaming(server, client)
        await client.socket.send(json.dumps({"type": "pause"}).ljust(BOUND))
        await server.until_state(session["id"], "paused")


async def test_what_came_before_is_heard_and_what_comes_after_is_not(server: Served) -> None:
    session = await server.create()
    async with server.connect(session) as client:
        await streaming(server, client)
        before = frame(0x81, json.dumps({"type": "control", "control_id": 1}).encode())
        after = frame(0x81, json.dumps({"type": "control", "control_id": 2}).encode())
        client.socket.transport.write(before + frame(0xF1) + after)
        assert (await client.refused())[0] == "frame_invalid"
    await server.until_state(session["id"], "detached")
    assert [control.control_id for control in server.engine.controls] == [1]


async def test_a_client_that_says_goodbye_is_not_answered_with_an_error(server: Served) -> None:
    session = await server.create()
    async with server.connect(session) as client:
        await streaming(server, client)
        await client.socket.close(4000, "message_too_large")
    await server.until_state(session["id"], "detached")
    assert "ithaka_connection_errors_total{" not in (await server.http.get("/metrics")).text


async def test_a_control_that_the_model_does_not_take(server: Served) -> None:
    server.engine.set_description(takes_prompt=False)
    session = await server.create()
    async with server.connect(session) as client:
        await streaming(server, client)
        await client.say("control", control_id=1, prompt="fog")
        assert await client.refused() == ("control_not_taken", 1008)
        assert client.socket.close_reason == "control_not_taken"


async def test_the_reason_of_the_close_is_the_code_of_the_error_or_of_the_end(server: Served) -> None:
    session = await server.create(max_frames=2)
    async with server.connect(session) as client:
        await streaming(server, client)
        async with server.connect(session) as second:
            assert await second.refused() == ("controller_connected", 4409)
            assert second.socket.close_reason == "controller_connected"
        await client.ack(2)
        await client.expect("eos")
        await client.say("fin", decoded_count=2, last_seq=2)
        assert (await client.expect_state("closed"))["delivered"] is True
        assert (await client.closed(), client.socket.close_reason) == (1000, "max_frames")


async def test_a_long_reason_of_a_family_is_cut(server: Served) -> None:
    session, code = await server.create(), "overheated_" * 20
    async with server.connect(session) as client:
        await streaming(server, client)
        server.engine.emit_ended(session["id"], code)
        await client.ack(2)
        assert (await client.expect("eos"))["reason"] == code
        await client.say("fin", decoded_count=2, last_seq=2)
        assert await client.closed() is not None
        assert client.socket.close_reason == code[:123]


async def test_a_connection_that_is_open_when_the_server_goes(server: Served) -> None:
    session = await server.create()
    async with server.connect(session) as client:
        await streaming(server, client)
        server.daemon.http.leave()
        assert await client.refused() == ("server_stopping", 1001)
        assert client.socket.close_reason == "server_stopping"


async def test_a_fault_of_ours_before_the_peer_is_there(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(stream, "_peer", broken)
    session = await server.create()
    async with server.connect(session) as client:
        assert await client.refused() == ("internal", 1011)
        assert client.socket.close_reason == "internal"
    assert [entry["event"] for entry in server.logs if entry["log_level"] == "error"] == ["connection.failed"]


# -- not opened --------------------------------------------------------------------------------------------------------


async def refused_handshake(server: Served, path: str) -> httpx.Response:
    """What a WebSocket's client is answered."""
    address = f"{server.url.replace('http', 'ws').rstrip('/')}{path}"
    with pytest.raises(websockets.InvalidStatus) as caught:
        await websockets.connect(address, proxy=None)
    answer = caught.value.response
    return httpx.Response(answer.status_code, headers=list(answer.headers.raw_items()), content=bytes(answer.body or b""))


@pytest.mark.parametrize("path", ["/", "/v1/sessions", "/v1/elsewhere/stream"])
async def test_a_path_without_a_websocket(server: Served, path: str) -> None:
    answer = await refused_handshake(server, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "path_unknown")
    assert path in answer.json()["error"]["message"]


async def test_one_connection_too_many() -> None:
    async with served(config_for(server={"max_connections": 1})) as server:
        session = await server.create()
        answer = await refused_handshake(server, session["stream_path"])
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_many_connections")
        assert answer.headers["Retry-After"]


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ("Sec-WebSocket-Key: x", "Sec-WebSocket-Key"),
        ("Sec-WebSocket-Version: 12", "Sec-WebSocket-Version"),
        (f"X-Long: {'x' * 10_000}", "expected no more than 8192 bytes"),
    ],
    ids=["key", "version", "a header that the library finds too long"],
)
async def test_a_request_that_opens_no_websocket(server: Served, lacking: str, said: str) -> None:
    session = await server.create()
    name, _, value = lacking.partition(": ")
    answer = await server.http.get(session["stream_path"], headers={**UPGRADE, name: value})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "upgrade_invalid")
    assert said in answer.json()["error"]["message"]
    assert answer.json()["error"]["retryable"] is False


async def test_many_that_break_off_leave_nothing_behind(server: Served) -> None:
    session = await server.create()
    before = len(asyncio.all_tasks())
    for _ in range(20):
        async with server.connect(session) as client:
            await client.expect("hello")
            client.socket.transport.write(frame(0x81, announced=1 << 40))
            assert (await client.refused())[0] == "message_too_large"
    await server.until(lambda: server.session(session["id"]).data.controller == "absent")
    await server.until(lambda: len(server.daemon.http.server_state.connections) == 1)
    assert len(asyncio.all_tasks()) <= before + 2
