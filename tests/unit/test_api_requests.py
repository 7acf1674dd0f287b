"""What a request may be: methods, query, a whole body; and what is said of one that is not."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest
import websockets
from fastapi.routing import APIRoute
from tests.fakes import MODEL
from tests.served import Served, config_for, served
from tests.unit.test_api_errors import check, control, control_unknown_key, post

from ithaka.server.routes import controls, events, guards, health, metrics, models, recordings, sessions, stream, webrtc, whep
from ithaka.server.routes.json_body import JsonBodyRoute


@pytest.fixture
async def keyless() -> AsyncIterator[Served]:
    async with served() as server:
        yield server


async def test_a_refused_method_names_the_others(keyless: Served) -> None:
    session = f"/v1/sessions/{(await keyless.create())['id']}"
    for method, path, allowed in [
        ("PUT", "/v1/sessions", "GET, HEAD, POST"),
        ("OPTIONS", "/v1/sessions", "GET, HEAD, POST"),
        ("PATCH", session, "DELETE, GET, HEAD"),
        ("HEAD", f"{session}/controls", "POST"),
        ("GET", f"{session}/controls", "POST"),
        ("DELETE", "/v1/models", "GET, HEAD"),
        ("PUT", f"{session}/whep", "OPTIONS, POST"),
    ]:
        answer = await keyless.http.request(method, path)
        assert (answer.status_code, answer.headers["Allow"]) == (405, allowed), (method, path)
        if method != "HEAD":
            check(answer, "method_not_allowed")


async def test_head_is_get_without_its_body(keyless: Served) -> None:
    session = f"/v1/sessions/{(await keyless.create())['id']}"
    for path in ("/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/v1/models", "/v1/sessions", session):
        got, head = await keyless.http.get(path), await keyless.http.head(path)
        assert (head.status_code, head.content, got.status_code) == (200, b"", 200), path
        assert head.headers["Content-Type"] == got.headers["Content-Type"]
        assert head.headers["X-Content-Type-Options"] == "nosniff"
    for path in ("/v1/sessions/nothing", "/v1/models/nothing", "/v2"):
        assert (await keyless.http.head(path)).status_code == 404, path


async def test_head_of_an_event_stream_ends(keyless: Served) -> None:
    session = await keyless.create()
    answer = await keyless.http.head(f"/v1/sessions/{session['id']}/events")
    assert (answer.status_code, answer.content) == (200, b"")
    await keyless.until(lambda: not keyless.session(session["id"]).watchers)


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("DELETE", "/v1/sessions/{}?forse=true", "query.forse"),
        ("DELETE", "/v1/sessions/{}?force=true&now=1", "query.now"),
        ("DELETE", "/v1/sessions/{}?force=perhaps", "query.force"),
        ("GET", "/v1/models?name=x", "query.name"),
        ("GET", "/v1/sessions/{}/events?since=3", "query.since"),
    ],
)
async def test_a_query_parameter_to_blame_is_named(method: str, path: str, field: str, keyless: Served) -> None:
    session = await keyless.create()
    error = check(await keyless.http.request(method, path.format(session["id"])), "invalid_request")
    assert error["field"] == field
    assert not keyless.session(session["id"]).is_over


async def test_probes_may_carry_a_query(keyless: Served) -> None:
    assert (await keyless.http.get("/healthz?from=balancer")).status_code == 200


async def test_a_body_that_is_missing_is_asked_for(keyless: Served) -> None:
    error = check(await keyless.http.post("/v1/sessions"), "invalid_request")
    assert (error["field"], error["message"]) == ("body", "body: there is none; send a JSON object")


async def test_half_a_body_is_no_request(keyless: Served) -> None:
    """What came before the cut would be a whole session."""
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(keyless.url).port)
    writer.write(
        b"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
        + json.dumps({"model": MODEL}).encode()
    )
    await writer.drain()
    writer.write_eof()
    await reader.read()
    writer.close()
    await writer.wait_closed()
    await keyless.until(lambda: not keyless.daemon.http.server_state.tasks)
    assert keyless.daemon.registry.all() == ()
    assert keyless.logs == []


async def test_a_session_that_is_over_gets_no_token(keyless: Served) -> None:
    session = await keyless.create()
    await keyless.http.delete(f"/v1/sessions/{session['id']}?force=true")
    check(await post(keyless, f"/v1/sessions/{session['id']}/token", {"role": "viewer"}), "session_ended")


async def test_an_unknown_key_is_told_those_there_are(keyless: Served) -> None:
    error = check(await control_unknown_key(keyless), "control_unknown_key")
    assert error["field"] == "body.pressed"
    assert "'KeyZ'" in error["message"] and "KeyW, KeyA" in error["message"]
    assert keyless.engine.controls == []
    error = check(await control(keyless, released=["KeyZ"]), "control_unknown_key")
    assert error["field"] == "body.released"


async def test_a_body_that_dawdles_is_not_waited_for() -> None:
    async with served(config_for(server={"body_timeout_s": 0.05})) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(server.url).port)
        writer.write(
            b"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
        )
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        assert head.startswith(b"HTTP/1.1 408 ")
        assert json.loads(body)["error"]["code"] == "body_timeout"


async def test_connections_have_a_bound() -> None:
    async with served(config_for(server={"max_connections": 3})) as server:
        session, another = [await server.create() for _ in range(2)]
        async with server.connect(session) as first, server.connect(another) as second:
            await first.greet()
            await second.greet()
            async with httpx.AsyncClient(base_url=server.url, trust_env=False) as other:
                answer = await other.get("/v1/models")
                assert check(answer, "too_many_connections")["message"].startswith("3 connections")
                assert (answer.headers["Connection"], answer.headers["Retry-After"]) == ("close", "5")
            with pytest.raises(websockets.InvalidStatus):
                async with server.connect(session):
                    pass
            assert (await server.http.get("/healthz")).status_code == 200
        async with httpx.AsyncClient(base_url=server.url, trust_env=False) as other:
            async with asyncio.timeout(10):
                while (await other.get("/healthz")).status_code == 503:
                    pass


async def early_answer(server: Served, head: bytes, body: bytes) -> tuple[int, str, asyncio.StreamReader, asyncio.StreamWriter]:
    """Status and code of the answer to a request that is not whole."""
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(server.url).port)
    writer.write(
        b"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" + head + b"\r\n\r\n" + body
    )
    async with asyncio.timeout(10):
        status = int((await reader.readline()).split()[1])
        fields = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        assert "connection: close" in fields
        (length,) = (int(field.partition(":")[2]) for field in fields if field.startswith("content-length"))
        return status, json.loads(await reader.readexactly(length))["error"]["code"], reader, writer


UNFINISHED = [
    pytest.param(b"Content-Length: 1000000", b"x" * 1000, id="announced"),
    pytest.param(b"Content-Length: 18446744073709551615", b"", id="announced, nothing sent"),
    pytest.param(b"Content-Length: 1000000\r\nExpect: 100-continue", b"", id="announced, asks first"),
    pytest.param(b"Transfer-Encoding: chunked", b"186a0\r\n" + b"x" * 100_000, id="one chunk that goes on"),
    pytest.param(b"Transfer-Encoding: chunked", b"400\r\n" + b"x" * 1024 + b"\r\n400\r\n" + b"x" * 1024, id="small chunks"),
]


@pytest.mark.parametrize(("head", "body"), UNFINISHED)
async def test_a_body_that_is_too_large_is_answered_as_soon_as_it_is(
    head: bytes, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the rest, and a connection on which none comes is closed."""
    monkeypatch.setattr(guards, "LINGER_S", 0.05)
    async with served(config_for(server={"body_timeout_s": 3600, "max_body_bytes": 1500})) as server:
        status, code, reader, writer = await early_answer(server, head, body)
        assert (status, code) == (413, "body_too_large")
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_a_client_that_sends_all_of_a_large_body_first_gets_its_answer(keyless: Served) -> None:
    """Its connection is not reset under what it still sends."""
    num_bytes = 12 * 1024 * 1024
    _, _, reader, writer = await early_answer(keyless, b"Content-Length: %d" % num_bytes, b"")
    for _ in range(num_bytes // 65536):
        writer.write(b"x" * 65536)
        await writer.drain()
    async with asyncio.timeout(10):
        assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def test_a_body_without_end_is_cut(keyless: Served) -> None:
    _, _, reader, writer = await early_answer(keyless, b"Content-Length: 1000000000", b"")
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(10):
            while not reader.at_eof():
                writer.write(b"x" * 65536)
                await writer.drain()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    await keyless.until(lambda: len(keyless.daemon.http.server_state.connections) == 1)


NO_JSON = [
    pytest.param(b'{"model": "fake", "model": "fake"}', id="a key twice"),
    pytest.param(b'{"model": "fake", "options": {"a": 1, "b": [{"c": 1, "c": 2}]}}', id="a key twice, further in"),
    pytest.param(b'{"model": "fake", "mod\\u0065l": "x"}', id="a key twice, written differently"),
    pytest.param('{"model": "fake"}'.encode("utf-16"), id="UTF-16"),
    pytest.param('{"model": "fake"}'.encode("utf-16-le"), id="UTF-16 without a mark"),
    pytest.param('{"model": "fake"}'.encode("utf-32"), id="UTF-32"),
    pytest.param(b'{"model": "fake", "options": {"a": NaN}}', id="NaN"),
    pytest.param(b'{"model": "fake", "options": {"a": -Infinity}}', id="Infinity"),
    pytest.param(b'{"model": "fake", "seed": ' + b"1" * 5000 + b"}", id="a number of 5000 digits"),
]


@pytest.mark.parametrize("body", NO_JSON)
async def test_what_readers_would_read_differently_is_no_json(body: bytes, keyless: Served) -> None:
    error = check(await post(keyless, "/v1/sessions", body), "invalid_json")
    assert error["field"] == "body"
    assert keyless.daemon.registry.all() == ()


@pytest.mark.parametrize("path", ["controls", "token", "webrtc"])
async def test_every_body_has_its_keys_once(path: str, keyless: Served) -> None:
    session = await keyless.create()
    error = check(await post(keyless, f"/v1/sessions/{session['id']}/{path}", '{"a": 1, "a": 2}'), "invalid_json")
    assert "'a' stands twice" in error["message"]


def test_every_route_with_a_json_body_reads_it_strictly() -> None:
    modules = (sessions, controls, events, models, health, metrics, stream, webrtc, whep, recordings)
    routes = [route for module in modules for route in module.router.routes if isinstance(route, APIRoute)]
    with_body = [route for route in routes if route.body_field is not None]
    assert len(with_body) >= 4
    assert [route.path for route in with_body if not isinstance(route, JsonBodyRoute)] == []


async def test_a_query_parameter_stands_once(keyless: Served) -> None:
    session = await keyless.create()
    answer = await keyless.http.delete(f"/v1/sessions/{session['id']}?force=false&force=true")
    assert check(answer, "invalid_request")["field"] == "query.force"
    assert not keyless.session(session["id"]).is_over
