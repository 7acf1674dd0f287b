"""Every code that an HTTP answer can carry, brought about for real, in the one shape."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fakes import MODEL, FakeEngine
from tests.served import Served, config_for, served

from ithaka.server.engine_client import ModelState
from ithaka.server.errors import ERROR_CODES
from ithaka.server.routes.events import MAX_LISTENERS

KEY = "0123456789abcdef-key"
AS_KEY = {"Authorization": f"Bearer {KEY}"}
Trigger = Callable[[Served], Awaitable[httpx.Response]]


async def post(server: Served, path: str, content: Any, **headers: str) -> httpx.Response:
    body = content if isinstance(content, str | bytes) else json.dumps(content)
    return await server.http.post(path, content=body, headers={"Content-Type": "application/json", **headers})


async def control(server: Served, **body: Any) -> httpx.Response:
    session = await server.create()
    await server.until_state(session["id"], "connecting")
    return await post(server, f"/v1/sessions/{session['id']}/controls", body)


async def invalid_json(server: Served) -> httpx.Response:
    return await post(server, "/v1/sessions", '{"model": ')


async def invalid_request(server: Served) -> httpx.Response:
    return await post(server, "/v1/sessions", {"model": MODEL, "sede": 7})


async def control_not_taken(server: Served) -> httpx.Response:
    server.engine.set_description(takes_prompt=False)
    return await control(server, prompt="fog")


async def body_too_large(server: Served) -> httpx.Response:
    return await post(server, "/v1/sessions", b"x" * (64 * 1024 + 1))


async def unsupported_media_type(server: Served) -> httpx.Response:
    return await post(server, "/v1/sessions", {"model": MODEL}, **{"Content-Type": "text/plain"})


async def path_unknown(server: Served) -> httpx.Response:
    return await server.http.get("/v2/sessions")


async def method_not_allowed(server: Served) -> httpx.Response:
    return await server.http.put("/v1/sessions")


async def model_unknown(server: Served) -> httpx.Response:
    return await post(server, "/v1/sessions", {"model": "nothing"})


async def model_unavailable(server: Served) -> httpx.Response:
    server.engine.set_model(ModelState.FAILED, "no weights")
    return await post(server, "/v1/sessions", {"model": MODEL})


async def session_unknown(server: Served) -> httpx.Response:
    return await server.http.get("/v1/sessions/nothing")


async def session_ended(server: Served) -> httpx.Response:
    session = await server.create()
    await server.http.delete(f"/v1/sessions/{session['id']}?force=true")
    return await post(server, f"/v1/sessions/{session['id']}/controls", {"pressed": ["KeyW"]})


async def session_not_started(server: Served) -> httpx.Response:
    server.engine.holds_starts = True
    session = await server.create()
    return await post(server, f"/v1/sessions/{session['id']}/controls", {"pressed": ["KeyW"]})


async def control_unknown_key(server: Served) -> httpx.Response:
    return await control(server, pressed=["KeyW", "KeyZ"])


async def control_stale(server: Served) -> httpx.Response:
    session = await server.create()
    await server.until_state(session["id"], "connecting")
    control = {"control_id": 3, "pressed": ["KeyW"]}
    await post(server, f"/v1/sessions/{session['id']}/controls", control)
    return await post(server, f"/v1/sessions/{session['id']}/controls", control)


async def queue_full(server: Served) -> httpx.Response:
    for _ in range(3):
        await server.create()
    return await post(server, "/v1/sessions", {"model": MODEL})


async def listeners_full(server: Served) -> httpx.Response:
    path = f"/v1/sessions/{(await server.create())['id']}/events"
    async with contextlib.AsyncExitStack() as streams:
        kept = []  # An iterator that is let go closes its stream.
        for _ in range(MAX_LISTENERS):
            kept.append((await streams.enter_async_context(server.http.stream("GET", path))).aiter_lines())
            assert await anext(kept[-1]) == "event: state"
        return await server.http.get(path)


async def not_ready(server: Served) -> httpx.Response:
    server.engine.set_model(ModelState.RESTARTING, "a worker was lost")
    return await server.http.get("/readyz")


async def internal(server: Served) -> httpx.Response:
    server.engine.refuses_starts = RuntimeError("a bug")
    return await post(server, "/v1/sessions", {"model": MODEL})


async def host_not_allowed(server: Served) -> httpx.Response:
    return await server.http.get("/v1/models", headers={"Host": "evil.example"})


async def origin_not_allowed(server: Served) -> httpx.Response:
    return await post(server, "/v1/sessions", {"model": MODEL}, Origin="https://evil.example")


async def server_stopping(server: Served) -> httpx.Response:
    server.daemon.registry.stop_admitting()
    return await post(server, "/v1/sessions", {"model": MODEL})


async def key_missing(server: Served) -> httpx.Response:
    return await server.http.get("/v1/sessions")


async def key_invalid(server: Served) -> httpx.Response:
    return await server.http.get("/v1/sessions", headers={"Authorization": "Bearer guess"})


async def token_expired(server: Served) -> httpx.Response:
    made = await post(server, "/v1/sessions", {"model": MODEL}, **AS_KEY)
    session = made.json()
    server.wall.now_s += 3600
    return await server.http.get(f"/v1/sessions/{session['id']}", headers={"Authorization": f"Bearer {session['token']}"})


async def role_not_allowed(server: Served) -> httpx.Response:
    session = (await post(server, "/v1/sessions", {"model": MODEL}, **AS_KEY)).json()
    return await server.http.get("/v1/sessions", headers={"Authorization": f"Bearer {session['token']}"})


KEYLESS: tuple[Trigger, ...] = (
    invalid_json,
    invalid_request,
    control_not_taken,
    control_unknown_key,
    body_too_large,
    unsupported_media_type,
    path_unknown,
    method_not_allowed,
    model_unknown,
    model_unavailable,
    session_unknown,
    session_ended,
    session_not_started,
    control_stale,
    queue_full,
    listeners_full,
    not_ready,
    internal,
    host_not_allowed,
    origin_not_allowed,
    server_stopping,
)
KEYED: tuple[Trigger, ...] = (key_missing, key_invalid, token_expired, role_not_allowed)


@pytest.fixture
async def keyless() -> AsyncIterator[Served]:
    async with served(config_for(sessions={"max_queued": 1})) as server:
        yield server


@pytest.fixture
async def keyed() -> AsyncIterator[Served]:
    async with served(config_for(access={"api_keys": (KEY,)}), FakeEngine()) as server:
        yield server


def check(answer: httpx.Response, code: str) -> dict[str, Any]:
    known = ERROR_CODES[code]
    assert answer.status_code == known.status
    assert answer.headers["Content-Type"] == "application/json"
    body = answer.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) - {"field"} == {"code", "message", "retryable"}
    assert (error["code"], error["retryable"]) == (code, known.retryable)
    assert error["message"]
    return error


@pytest.mark.parametrize("trigger", KEYLESS, ids=lambda trigger: trigger.__name__)
async def test_errors_without_keys(trigger: Trigger, keyless: Served) -> None:
    check(await trigger(keyless), trigger.__name__)


@pytest.mark.parametrize("trigger", KEYED, ids=lambda trigger: trigger.__name__)
async def test_errors_with_keys(trigger: Trigger, keyed: Served) -> None:
    answer = await trigger(keyed)
    check(answer, trigger.__name__)
    assert ("WWW-Authenticate" in answer.headers) == (answer.status_code == 401)


def test_every_http_code_has_its_test() -> None:
    """Here, or by its name in the tests of the room that raises it."""
    tested = {trigger.__name__ for trigger in (*KEYLESS, *KEYED)}
    codes = {code for code, known in ERROR_CODES.items() if known.status is not None}
    assert tested <= codes
    others = [path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py") if path != Path(__file__)]
    assert {code for code in codes - tested if not any(f'"{code}"' in text for text in others)} == set()


async def test_a_full_queue_says_when_to_come_back(keyless: Served) -> None:
    assert int((await queue_full(keyless)).headers["Retry-After"]) > 0


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "body.model"),
        ({"model": 3}, "body.model"),
        ({"model": ""}, "body.model"),
        ({"model": MODEL, "sede": 7}, "body.sede"),
        ({"model": MODEL, "seed": "7"}, "body.seed"),
        ({"model": MODEL, "seed": -1}, "body.seed"),
        ({"model": MODEL, "seed": 2**53}, "body.seed"),
        ({"model": MODEL, "seed": True}, "body.seed"),
        ({"model": MODEL, "prompt": "x" * 5000}, "body.prompt"),
        ({"model": MODEL, "pixels": "best"}, "body.pixels"),
        ({"model": MODEL, "pacing": "fast"}, "body.pacing"),
        ({"model": MODEL, "window_frames": 1}, "body.window_frames"),
        ({"model": MODEL, "window_frames": 257}, "body.window_frames"),
        ({"model": MODEL, "max_frames": 0}, "body.max_frames"),
        ({"model": MODEL, "options": []}, "body.options"),
        ([], "body"),
        (None, "body"),
    ],
)
async def test_the_field_to_blame_is_named(body: Any, field: str, keyless: Served) -> None:
    error = check(await post(keyless, "/v1/sessions", body), "invalid_request")
    assert error["field"] == field
    assert keyless.daemon.registry.all() == ()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"pressed": "KeyW"}, "body.pressed"),
        ({"pressed": ["KeyW"] * 33}, "body.pressed"),
        ({"released": ["Key W"]}, "body.released.0"),
        ({"pointer_dx": 1e9}, "body.pointer_dx"),
        ({}, "body"),
        ({"control_id": 3}, "body"),
        ({"control_id": 0}, "body.control_id"),
        ({"control_id": 1.5}, "body.control_id"),
        ({"type": "control"}, "body.type"),
    ],
)
async def test_the_field_of_a_control_is_named(body: Any, field: str, keyless: Served) -> None:
    assert check(await control(keyless, **body), "invalid_request")["field"] == field
    assert keyless.engine.controls == []


async def test_a_body_that_grows_unannounced(keyless: Served) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 4096

    answer = await keyless.http.post("/v1/sessions", content=endless(), headers={"Content-Type": "application/json"})
    check(answer, "body_too_large")


async def test_deep_nesting_is_not_a_fault_of_ours(keyless: Served) -> None:
    check(await post(keyless, "/v1/sessions", "[" * 50_000), "invalid_json")


async def test_bytes_that_are_no_text(keyless: Served) -> None:
    for text in (b"\xff\xfe\x00", b'{"model": "\xff"}'):
        error = check(await post(keyless, "/v1/sessions", text), "invalid_json")
        assert error["field"] == "body"


async def test_errors_of_the_page_have_the_shape_too(keyless: Served) -> None:
    check(await keyless.http.get("/../../etc/passwd"), "path_unknown")
    check(await keyless.http.get("/%2e%2e/%2e%2e/etc/passwd"), "path_unknown")


async def test_every_route_says_its_errors(keyless: Served) -> None:
    document = (await keyless.http.get("/openapi.json")).json()
    assert {"/v1/sessions", "/v1/sessions/{session_id}/controls", "/v1/models/{name}", "/readyz"} <= set(document["paths"])
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], (method, path)
            assert set(operation["responses"]) - {"422"} != set(), (method, path)
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    assert answer["content"]["application/json"]["examples"], (method, path, status)
    assert document["components"]["schemas"]["CreateBody"]["examples"]
    assert "HTTPValidationError" not in document["components"]["schemas"]
