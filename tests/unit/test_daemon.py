"""The daemon's way out: a signal in every state of a session, a second signal, and what keeps it from starting."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import structlog.testing
from tests.fakes import MODEL, FakeEngine, FakeTimers
from tests.served import FakeWall, Served, config_for

from ithaka.server.daemon import Daemon, SignalLog, bind, build, run

DRAIN_S = 8.0


@dataclass
class Running:
    """A daemon under way. ``server`` is its client's side."""

    server: Served
    daemon: Daemon
    exit_code: asyncio.Task[int]

    def signal(self) -> None:
        self.daemon.signals.record()

    async def until_draining(self) -> None:
        await self.server.until(lambda: self.daemon.registry.why_not_ready() == "the server stops")

    async def leaves(self) -> int:
        async with asyncio.timeout(10):
            return await self.exit_code


@contextlib.asynccontextmanager
async def running(engine: FakeEngine | None = None, **sessions: Any) -> AsyncIterator[Running]:
    config = config_for(sessions={"drain_timeout_s": DRAIN_S, **sessions})
    engine, timers, wall = engine or FakeEngine(), FakeTimers(), FakeWall()
    daemon = build(config, engine, timers, SignalLog(timers), wall_s=wall)
    listener = bind(config)
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    with structlog.testing.capture_logs() as logs, contextlib.closing(listener):
        exit_code = asyncio.create_task(run(daemon, listener, ready.set_result))
        url = await ready
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
            try:
                yield Running(Served(url, daemon, engine, timers, wall, http, logs), daemon, exit_code)
            finally:
                exit_code.cancel()
                await asyncio.gather(exit_code, return_exceptions=True)
    assert timers.num_pending == 0, "a timer was left behind"


async def test_an_idle_daemon_leaves_at_once() -> None:
    async with running() as run_:
        run_.signal()
        assert await run_.leaves() == 0
        assert run_.server.engine.calls == ["start", "stop"]
        with pytest.raises(httpx.ConnectError):
            await run_.server.http.get("/healthz")


async def test_while_it_drains_nothing_new_is_taken_and_probes_tell() -> None:
    async with running() as run_:
        session = await run_.server.create()
        async with run_.server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            run_.signal()
            assert (await client.expect("eos"))["reason"] == "server_stopping"
            assert (await run_.server.http.get("/readyz")).status_code == 503
            assert (await run_.server.http.get("/healthz")).status_code == 200
            refused = await run_.server.http.post("/v1/sessions", json={"model": MODEL})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_stopping")
            assert run_.server.engine.calls == ["start"], "the engine stops after the sessions"
            await client.ack(2)
            await client.say("fin", decoded_count=2, last_seq=2)
            last = await client.expect_state("closed")
            assert (last["reason"], last["delivered"]) == ("server_stopping", True)
            assert await client.closed() == 1001
        assert await run_.leaves() == 0
        assert run_.server.engine.calls == ["start", "stop"]


async def test_a_signal_while_queued() -> None:
    async with running() as run_:
        queued = [await run_.server.create() for _ in range(3)][2]
        session = run_.server.session(queued["id"])
        async with run_.server.connect(queued) as client:
            run_.signal()
            assert await client.refused() == ("server_stopping", 1001)
        assert await run_.leaves() == 0
        assert (session.data.reason, session.data.delivered) == ("server_stopping", False)


async def test_a_signal_while_admitted() -> None:
    engine = FakeEngine()
    engine.holds_starts = True
    async with running(engine) as run_:
        session = await run_.server.create()
        run_.signal()
        assert await run_.leaves() == 0
        assert engine.end_requests == [session["id"]]


async def test_a_signal_while_connecting() -> None:
    async with running() as run_:
        session = await run_.server.create()
        async with run_.server.connect(session) as client:
            await client.expect("hello")
            run_.signal()
            assert (await client.expect_state("closed"))["delivered"] is False
            assert await client.closed() == 1001
        assert await run_.leaves() == 0


async def test_a_signal_while_paused() -> None:
    async with running() as run_:
        session = await run_.server.create()
        async with run_.server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            await client.say("pause")
            await client.expect_state("paused")
            run_.signal()
            await client.expect("eos")
            await client.ack(2)
            await client.say("fin", decoded_count=2, last_seq=2)
            assert (await client.expect_state("closed"))["delivered"] is True
        assert await run_.leaves() == 0


async def test_a_signal_while_streaming_to_a_client_that_never_says_fin() -> None:
    async with running() as run_:
        session = await run_.server.create()
        async with run_.server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            await client.ack(1)
            run_.signal()
            await client.expect("eos")
            run_.server.timers.advance(DRAIN_S - 0.1)
            assert not run_.server.session(session["id"]).is_over
            run_.server.timers.advance(0.1)
            last = await client.expect_state("closed")
            assert (last["reason"], last["delivered"]) == ("server_stopping", False)
            assert await client.closed() == 1001
        assert await run_.leaves() == 0


