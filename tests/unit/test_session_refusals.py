"""Starts that the engine refuses, and faults of ours: the place is given back, the session ends with a reason, others go on."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import structlog.testing
from tests.fakes import MODEL, READY, FakeEngine, FakeTimers
from tests.served import Served, config_for, served

from ithaka.configs.schema import SessionSection
from ithaka.server.engine_client import EngineError
from ithaka.server.errors import ApiError
from ithaka.server.metrics import Metrics
from ithaka.server.session.events import State
from ithaka.server.session.registry import SessionRegistry, SessionWish
from ithaka.server.session.session import Session
from ithaka.server.session.spec import Surroundings
from ithaka.workers.contract import ApplyControl

MANY = 2000
"""More than Python can nest."""
BAD_OPTIONS = EngineError("invalid_session_options", "options.a is too large")


def registry_with(engine: FakeEngine) -> tuple[SessionRegistry, FakeTimers]:
    timers = FakeTimers()
    registry = SessionRegistry(
        Surroundings(engine, timers, SessionSection(max_queued=MANY), Metrics()), wall_s=lambda: 1_800_000_000.0
    )
    engine.listen(registry.engine_event)
    return registry, timers


@pytest.mark.parametrize(("refusal", "reason"), [(BAD_OPTIONS, "invalid_session_options"), (RuntimeError("a bug"), "internal")])
def test_a_whole_queue_of_refused_starts_leaves_every_place_free(refusal: Exception, reason: str) -> None:
    engine = FakeEngine()
    registry, timers = registry_with(engine)
    inside = [registry.create(SessionWish(MODEL)) for _ in range(READY.max_sessions)]
    waiting = [registry.create(SessionWish(MODEL)) for _ in range(MANY)]
    engine.refuses_starts = refusal
    with structlog.testing.capture_logs():
        inside[0].force("forced")
    assert {(session.data.state, session.data.reason) for session in waiting} == {(State.FAILED, reason)}
    assert registry.num_inside(MODEL) == READY.max_sessions - 1
    engine.refuses_starts = None
    assert registry.create(SessionWish(MODEL)).data.state is State.CONNECTING
    registry.force_all()
    assert timers.num_pending == 0


def test_a_session_that_can_not_be_admitted_gives_its_place_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    registry, timers = registry_with(engine)
    inside = [registry.create(SessionWish(MODEL)) for _ in range(READY.max_sessions)]
    broken, sound = [registry.create(SessionWish(MODEL)) for _ in range(2)]

    def fault(_description: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(broken, "admit", fault)
    inside[0].force("forced")
    assert (broken.data.state, broken.data.reason) == (State.FAILED, "internal")
    assert sound.data.state is State.CONNECTING
    assert registry.num_inside(MODEL) == READY.max_sessions
    registry.force_all()
    assert timers.num_pending == 0


@pytest.mark.parametrize("bring_about", [Session.play, Session.pause])
def test_an_event_that_can_not_be_ends_the_session_as_failed(bring_about: Callable[[Session], None]) -> None:
    """No controller has resumed. What remains to be done is done: the engine is told, timers stop, the place is free."""
    engine = FakeEngine()
    registry, timers = registry_with(engine)
    session = registry.create(SessionWish(MODEL))
    bring_about(session)
    assert (session.data.state, session.data.reason) == (State.FAILED, "internal")
    assert engine.end_requests == [session.session_id]
    assert (timers.num_pending, registry.num_inside(MODEL)) == (0, 0)


def test_a_watcher_that_breaks_takes_no_effect_with_it() -> None:
    engine = FakeEngine()
    registry, timers = registry_with(engine)
    session = registry.create(SessionWish(MODEL))

    def fault() -> None:
        raise RuntimeError("a bug")

    session.watchers.add(fault)
    session.end("ended")
    assert session.is_over
    assert (timers.num_pending, registry.num_inside(MODEL)) == (0, 0)
    assert engine.end_requests == [session.session_id]


def test_those_who_wait_hear_that_one_left() -> None:
    registry, _ = registry_with(FakeEngine())
    for _ in range(READY.max_sessions):
        registry.create(SessionWish(MODEL))
    first, second = [registry.create(SessionWish(MODEL)) for _ in range(2)]
    heard: list[int | None] = []
    second.watchers.add(lambda: heard.append(registry.queue_position(second.session_id)))
    first.end("ended")
    assert heard == [1]
    registry.force_all()


# -- over HTTP ---------------------------------------------------------------------------------------------------------


async def invalid_session_options(server: Served) -> dict[str, object]:
    server.engine.refuses_starts = BAD_OPTIONS
    answer = await server.http.post("/v1/sessions", json={"model": MODEL, "options": {"a": 10**30}})
    assert answer.status_code == 422
    error: dict[str, object] = answer.json()["error"]
    return error


async def test_options_refused_at_once_are_the_request_s_fault() -> None:
    async with served() as server:
        error = await invalid_session_options(server)
        assert error == {
            "code": "invalid_session_options",
            "message": "options.a is too large",
            "retryable": False,
            "field": "body.options",
        }
        assert (await server.http.get("/v1/sessions")).json() == {"sessions": []}
        assert server.daemon.registry.num_inside(MODEL) == 0
        server.engine.refuses_starts = None
        assert (await server.create())["state"] == "admitted"


async def test_options_refused_later_are_told_wherever_the_session_is_seen() -> None:
    async with served() as server:
        server.engine.holds_starts = True
        session = await server.create(options={"zz": 1})
        server.engine.emit_ended(session["id"], "invalid_session_options", message="options: zz: not known")
        told = {"state": "failed", "reason": "invalid_session_options", "message": "options: zz: not known", "retryable": False}
        seen = await server.look(session["id"])
        assert told.items() <= seen.items()
        assert (await server.http.get("/v1/sessions")).json()["sessions"] == [seen]
        lines = (await server.http.get(f"/v1/sessions/{session['id']}/events")).text.splitlines()
        assert [json.loads(line[6:]) for line in lines if line.startswith("data: ")] == [seen, seen]


async def test_an_end_without_words_of_its_own_has_the_code_s_meaning() -> None:
    async with served(config_for(sessions={"connect_timeout_s": 20})) as server:
        session = await server.create()
        await server.until_state(session["id"], "connecting")
        server.timers.advance(20)
        seen = await server.look(session["id"])
        assert (seen["reason"], seen["retryable"]) == ("connect_timeout", True)
        assert seen["message"] == "No controller connected in time."


def _refuse(_control: ApplyControl) -> None:
    raise EngineError("invalid_control", "the prompt is no text")


async def test_a_control_that_can_not_be_sent_is_the_client_s_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as server:
        session = await server.create()
        await server.until_state(session["id"], "connecting")
        monkeypatch.setattr(server.engine, "apply_control", _refuse)
        answer = await server.http.post(f"/v1/sessions/{session['id']}/controls", json={"prompt": "fog"})
        assert answer.status_code == 422
        assert answer.json()["error"] == {
            "code": "invalid_control",
            "message": "the prompt is no text",
            "retryable": False,
            "field": "body",
        }
        server.engine.is_held = True
        async with server.connect(session) as client:
            await client.greet()
            await client.say("control", control_id=1, prompt="fog")
            assert await client.refused() == ("invalid_control", 1008)


def test_a_refused_creation_is_counted() -> None:
    engine = FakeEngine()
    registry, _ = registry_with(engine)
    engine.refuses_starts = RuntimeError("a bug")
    with pytest.raises(ApiError) as caught:
        registry.create(SessionWish(MODEL))
    assert (caught.value.code, caught.value.status) == ("internal", 500)
    assert registry.all() == ()
