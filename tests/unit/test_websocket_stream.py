"""A session over real sockets: frames, acknowledgements, controls, the end. Time is the test's own."""

from __future__ import annotations

import pytest
from tests.fakes import CODEC, MODEL, READY, FakeEngine, payload_of
from tests.served import config_for, served

from ithaka.server.engine_client import EngineError, ModelState

PERIOD_S = 2 / 16
"""Of one chunk of the fake model."""


async def test_a_session_from_create_to_fin() -> None:
    async with served() as server:
        session = await server.create(max_frames=6, seed=7)
        async with server.connect(session) as client:
            assert client.socket.subprotocol == "ithaka.v1"
            hello = await client.greet()
            assert hello == {
                "type": "hello",
                "version": 1,
                "session": session["id"],
                "stream": client.stream,
                "role": "controller",
                "next_seq": 1,
                "window": 8,
                "codec": CODEC,
                "width": 64,
                "height": 48,
                "fps": 16,
                "time_base": [1, 16],
                "pixels": "lossy",
                "model": MODEL,
                "controls": ["KeyW", "KeyA"],
                "takes_prompt": True,
                "takes_pointer": True,
            }
            for seq in range(1, 7):
                frame = await client.frame()
                assert (frame.seq, frame.pts, frame.chunk) == (seq, seq - 1, (seq - 1) // 2)
                assert (frame.payload, frame.decode_only, frame.key) == (payload_of(seq, 100), False, seq == 1)
                await client.ack(seq)
                if seq % 2 == 0:
                    server.timers.advance(PERIOD_S)
            eos = await client.expect("eos")
            assert eos == {"type": "eos", "last_seq": 6, "count": 6, "reason": "max_frames", "retryable": False}
            await client.say("fin", decoded_count=6, last_seq=6)
            last = await client.expect_state("closed")
            assert last == {"type": "state", "state": "closed", "reason": "max_frames", "delivered": True}
            assert await client.closed() == 1000
        found = await server.look(session["id"])
        assert (found["delivered"], found["generated_seq"], found["sent_seq"], found["decoded_seq"]) == (True, 6, 6, 6)
        assert server.engine.sessions[session["id"]].request.seed == 7
        assert server.daemon.registry.num_inside(MODEL) == 0


async def test_frames_come_at_the_media_rate() -> None:
    async with served() as server:
        session = await server.create()
        engine_session = server.engine.sessions[session["id"]]
        async with server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            assert engine_session.granted_through == 2
            server.timers.advance(PERIOD_S * 0.9)
            assert engine_session.granted_through == 2
            server.timers.advance(PERIOD_S * 0.1)
            assert engine_session.granted_through == 4


async def test_unpaced_frames_fill_the_window() -> None:
    async with served() as server:
        session = await server.create(pacing="unpaced", window_frames=6)
        async with server.connect(session) as client:
            assert (await client.greet())["window"] == 6
            await client.frames(6)
            assert server.engine.sessions[session["id"]].granted_through == 6
            await client.ack(4)
            assert [frame.seq for frame in await client.frames(4)] == [7, 8, 9, 10]


async def test_a_control_reaches_the_model_and_its_id_comes_back() -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            await client.say("control", control_id=5, pressed=["KeyW", "F12"], pointer_dx=3, prompt="fog")
            await server.until(lambda: bool(server.engine.controls))
            server.timers.advance(PERIOD_S)
            assert (await client.frame()).control_id == 5
        control = server.engine.controls[0]
        assert (control.pressed, control.pointer_dx, control.prompt) == (("KeyW",), 3.0, "fog")


async def test_frames_say_how_old_they_are() -> None:
    async with served() as server:
        session = await server.create()
        server.engine.is_held = True
        async with server.connect(session) as client:
            await client.greet()
            await server.until(lambda: server.engine.sessions[session["id"]].granted_through == 2)
            born_ns = server.timers.now_ns()
            server.engine.now_ns = lambda: born_ns - 250_900_000
            server.engine.generate(session["id"])
            assert (await client.frame()).age_ms == 250


async def test_pause_holds_the_generator_and_play_goes_on_without_a_burst() -> None:
    async with served() as server:
        session = await server.create()
        engine_session = server.engine.sessions[session["id"]]
        async with server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            await client.say("pause")
            await client.expect_state("paused")
            server.timers.advance(50)
            assert engine_session.granted_through == 2
            await client.ack(2)
            await client.say("play")
            await client.expect_state("streaming")
            assert engine_session.granted_through == 2
            server.timers.advance(PERIOD_S)
            assert engine_session.granted_through == 4
            server.timers.advance(PERIOD_S)
            assert engine_session.granted_through == 6


async def test_the_client_asks_for_the_end() -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            await client.ack(2)
            await client.say("end")
            eos = await client.expect("eos")
            assert (eos["last_seq"], eos["reason"]) == (2, "ended")
            await client.say("control", control_id=1, pressed=["KeyW"])
            await client.say("fin", decoded_count=2, last_seq=2)
            assert (await client.expect_state("closed"))["delivered"] is True
        assert server.engine.controls == []


async def test_hello_waits_for_the_model() -> None:
    engine = FakeEngine()
    engine.holds_starts = True
    async with served(engine=engine) as server:
        session = await server.create()
        assert session["state"] == "admitted"
        async with server.connect(session) as client:
            await server.until_state(session["id"], "admitted")
            engine.emit_started(session["id"])
            await client.greet()
            await client.frames(2)


async def test_a_queued_client_may_wait_connected() -> None:
    async with served() as server:
        first, _, queued = [await server.create() for _ in range(3)]
        assert (queued["state"], queued["queue_position"]) == ("queued", 1)
        async with server.connect(queued) as client:
            await server.http.delete(f"/v1/sessions/{first['id']}?force=true")
            await client.greet()
            await client.frames(2)


async def test_a_lost_worker_lets_its_frames_out_and_is_retryable() -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            server.engine.emit_ended(session["id"], "worker_lost", retryable=True, message="rank 1 died")
            eos = await client.expect("eos")
            assert (eos["last_seq"], eos["reason"], eos["retryable"]) == (2, "worker_lost", True)
            await client.ack(2)
            await client.say("fin", decoded_count=2, last_seq=2)
            last = await client.expect_state("failed")
            assert (last["reason"], last["delivered"]) == ("worker_lost", True)
            assert await client.closed() == 1012


@pytest.mark.parametrize(
    ("code", "retryable", "close_code"), [("worker_lost", True, 1012), ("invalid_session_options", False, 1011)]
)
async def test_a_session_that_never_opens_tells_why(code: str, retryable: bool, close_code: int) -> None:
    engine = FakeEngine()
    engine.holds_starts = True
    async with served(engine=engine) as server:
        session = await server.create()
        async with server.connect(session) as client:
            engine.emit_ended(session["id"], code, retryable=retryable, message="because")
            error = await client.expect("error")
            assert error == {"type": "error", "code": code, "message": "because", "retryable": retryable}
            assert await client.closed() == close_code


async def test_an_engine_that_refuses_fails_the_session_and_frees_the_place() -> None:
    async with served() as server:
        server.engine.refuses_starts = EngineError("model_not_ready", "it restarts", retryable=True)
        session = await server.create()
        assert (session["state"], session["reason"]) == ("failed", "model_not_ready")
        assert server.daemon.registry.num_inside(MODEL) == 0


async def test_the_model_finishes_by_itself() -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            server.engine.emit_ended(session["id"], "finished")
            assert (await client.expect("eos"))["reason"] == "finished"
            await client.ack(2)
            await client.say("fin", decoded_count=2, last_seq=2)
            assert (await client.expect_state("closed"))["delivered"] is True


async def test_a_model_given_up_ends_those_who_wait() -> None:
    async with served() as server:
        sessions = [await server.create() for _ in range(3)]
        server.engine.set_model(ModelState.FAILED, "no weights")
        found = await server.look(sessions[2]["id"])
        assert (found["state"], found["reason"]) == ("failed", "model_unavailable")


async def test_pings_are_answered_or_the_client_is_lost() -> None:
    async with served(config_for(sessions={"ack_timeout_s": 30})) as server:
        session = await server.create()
        async with server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            await client.ack(2)
            await client.say("pause")
            await client.expect_state("paused")
            server.timers.advance(10)
            ping = await client.expect("ping")
            await client.say("pong", id=ping["id"])
            await client.say("play")
            await client.expect_state("streaming")
            await client.say("pause")
            await client.expect_state("paused")
            server.timers.advance(10)
            assert (await client.expect("ping"))["id"] == ping["id"] + 1
            server.timers.advance(30)
            assert await client.refused() == ("pong_timeout", 1008)
        await server.until_state(session["id"], "detached")


async def test_one_session_does_not_wait_for_another() -> None:
    """One client never acknowledges and never reads; the other goes on at its rate."""
    engine = FakeEngine(READY, payload_bytes=400_000)
    async with served(engine=engine) as server:
        slow, quick = await server.create(), await server.create()
        async with server.connect(slow, max_queue=1) as sleeper, server.connect(quick) as client:
            await sleeper.greet()
            await client.greet()
            for seq in range(1, 41):
                assert (await client.frame()).seq == seq
                await client.ack(seq)
                if seq % 2 == 0:
                    server.timers.advance(PERIOD_S)
            slow_session = engine.sessions[slow["id"]]
            assert slow_session.granted_through == 8
            assert slow_session.generated_through == 8
            flow = server.session(slow["id"]).flow
            assert flow is not None and flow.retention.retained_bytes == 8 * 400_000
            assert [frame.seq for frame in await sleeper.frames(8)] == list(range(1, 9))