async def test_a_signal_while_detached_waits_for_the_client_to_come_back() -> None:
    async with running() as run_:
        session = await run_.server.create()
        async with run_.server.connect(session) as client:
            await client.greet()
            await client.frames(2)
        await run_.server.until_state(session["id"], "detached")
        run_.signal()
        await run_.server.until_state(session["id"], "draining")
        run_.server.timers.advance(DRAIN_S - 1)
        async with run_.server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            await client.ack(2)
            await client.expect("eos")
            await client.say("fin", decoded_count=2, last_seq=2)
            assert (await client.expect_state("closed"))["delivered"] is True
        assert await run_.leaves() == 0


async def test_a_signal_while_detached_and_nobody_comes_back() -> None:
    async with running() as run_:
        session = await run_.server.create()
        async with run_.server.connect(session) as client:
            await client.greet()
            await client.frames(2)
        await run_.server.until_state(session["id"], "detached")
        run_.signal()
        await run_.server.until_state(session["id"], "draining")
        await run_.server.until(lambda: run_.server.engine.sessions[session["id"]].is_ended)
        run_.server.timers.advance(DRAIN_S)
        assert await run_.leaves() == 0
        assert run_.server.session(session["id"]).data.delivered is False


async def test_a_signal_while_draining() -> None:
    async with running() as run_:
        session = await run_.server.create()
        async with run_.server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            await client.say("end")
            await client.expect("eos")
            run_.signal()
            await run_.until_draining()
            await client.ack(2)
            await client.say("fin", decoded_count=2, last_seq=2)
            last = await client.expect_state("closed")
            assert (last["reason"], last["delivered"]) == ("ended", True)
        assert await run_.leaves() == 0


async def test_a_signal_after_sessions_closed_and_failed() -> None:
    async with running() as run_:
        closed, failed = await run_.server.create(), await run_.server.create()
        await run_.server.until_state(failed["id"], "connecting")
        run_.server.engine.emit_ended(failed["id"], "worker_lost", retryable=True)
        await run_.server.http.delete(f"/v1/sessions/{closed['id']}?force=true")
        run_.signal()
        assert await run_.leaves() == 0


async def test_a_second_signal_within_a_second_is_the_same_key_press() -> None:
    async with running() as run_:
        session = await run_.server.create()
        async with run_.server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            run_.signal()
            await run_.until_draining()
            run_.server.timers.advance(0.9)
            run_.signal()
            await client.expect("eos")
            await client.ack(2)
            await client.say("fin", decoded_count=2, last_seq=2)
            assert (await client.expect_state("closed"))["delivered"] is True
        assert await run_.leaves() == 0
        assert "kill" not in run_.server.engine.calls


async def test_a_second_signal_a_second_later_forces() -> None:
    async with running() as run_:
        session = await run_.server.create()
        async with run_.server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            run_.signal()
            await client.expect("eos")
            run_.server.timers.advance(1)
            run_.signal()
            last = await client.expect_state("closed")
            assert (last["reason"], last["delivered"]) == ("server_stopping", False)
            assert await client.closed() == 1001
        assert await run_.leaves() == 130
        assert run_.server.engine.calls[:2] == ["start", "kill"]
        assert run_.server.engine.calls[-1] in ("stop", "kill")
        assert "stop" in run_.server.engine.calls, "stop reaps what kill leaves"


async def test_a_second_signal_while_the_engine_does_not_stop() -> None:
    engine = FakeEngine()
    engine.stop_gate = asyncio.Event()
    async with running(engine) as run_:
        run_.signal()
        await run_.server.until(lambda: "stop" in engine.calls)
        run_.server.timers.advance(1)
        run_.signal()
        assert await run_.leaves() == 130
        assert engine.calls == ["start", "stop", "kill"]


async def test_open_event_streams_and_idle_connections_do_not_hold_it_up() -> None:
    async with running() as run_:
        session = await run_.server.create()
        async with run_.server.http.stream("GET", f"/v1/sessions/{session['id']}/events") as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == "event: state"
            run_.signal()
            assert "event: closed" in [line async for line in lines]
        assert await run_.leaves() == 0


async def test_a_client_that_reads_nothing_does_not_hold_it_up() -> None:
    engine = FakeEngine(payload_bytes=4_000_000)
    async with running(engine) as run_:
        session = await run_.server.create()
        async with run_.server.connect(session, max_queue=1) as client:
            await client.greet()
            await run_.server.until(lambda: engine.sessions[session["id"]].generated_through == 2)
            run_.server.timers.advance(1)
            await run_.server.until(lambda: engine.sessions[session["id"]].generated_through == 8)
            run_.signal()
            await run_.server.until(lambda: engine.sessions[session["id"]].is_ended)
            run_.server.timers.advance(DRAIN_S)
            assert await run_.leaves() == 0
            client.socket.transport.abort()


async def test_a_daemon_that_is_cancelled_kills_its_engine() -> None:
    async with running() as run_:
        run_.exit_code.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run_.exit_code
        assert run_.server.engine.calls == ["start", "kill"]
