"""What keeps the daemon from starting, its address, TLS, and its signals."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
from pathlib import Path

import httpx
import pytest
import structlog.testing
from tests.certificates import make_certificate
from tests.fakes import FakeEngine
from tests.served import config_for

from ithaka.configs.schema import ServeConfig
from ithaka.server.daemon import bind, serve, url_of
from ithaka.server.engine_client import EngineError


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


async def test_tls_files_that_are_wrong(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    certificate.write_text("no certificate")
    key.write_text("no key")
    engine = FakeEngine()
    code, reason = await start(config_for(server={"tls_certificate": certificate, "tls_key": key}), engine)
    assert (code, str(certificate) in reason, engine.calls) == (2, True, [])


async def test_tls(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
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


@pytest.mark.usefixtures("heeds_hangups")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_real_signals_are_recorded_and_given_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with structlog.testing.capture_logs():
        code = await serve(config_for(), FakeEngine(), on_ready=lambda url: os.kill(os.getpid(), number))
    assert code == 0
    assert signal.getsignal(number) is before


async def test_what_runs_under_nohup_outlives_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    seen = []

    def on_ready(url: str) -> None:
        seen.append(signal.getsignal(signal.SIGHUP))
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        with structlog.testing.capture_logs():
            assert await serve(config_for(), FakeEngine(), on_ready=on_ready) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert seen == [signal.SIG_IGN]


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
