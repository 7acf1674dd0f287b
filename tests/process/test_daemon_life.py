"""The whole daemon as its user starts and stops it: real processes, real signals, nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
import websockets
from benchmarks.daemon import await_ready, read_url, start

import ithaka.workers
from ithaka_client import Client
from ithaka_client.protocol import EndOfStream, Hello, parse_message

CONFIG = """
models:
  - {name: barcodes, family: synthetic, ranks: RANKS, max_sessions: 1, options: {width: 192, height: 128, fps: 30}}
sessions: {drain_timeout_s: 3}
log: {level: warning}
"""
GONE_WITHIN_S = 3.0


@dataclass(frozen=True, slots=True)
class Running:
    url: str
    process: subprocess.Popen[str]
    children: list[psutil.Process]

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def leader(self) -> psutil.Process:
        return next(child for child in self.children if "ithaka.workers.encode" not in child.cmdline())

    async def ended(self) -> int:
        return await asyncio.to_thread(self.process.wait, 30)

    def assert_nothing_is_left(self) -> None:
        _, alive = psutil.wait_procs(self.children, timeout=GONE_WITHIN_S)
        assert not alive, f"still there: {[child.cmdline() for child in alive]}"
        with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
            probe.connect(("127.0.0.1", httpx.URL(self.url).port or 0))


@pytest.fixture
def daemon(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Running]:
    """Of one rank, or as many as its parameter says."""
    path = tmp_path / "daemon.yaml"
    path.write_text(CONFIG.replace("RANKS", str(getattr(request, "param", 1))))
    with started("-c", path) as process:
        url = read_url(process)
        await_ready(process, url)
        yield Running(url, process, psutil.Process(process.pid).children(recursive=True))


@contextlib.contextmanager
def started(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    process = start(*arguments, log=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.asynccontextmanager
async def stream(daemon: Running) -> AsyncIterator[tuple[websockets.ClientConnection, Hello]]:
    """A bare controller that has heard hello and said nothing yet."""
    async with httpx.AsyncClient(base_url=daemon.url) as http:
        session = (await http.post("/v1/sessions", json={"model": "barcodes"})).json()
    async with websockets.connect(
        f"{daemon.url.replace('http', 'ws')}{session['stream_path']}", subprotocols=[websockets.Subprotocol("ithaka.v1")]
    ) as socket_:
        while not isinstance(hello := parse_message(str(await socket_.recv())), Hello):
            pass
        yield socket_, hello


@pytest.mark.usefixtures("heeds_hangups")
@pytest.mark.parametrize("daemon", [2], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_streaming_session_is_delivered_before_the_daemon_goes(daemon: Running, number: signal.Signals) -> None:
    async with Client(daemon.url) as client, await client.create_session("barcodes") as session:
        seqs = []
        async for frame in session.frames():
            seqs.append(frame.seq)
            if frame.seq == 10:
                daemon.process.send_signal(number)
        assert seqs == list(range(1, len(seqs) + 1))
        assert session.outcome is not None
        assert (session.outcome.delivered, session.outcome.reason) == (True, "server_stopping")
    assert await daemon.ended() == 0
    daemon.assert_nothing_is_left()


@pytest.mark.parametrize("state", ["queued", "admitted", "connecting", "connected", "paused", "detached", "draining"])
async def test_one_interrupt_ends_every_kind_of_session(daemon: Running, state: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=daemon.url))
        if state == "queued":
            await http.post("/v1/sessions", json={"model": "barcodes"})
        if state == "admitted":
            daemon.leader().suspend()
        if state in ("queued", "admitted", "connecting"):
            created = (await http.post("/v1/sessions", json={"model": "barcodes"})).json()
            while (seen := (await http.get(f"/v1/sessions/{created['id']}")).json()["state"]) != state:
                assert (seen, state) == ("admitted", "connecting")
        else:
            socket_, hello = await stack.enter_async_context(stream(daemon))
            if state != "connected":
                await socket_.send(json.dumps({"type": "resume", "stream": hello.stream, "next_seq": 1}))
                assert isinstance(await socket_.recv(), bytes | str)
            if state == "detached":
                await socket_.close()
            elif state in ("paused", "draining"):
                await socket_.send(json.dumps({"type": "pause" if state == "paused" else "end"}))
            wanted = "connecting" if state == "connected" else state
            while (await http.get(f"/v1/sessions/{hello.session}")).json()["state"] != wanted:
                pass
        daemon.interrupt()
        assert await daemon.ended() == 0
    daemon.assert_nothing_is_left()


async def test_an_idle_daemon_ends_at_once(daemon: Running) -> None:
    daemon.process.send_signal(signal.SIGTERM)
    assert await daemon.ended() == 0
    daemon.assert_nothing_is_left()


async def test_a_second_interrupt_forces_a_client_that_never_says_fin(daemon: Running) -> None:
    async with stream(daemon) as (socket_, hello):
        await socket_.send(json.dumps({"type": "resume", "stream": hello.stream, "next_seq": 1}))
        await socket_.recv()
        daemon.interrupt()
        while not isinstance(message := await socket_.recv(), str) or not isinstance(parse_message(message), EndOfStream):
            pass
        with pytest.raises(subprocess.TimeoutExpired):
            daemon.process.wait(1.1)
        daemon.interrupt()
        assert await daemon.ended() == 130
    daemon.assert_nothing_is_left()


@pytest.mark.parametrize("daemon", [2], indirect=True)
async def test_a_killed_daemon_takes_its_children_along(daemon: Running) -> None:
    assert len(daemon.children) == 3
    daemon.process.kill()
    await daemon.ended()
    daemon.assert_nothing_is_left()


def test_a_port_in_use_ends_with_2_before_any_child() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, started("--port", str(taken.getsockname()[1])) as process:
        _, stderr = process.communicate(timeout=30)
        assert process.returncode == 2
        assert f"port {taken.getsockname()[1]} of 127.0.0.1 can't be used" in stderr
        assert "choose another" in stderr


def flipped(weights: Path) -> Path:
    """A file of a copy of the shipped weights, one bit of which is not as it was."""
    shutil.copytree(Path(ithaka.workers.__path__[0]) / "families/wan/weights/labyrinth", weights)
    damaged = weights / "autoencoder" / "diffusion_pytorch_model.safetensors"
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    return damaged


async def test_models_that_can_not_start_are_told_by_readyz(tmp_path: Path) -> None:
    damaged = flipped(tmp_path / "weights")
    models = {
        "told": ("{name: told, family: synthetic, options: {fail_load: true}}", "as the option fail_load asks"),
        "none": (f"{{name: none, family: labyrinth, options: {{weights: {tmp_path}/no}}}}", f"no weights at {tmp_path}/no"),
        "bit": (
            f"{{name: bit, family: labyrinth, options: {{weights: {tmp_path}/weights}}}}",
            f"{damaged} is not the file that was exported",
        ),
    }
    path = tmp_path / "bad.yaml"
    listed = ", ".join(model for model, _ in models.values())
    path.write_text(f"models: [{listed}]\nsupervisor: {{max_failed_starts: 1}}\nlog: {{level: error}}\n")
    with started("-c", path) as process:
        url = read_url(process)
        async with httpx.AsyncClient(base_url=url) as http:
            while {model["state"] for model in (await http.get("/v1/models")).json()["models"]} != {"failed"}:
                assert process.poll() is None
            ready = await http.get("/readyz")
            for name, (_, message) in models.items():
                assert ready.status_code == 503 and message in ready.text
                refused = await http.post("/v1/sessions", json={"model": name})
                assert refused.status_code == 503 and message in refused.json()["error"]["message"]
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=30)
        assert process.returncode == 0
    for name, (_, message) in models.items():
        (line,) = [line for line in log.splitlines() if f"group={name} " in line]
        assert "group.start_failed" in line and "code=model_load_failed" in line and message in line
        assert "next='given up: mend it and start again'" in line
    assert len(log.splitlines()) == len(models), "one readable line for each"


def test_a_clip_with_keys_that_the_model_does_not_have_is_refused_before_it_is_begun(tmp_path: Path) -> None:
    config, script = tmp_path / "bars.yaml", tmp_path / "walk.yaml"
    config.write_text("models: [{name: bars, family: synthetic}]\n")
    script.write_text("- {at: 1, press: [KeyW]}\n- {at: 2, press: [KeyW, Keyw], release: [Banana]}\n")
    command = (sys.executable, "-m", "ithaka.server.cli", "generate", tmp_path / "clip.mp4", "-c", config, "--controls", script)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert first.startswith(f"{script}: 1.press.1: model 'bars' has no key 'Keyw'; its keys are: KeyW, ")
    assert first.endswith("; did you mean KeyW?")
    assert second.startswith(f"{script}: 1.release.0: model 'bars' has no key 'Banana'; its keys are: KeyW, ")
    assert not list(tmp_path.glob("*clip*"))


def test_a_clip_of_a_model_that_can_not_start_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("models: [{name: told, family: synthetic, options: {fail_load: true}}]\n")
    command = [sys.executable, "-m", "ithaka.server.cli", "generate", str(tmp_path / "clip.mp4"), "-c", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    assert line.startswith("model 'told' did not start: told/0 models.told") and "as the option fail_load asks" in line
    assert (done.returncode, list(tmp_path.glob("*.mp4"))) == (1, [])


def test_the_way_to_a_load_error_is_shown_to_who_looks_for_it(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("models: [{name: told, family: synthetic, options: {fail_load: true}}]\nlog: {level: debug}\n")
    with started("-c", path) as process:
        assert process.stderr is not None
        log: list[str] = []
        while "group.start_failed" not in (line := process.stderr.readline()):
            assert line, "the daemon ended"
            log.append(line)
    assert any("rank.failed" in line for line in log) and any("Traceback" in line for line in log)
