"""Clients that send more than anybody needs, in whatever form: nothing grows, and the connection ends with a code of ours."""

from __future__ import annotations

import contextlib
import itertools
import json

import pytest
from tests.served import Served, config_for, served
from tests.unit.test_websocket_closes import frame, raw_connection, streaming
from websockets.frames import Frame

from ithaka.server.websocket_protocol import MAX_FRAGMENTS, TellingWebSocket

RATE = 20
TEXT, MORE, LAST, PING, PONG = 0x01, 0x00, 0x80, 0x89, 0x8A


def bounded(max_messages_per_s: int) -> contextlib.AbstractAsyncContextManager[Served]:
    return served(config_for(server={"max_messages_per_s": max_messages_per_s}))


@pytest.mark.parametrize(
    ("first", "each"),
    [
        pytest.param(b"", frame(PING, b"?" * 125), id="pings"),
        pytest.param(b"", frame(PING), id="empty pings"),
        pytest.param(b"", frame(PONG, b"!"), id="pongs nobody asked for"),
        pytest.param(frame(TEXT), frame(MORE), id="empty continuations"),
        pytest.param(frame(TEXT, b"{"), frame(MORE, b" "), id="continuations of a byte"),
        pytest.param(b"", frame(0x81, b'{"type":"pong","id":0}'), id="messages"),
    ],
)
async def test_a_flood_ends_the_connection_not_the_session(first: bytes, each: bytes) -> None:
    async with bounded(RATE) as server:
        session = await server.create()
        async with server.connect(session) as client:
            await streaming(server, client)
            client.socket.transport.write(first + each * 2_000)
            assert await client.refused() == ("rate_exceeded", 4429)
            assert client.socket.close_reason == "rate_exceeded"
        await server.until_state(session["id"], "detached")
        assert 'ithaka_connection_errors_total{code="rate_exceeded"} 1.0' in (await server.http.get("/metrics")).text


async def test_a_flood_of_binary_ends_at_the_first() -> None:
    async with bounded(RATE) as server:
        session = await server.create()
        async with server.connect(session) as client:
            await streaming(server, client)
            client.socket.transport.write(frame(0x82, b"x") * 10)
            assert await client.refused() == ("binary_not_allowed", 1008)


async def test_no_frame_beyond_the_bound_is_parsed() -> None:
    """However many come in one read: the loop is everybody's."""
    async with bounded(RATE) as server:
        session = await server.create()
        async with server.connect(session) as client:
            await streaming(server, client)
            ours = websocket_of(server)
            num_parsed, take = itertools.count(), ours.conn.recv_frame

            def counted(frame: Frame) -> None:
                next(num_parsed)
                take(frame)

            ours.conn.recv_frame = counted  # type: ignore[method-assign]
            client.socket.transport.write(frame(PING) * 10_000)
            assert (await client.refused())[0] == "rate_exceeded"
            assert next(num_parsed) <= RATE + 1


async def test_as_many_frames_as_allowed() -> None:
    async with bounded(RATE) as server:
        session = await server.create()
        async with server.connect(session) as client:
            await streaming(server, client)
            for number in range(3 * RATE):
                server.timers.advance(1 / RATE)
                await (await client.socket.ping(f"{number}"))
            assert (await server.look(session["id"]))["state"] == "streaming"


async def test_a_flood_that_goes_on_after_our_close_is_cut() -> None:
    async with bounded(RATE) as server:
        session = await server.create()
        async with raw_connection(server, session) as (reader, writer):
            await reader.readuntil(b"\r\n\r\n")

            async def flood() -> None:
                while True:
                    writer.write(frame(PING, b"?" * 125) * 10_000)
                    await writer.drain()

            with pytest.raises(ConnectionError):
                await flood()
        await server.until(lambda: len(server.daemon.http.server_state.connections) == 1)


@pytest.mark.parametrize("num_fragments", [MAX_FRAGMENTS, MAX_FRAGMENTS + 1])
async def test_a_message_has_so_many_fragments(num_fragments: int) -> None:
    async with bounded(10 * MAX_FRAGMENTS) as server:
        session = await server.create()
        async with server.connect(session) as client:
            await streaming(server, client)
            message = frame(TEXT, b'{"type":"pause"}') + frame(MORE) * (num_fragments - 2) + frame(LAST)
            client.socket.transport.write(message)
            if num_fragments > MAX_FRAGMENTS:
                assert await client.refused() == ("message_too_large", 1009)
            else:
                await server.until_state(session["id"], "paused")


def websocket_of(server: Served) -> TellingWebSocket:
    (ours,) = (known for known in server.daemon.http.server_state.connections if isinstance(known, TellingWebSocket))
    return ours


async def test_a_client_that_reads_nothing_has_one_pong_to_come() -> None:
    async with bounded(1000) as server:
        session = await server.create()
        async with raw_connection(server, session) as (reader, writer):
            await reader.readuntil(b'"state":"connecting","reason":""}')
            ours = websocket_of(server)
            ours.pause_writing()
            for number in range(100):
                writer.write(frame(PING, b"%d" % number))
            writer.write(frame(0x81, json.dumps({"type": "pong", "id": 0}).encode()) + frame(PING, b"last"))
            await server.until(lambda: ours.conn._ping == b"last")
            assert ours.transport.get_write_buffer_size() == 0
            ours.resume_writing()
            writer.write(frame(PING, b"next"))
            assert await reader.readexactly(12) == b"\x8a\x04last" + b"\x8a\x04next"
