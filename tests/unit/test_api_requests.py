"""What a request may be: methods, query, a whole body; and what is said of one that is not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
import websockets
from tests.fakes import MODEL
from tests.served import Served, config_for, served
from tests.unit.test_api_errors import check, control, control_unknown_key, post


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
