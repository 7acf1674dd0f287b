"""The Python client's HTTP calls: bodies, keys, and an error class for every answer."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest
from tests.unit.client_fake_server import FakeServer

from ithaka_client import (
    AccessError,
    ApiError,
    CapacityError,
    Client,
    ConflictError,
    ConnectFailedError,
    DeadlineError,
    NotFoundError,
    ProtocolError,
    RequestInvalidError,
    UsageError,
)


def client_of(answer: Callable[[httpx.Request], httpx.Response], api_key: str | None = None) -> Client:
    return Client("http://127.0.0.1:9", api_key, transport=httpx.MockTransport(answer))


async def test_create_sends_only_what_was_given() -> None:
    bodies = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        assert request.headers["Authorization"] == "Bearer secret-key-of-16"
        return FakeServer().answer(request)

    async with client_of(answer, "secret-key-of-16") as client:
        session = await client.create_session("numbers")
        await client.create_session("numbers", seed=7, pixels="exact", pacing="unpaced", window_frames=16, max_frames=3)
    assert (session.id, session.info.width, session.state, session.outcome) == ("abc", 128, "admitted", None)
    assert "tok-1" not in repr(session.info)
    assert bodies[0] == {"model": "numbers", "prompt": "", "pixels": "lossy", "pacing": "media"}
    assert bodies[1] == {
        "model": "numbers", "seed": 7, "prompt": "", "pixels": "exact", "pacing": "unpaced",
        "window_frames": 16, "max_frames": 3,
    }  # fmt: skip


async def test_models_are_listed() -> None:
    model = {"name": "numbers", "state": "ready", "width": 128, "height": 64, "fps": 16, "controls": ["KeyW"]}
    starting = {"name": "later", "state": "starting"}
    async with client_of(lambda request: httpx.Response(200, json={"models": [model, starting]})) as client:
        ready, later = await client.models()
    assert (ready.name, ready.fps, ready.controls, ready.takes_prompt) == ("numbers", 16, ("KeyW",), False)
    assert (later.state, later.width) == ("starting", None)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, RequestInvalidError),
        (401, AccessError),
        (403, AccessError),
        (404, NotFoundError),
        (409, ConflictError),
        (413, RequestInvalidError),
        (422, RequestInvalidError),
        (429, CapacityError),
        (500, ApiError),
        (503, CapacityError),
    ],
)
async def test_each_status_has_its_error(status: int, kind: type[ApiError]) -> None:
    error = {"error": {"code": "some_code", "message": "Words.", "retryable": status == 429, "field": "body.model"}}
    answer = httpx.Response(status, json=error, headers={"Retry-After": "3"})
    async with client_of(lambda request: answer) as client:
        with pytest.raises(kind) as caught:
            await client.create_session("numbers")
    assert type(caught.value) is kind
    assert (caught.value.code, caught.value.status, caught.value.field) == ("some_code", status, "body.model")
    assert caught.value.retryable is (status == 429) and caught.value.retry_after_s == 3
    assert str(caught.value) == "Words. [some_code]"


@pytest.mark.parametrize("content", [b"<html>Bad gateway</html>", b"[]", b'{"error": "x"}', b""])
async def test_an_error_that_is_not_ours_is_still_an_api_error(content: bytes) -> None:
    async with client_of(lambda request: httpx.Response(502, content=content)) as client:
        with pytest.raises(ApiError) as caught:
            await client.models()
    assert caught.value.code == "http_502"


@pytest.mark.parametrize("answer", [[], {"models": 3}, {"models": [1]}, {"models": [{}]}, "text"])
async def test_an_answer_that_makes_no_sense_is_a_protocol_error(answer: object) -> None:
    async with client_of(lambda request: httpx.Response(200, json=answer)) as client:
        with pytest.raises(ProtocolError):
            await client.models()


async def test_a_session_that_makes_no_sense_is_a_protocol_error() -> None:
    async with client_of(lambda request: httpx.Response(201, json={"id": "abc"})) as client:
        with pytest.raises(ProtocolError):
            await client.create_session("numbers")


async def test_silence_and_refusal_are_transport_errors() -> None:
    def be_silent(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("silent")

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async with client_of(be_silent) as client:
        with pytest.raises(DeadlineError):
            await client.session("abc")
    async with client_of(refuse) as client:
        with pytest.raises(ConnectFailedError):
            await client.delete_session("abc", force=True)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8765", "ftp://host", "http://", "http://host:port"])
def test_a_base_url_has_a_scheme_and_a_host(url: str) -> None:
    with pytest.raises(UsageError):
        Client(url)
