"""Sessions, controls, tokens, models, probes and metrics over HTTP."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import pytest
from tests.fakes import MODEL, READY, FakeEngine
from tests.served import config_for, served

from ithaka.server.engine_client import EngineSessionEnded, ModelState, StepTimed

KEY = "0123456789abcdef-key"
AS_KEY = {"Authorization": f"Bearer {KEY}"}


async def test_create_answers_the_whole_session() -> None:
    async with served() as server:
        answer = await server.http.post("/v1/sessions", json={"model": MODEL, "seed": 3, "prompt": "fog"})
        assert answer.status_code == 201
        session = answer.json()
        assert answer.headers["Location"] == f"/v1/sessions/{session['id']}"
        token, expires = session.pop("token"), datetime.fromisoformat(session.pop("token_expires_at"))
        assert token and expires.tzinfo is not None
        created = datetime.fromisoformat(session.pop("created_at"))
        assert created == datetime.fromtimestamp(server.wall.now_s, UTC)
        assert session == {
            "id": session["id"],
            "state": "admitted",
            "model": MODEL,
            "seed": 3,
            "prompt": "fog",
            "pixels": "lossy",
            "pacing": "media",
            "delivery": "lossless",
            "width": 64,
            "height": 48,
            "fps": 16,
            "window_frames": 8,
            "queue_position": None,
            "stream_path": f"/v1/sessions/{session['id']}/stream",
            "generated_seq": 0,
            "sent_seq": 0,
            "decoded_seq": 0,
            "dropped_frames": 0,
            "delivered": None,
            "reason": "",
            "message": "",
            "retryable": False,
        }
        request = server.engine.sessions[session["id"]].request
        assert (request.seed, request.prompt, request.pixels, request.options) == (3, "fog", "lossy", {})
        assert "token" not in await server.look(session["id"])
        listed = (await server.http.get("/v1/sessions")).json()["sessions"]
        assert [one["id"] for one in listed] == [session["id"]]


async def test_a_queued_session_gets_the_next_place() -> None:
    async with served() as server:
        first, _, third, fourth = [await server.create() for _ in range(4)]
        assert (third["state"], third["queue_position"], fourth["queue_position"]) == ("queued", 1, 2)
        answer = await server.http.delete(f"/v1/sessions/{first['id']}?force=true")
        assert (answer.status_code, answer.json()["state"], answer.json()["reason"]) == (200, "closed", "forced")
        await server.until_state(third["id"], "connecting")
        assert (await server.look(fourth["id"]))["queue_position"] == 1


async def test_a_place_is_free_only_when_the_engine_says_so() -> None:
    async with served() as server:
        server.engine.holds_ends = True
        first, _, third = [await server.create() for _ in range(3)]
        await server.http.delete(f"/v1/sessions/{first['id']}?force=true")
        assert (await server.look(third["id"]))["state"] == "queued"
        server.engine.emit_ended(first["id"], "ended")
        await server.until_state(third["id"], "connecting")


async def test_waiting_in_the_queue_has_an_end() -> None:
    async with served(config_for(sessions={"queue_timeout_s": 20})) as server:
        sessions = [await server.create() for _ in range(3)]
        server.timers.advance(20)
        found = await server.look(sessions[2]["id"])
        assert (found["state"], found["reason"], found["queue_position"]) == ("closed", "queue_timeout", None)


async def test_deleting_a_queued_session_frees_its_place_in_the_queue() -> None:
    async with served(config_for(sessions={"max_queued": 1})) as server:
        queued = [await server.create() for _ in range(3)][2]
        answer = await server.http.delete(f"/v1/sessions/{queued['id']}")
        assert (answer.status_code, answer.json()["state"]) == (200, "closed")
        assert (await server.create())["queue_position"] == 1


async def test_nobody_connects_in_time() -> None:
    async with served(config_for(sessions={"connect_timeout_s": 60})) as server:
        session = await server.create()
        server.timers.advance(60)
        assert (await server.look(session["id"]))["reason"] in ("connect_timeout", "start_timeout")
        await server.until(lambda: server.daemon.registry.num_inside(MODEL) == 0)


async def test_the_model_does_not_open_in_time() -> None:
    engine = FakeEngine()
    engine.holds_starts = True
    async with served(config_for(sessions={"connect_timeout_s": 60}), engine) as server:
        session = await server.create()
        server.timers.advance(60)
        found = await server.look(session["id"])
        assert (found["state"], found["reason"]) == ("failed", "start_timeout")


async def test_delete_drains() -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            answer = await server.http.delete(f"/v1/sessions/{session['id']}")
            assert (answer.status_code, answer.json()["state"]) == (202, "draining")
            assert (await client.expect("eos"))["reason"] == "ended"
            await client.ack(2)
            await client.say("fin", decoded_count=2, last_seq=2)
            assert (await client.expect_state("closed"))["delivered"] is True
        again = await server.http.delete(f"/v1/sessions/{session['id']}")
        assert (again.status_code, again.json()["reason"]) == (200, "ended")


async def test_forcing_cuts_a_stream() -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            await server.http.delete(f"/v1/sessions/{session['id']}?force=true")
            last = await client.expect_state("closed")
            assert (last["reason"], last["delivered"]) == ("forced", False)
            assert await client.closed() == 1000


async def test_a_session_has_a_longest_time() -> None:
    async with served(config_for(sessions={"max_duration_s": 100, "ack_timeout_s": 1000})) as server:
        session = await server.create()
        async with server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            await client.ack(2)
            await client.say("pause")
            await client.expect_state("paused")
            server.timers.advance(100)
            assert (await client.expect("eos"))["reason"] == "max_duration"


async def test_an_engine_that_does_not_end() -> None:
    async with served(config_for(sessions={"drain_timeout_s": 8})) as server:
        server.engine.holds_ends = True
        session = await server.create()
        async with server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            await client.say("end")
            await client.expect_state("draining")
            server.timers.advance(8)
            last = await client.expect_state("failed")
            assert (last["reason"], last["delivered"]) == ("end_timeout", False)
        server.engine.emit_ended(session["id"], "ended")
        assert server.daemon.registry.num_inside(MODEL) == 0


async def test_frames_that_were_lost_on_the_way_are_never_delivered() -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            await client.ack(2)
            server.engine.emit(EngineSessionEnded(session["id"], 4, "encoder_lost", "", retryable=True))
            assert (await client.expect("eos"))["last_seq"] == 4
            await client.say("fin", decoded_count=2, last_seq=2)
            assert (await client.expect_state("failed"))["delivered"] is False


async def test_controls_over_http() -> None:
    async with served() as server:
        session = await server.create()
        await server.until_state(session["id"], "connecting")
        path = f"/v1/sessions/{session['id']}/controls"
        answer = await server.http.post(path, json={"pressed": ["KeyW"], "pointer_dy": -1.5})
        assert (answer.status_code, answer.json()) == (202, {"control_id": 1})
        answer = await server.http.post(path, json={"control_id": 40, "prompt": "fog"})
        assert answer.json() == {"control_id": 40}
        first, second = server.engine.controls
        assert (first.pressed, first.pointer_dy, second.prompt) == (("KeyW",), -1.5, "fog")


async def test_tokens_open_their_session_only() -> None:
    async with served(config_for(access={"api_keys": (KEY,)})) as server:
        made = [(await server.http.post("/v1/sessions", json={"model": MODEL}, headers=AS_KEY)).json() for _ in range(2)]
        own = {"Authorization": f"Bearer {made[0]['token']}"}
        path, other = f"/v1/sessions/{made[0]['id']}", f"/v1/sessions/{made[1]['id']}"
        assert (await server.http.get(path, headers=own)).status_code == 200
        assert (await server.http.get(other, headers=own)).status_code == 403
        assert (await server.http.get("/v1/models", headers=own)).status_code == 200
        for call in (
            server.http.get("/v1/sessions", headers=own),
            server.http.post("/v1/sessions", json={"model": MODEL}, headers=own),
            server.http.post(f"{path}/token", json={}, headers=own),
            server.http.get("/metrics", headers=own),
        ):
            assert (await call).status_code == 403
        viewer = (await server.http.post(f"{path}/token", json={"role": "viewer"}, headers=AS_KEY)).json()
        assert viewer["role"] == "viewer"
        seen = {"Authorization": f"Bearer {viewer['token']}"}
        assert (await server.http.get(path, headers=seen)).status_code == 200
        assert (await server.http.delete(path, headers=seen)).status_code == 403
        assert (await server.http.post(f"{path}/controls", json={}, headers=seen)).status_code == 403
        assert (await server.http.delete(path, headers=own)).status_code in (200, 202)


async def test_streams_need_the_right_token() -> None:
    async with served(config_for(access={"api_keys": (KEY,)})) as server:
        made = [(await server.http.post("/v1/sessions", json={"model": MODEL}, headers=AS_KEY)).json() for _ in range(2)]
        async with server.connect({**made[0], "token": made[1]["token"]}) as client:
            assert await client.refused() == ("role_not_allowed", 4403)
        async with server.connect({"stream_path": made[0]["stream_path"]}) as client:
            assert await client.refused() == ("key_missing", 4401)
        async with server.connect({**made[0], "token": "guess"}) as client:
            assert await client.refused() == ("key_invalid", 4401)
        for name, extra in (("evil.example", {}), ("127.0.0.1", {"Host": "evil.example"})):
            async with server.connect(made[0], host_header=name, additional_headers=extra) as client:
                assert await client.refused() == ("host_not_allowed", 4403)
        async with server.connect(made[0], origin="https://evil.example") as client:
            assert await client.refused() == ("origin_not_allowed", 4403)
        async with server.connect({"stream_path": made[1]["stream_path"]}, additional_headers=AS_KEY) as client:
            await client.greet()
        async with server.connect(made[0], origin=server.url.rstrip("/")) as client:
            await client.greet()
        await server.until_state(made[0]["id"], "detached")
        server.wall.now_s += 3600
        async with server.connect(made[0]) as client:
            assert await client.refused() == ("token_expired", 4401)


async def test_allowed_origins_get_cors() -> None:
    page = "https://play.example.org"
    async with served(config_for(server={"allowed_origins": (page,)})) as server:
        answer = await server.http.options("/v1/sessions", headers={"Origin": page, "Access-Control-Request-Method": "POST"})
        assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (200, page)
        answer = await server.http.get("/v1/models", headers={"Origin": page})
        assert answer.headers["Access-Control-Allow-Origin"] == page


async def test_models() -> None:
    async with served() as server:
        (model,) = (await server.http.get("/v1/models")).json()["models"]
        assert model == (await server.http.get(f"/v1/models/{MODEL}")).json()
        assert (model["state"], model["width"], model["fps"], model["controls"]) == ("ready", 64, 16, ["KeyW", "KeyA"])
        await server.create()
        assert (await server.http.get(f"/v1/models/{MODEL}")).json()["sessions"] == 1
        assert (await server.http.get("/v1/models/nothing")).json()["error"]["code"] == "model_unknown"


async def test_readiness_tells_the_truth() -> None:
    async with served() as server:
        assert (await server.http.get("/healthz")).json() == {"status": "ok"}
        assert (await server.http.get("/readyz")).json() == {"status": "ready"}
        server.engine.set_model(ModelState.RESTARTING, "rank 1 was lost")
        answer = await server.http.get("/readyz")
        assert (answer.status_code, "rank 1 was lost" in answer.text) == (503, True)
        server.engine.set_model(ModelState.READY)
        assert (await server.http.get("/readyz")).status_code == 200
        server.daemon.registry.stop_admitting()
        assert (await server.http.get("/readyz")).status_code == 503
        server.engine.set_model(ModelState.FAILED, "its weights are missing")
        gone = (await server.http.get("/readyz")).json()["error"]
        assert (gone["code"], gone["retryable"]) == ("model_unavailable", False)
        assert (await server.http.get("/healthz")).status_code == 200


async def test_a_restarting_model_lets_its_sessions_wait() -> None:
    async with served() as server:
        server.engine.set_model(ModelState.RESTARTING)
        session = await server.create()
        assert (session["state"], session["queue_position"]) == ("queued", 1)
        server.engine.set_model(ModelState.READY)
        await server.until_state(session["id"], "connecting")


async def test_probes_and_the_page_are_open_and_metrics_are_not() -> None:
    async with served(config_for(access={"api_keys": (KEY,)})) as server:
        for path in ("/healthz", "/readyz", "/", "/openapi.json"):
            assert (await server.http.get(path)).status_code == 200
        assert (await server.http.get("/metrics")).status_code == 401
        assert (await server.http.get("/metrics", headers=AS_KEY)).status_code == 200


async def test_metrics_count() -> None:
    async with served() as server:
        session = await server.create(max_frames=2)
        async with server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            await client.ack(2)
            server.engine.emit(StepTimed(MODEL, session["id"], 0, 0, 40.0))
            await client.expect("eos")
            await client.say("fin", decoded_count=2, last_seq=2)
            await client.closed()
        await server.create()
        answer = await server.http.get("/metrics")
        assert answer.headers["Content-Type"].startswith("text/plain")
        lines = set(answer.text.splitlines())
        assert {
            'ithaka_sessions{state="closed"} 1.0',
            f'ithaka_places_used{{model="{MODEL}"}} 1.0',
            f'ithaka_model_ready{{model="{MODEL}"}} 1.0',
            f'ithaka_sessions_created_total{{model="{MODEL}"}} 2.0',
            'ithaka_sessions_ended_total{delivered="true",reason="max_frames"} 1.0',
            f'ithaka_frames_generated_total{{model="{MODEL}"}} 2.0',
            f'ithaka_frames_decoded_total{{model="{MODEL}"}} 2.0',
            'ithaka_frames_sent_total{role="controller"} 2.0',
            f'ithaka_step_seconds_count{{model="{MODEL}"}} 1.0',
        } <= lines


async def test_events_follow_a_session_to_its_end() -> None:
    async with served() as server:
        session = await server.create()

        async def let_time_pass() -> None:
            while True:
                server.timers.advance(1)
                await server.http.get("/healthz")

        clock = asyncio.create_task(let_time_pass())
        events: list[tuple[str, dict[str, object]]] = []
        async with server.http.stream("GET", f"/v1/sessions/{session['id']}/events") as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            lines = answer.aiter_lines()
            async for line in lines:
                name = line.removeprefix("event: ")
                events.append((name, json.loads((await anext(lines)).removeprefix("data: "))))
                assert await anext(lines) == ""
                if name == "stats":
                    await server.http.delete(f"/v1/sessions/{session['id']}?force=true")
        clock.cancel()
        names = [name for name, _ in events]
        assert names[0] == "state" and "stats" in names and names[-1] == "closed"
        assert (events[-1][1]["reason"], events[-1][1]["delivered"]) == ("forced", False)
        assert "token" not in events[0][1]
        assert server.session(session["id"]).watchers == set()


async def test_a_listener_that_leaves_is_forgotten() -> None:
    async with served() as server:
        session = await server.create()
        async with server.http.stream("GET", f"/v1/sessions/{session['id']}/events") as answer:
            assert await anext(answer.aiter_lines()) == "event: state"
            assert len(server.session(session["id"]).watchers) == 1
        await server.until(lambda: not server.session(session["id"]).watchers)


async def test_many_ended_sessions_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ithaka.server.session.registry.MAX_REMEMBERED", 3)
    async with served() as server:
        made = [await server.create() for _ in range(1)]
        for _ in range(5):
            made.append(await server.create())
            await server.http.delete(f"/v1/sessions/{made[-1]['id']}?force=true")
        await server.until(lambda: server.daemon.registry.num_inside(MODEL) == 1)
        assert len(server.daemon.registry.all()) == 4
        assert (await server.http.get(f"/v1/sessions/{made[1]['id']}")).status_code == 404
        assert (await server.look(made[0]["id"]))["state"] == "connecting"


async def test_two_applications_share_nothing() -> None:
    async with served() as first, served(engine=FakeEngine(READY)) as second:
        await first.create()
        assert (await second.http.get("/v1/sessions")).json() == {"sessions": []}
