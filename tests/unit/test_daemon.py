"""The daemon's way out: a signal in every state of a session, a second signal, and what keeps it from starting."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog.testing
from tests.fakes import MODEL, FakeEngine, FakeTimers
from tests.served import FakeWall, Served, config_for

from ithaka.configs.schema import ServeConfig
from ithaka.server.daemon import Daemon, SignalLog, bind, build, run, serve, url_of
from ithaka.server.engine_client import EngineError

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


# -- starting ----------------------------------------------------------------------------------------------------------


async def start(config: ServeConfig, engine: FakeEngine) -> tuple[int, str]:
    """The exit code and the reason it logged."""
    with structlog.testing.capture_logs() as logs:
        code = await serve(config, engine, on_ready=lambda url: pytest.fail("it started"))
    return code, next(str(entry["reason"]) for entry in logs if entry["event"] == "daemon.cant_start")


async def test_a_port_in_use() -> None:
    engine = FakeEngine()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        config = config_for().model_copy(update={"server": config_for().server.model_copy(update={"port": port})})
        code, reason = await start(config, engine)
    assert code == 2
    assert f"port {port}" in reason
    assert engine.calls == [], "no child was started"


async def test_a_host_that_is_not_ours() -> None:
    config = config_for(server={"host": "host.invalid"}, access={"api_keys": ("0123456789abcdef",)})
    code, reason = await start(config, FakeEngine())
    assert (code, "host.invalid" in reason) == (2, True)


async def test_an_engine_that_cannot_start() -> None:
    engine = FakeEngine()
    engine.refuses_to_run = EngineError("no_device", "no CUDA device is free")
    code, reason = await start(config_for(), engine)
    assert (code, reason) == (2, "no CUDA device is free")
    assert engine.calls == ["start", "stop"]


@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_tls_files_that_are_missing_or_wrong(tmp_path: Path, content: str | None) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    if content is not None:
        certificate.write_text(content)
        key.write_text(content)
    engine = FakeEngine()
    code, reason = await start(config_for(server={"tls_certificate": certificate, "tls_key": key}), engine)
    assert (code, str(certificate) in reason, engine.calls) == (2, True, [])


async def test_tls(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    subprocess.run(  # noqa: ASYNC221 — a test may wait
        [*make.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    config = config_for(server={"tls_certificate": certificate, "tls_key": key})
    seen: list[int] = []

    def on_ready(url: str) -> None:
        tasks.append(asyncio.create_task(ask(url)))

    async def ask(url: str) -> None:
        assert url.startswith("https://127.0.0.1:")
        async with httpx.AsyncClient(verify=ssl.create_default_context(cafile=certificate), trust_env=False) as http:
            seen.append((await http.get(f"{url}healthz")).status_code)
        os.kill(os.getpid(), signal.SIGTERM)

    tasks: list[asyncio.Task[None]] = []
    with structlog.testing.capture_logs():
        assert await serve(config, FakeEngine(), on_ready=on_ready) == 0
    assert seen == [200]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_real_signals_are_recorded_and_given_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with structlog.testing.capture_logs():
        code = await serve(config_for(), FakeEngine(), on_ready=lambda url: os.kill(os.getpid(), number))
    assert code == 0
    assert signal.getsignal(number) is before


async def test_a_peer_that_takes_nothing_is_cut_by_the_kernel() -> None:
    config = config_for(sessions={"ack_timeout_s": 7})
    with bind(config) as listener, socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7000


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:{}/"), ("0.0.0.0", "http://127.0.0.1:{}/"), ("localhost", "http://localhost:{}/")],
)
def test_the_url_for_people(host: str, url: str) -> None:
    config = config_for(server={"host": host}, access={"api_keys": ("0123456789abcdef",)})
    with bind(config) as listener:
        assert url_of(config, listener) == url.format(listener.getsockname()[1])
