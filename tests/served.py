"""A real server on a free port in the test's own loop, and a client that says exactly what it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import structlog.testing
import websockets
from websockets.asyncio.client import ClientConnection
from websockets.typing import Subprotocol

from ithaka.configs.schema import (
    AccessSection,
    ModelSection,
    RecordingSection,
    ServeConfig,
    ServerSection,
    SessionSection,
    WebRtcSection,
)
from ithaka.server.daemon import Daemon, SignalLog, bind, build, url_of
from ithaka.server.engine_client import ModelChanged
from ithaka.server.routes.page import PAGE_FOLDER
from ithaka.server.routes.services import Services
from ithaka.server.session.session import Session
from tests.fakes import MODEL, FakeEngine, FakeTimers

HEADER = struct.Struct("!BBHIQQQII")
DEADLINE_S = 10.0


def config_for(
    *,
    server: dict[str, Any] | None = None,
    access: dict[str, Any] | None = None,
    sessions: dict[str, Any] | None = None,
    webrtc: dict[str, Any] | None = None,
    recording: dict[str, Any] | None = None,
) -> ServeConfig:
    return ServeConfig(
        server=ServerSection(port=0, **(server or {})),
        access=AccessSection(**(access or {})),
        sessions=SessionSection(**(sessions or {})),
        webrtc=WebRtcSection(**(webrtc or {})),
        recording=RecordingSection(**(recording or {})),
        models=(ModelSection(name=MODEL, family="synthetic"),),
    )


async def cut(daemon: Daemon, serving: asyncio.Task[None]) -> None:
    """The daemon's way out has its own tests; here nothing waits."""
    serving.cancel()
    for server in daemon.http.servers:
        server.close()
    daemon.http.abort_connections()
    await asyncio.gather(serving, *daemon.http.server_state.tasks, return_exceptions=True)


class FakeWall:
    """The date, as tests have it."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Served:
    url: str
    daemon: Daemon
    engine: FakeEngine
    timers: FakeTimers
    wall: FakeWall
    http: httpx.AsyncClient
    logs: list[MutableMapping[str, Any]]

    @property
    def services(self) -> Services:
        return self.daemon.services

    async def create(self, **body: Any) -> dict[str, Any]:
        answer = await self.http.post("/v1/sessions", json={"model": MODEL, **body})
        assert answer.status_code in (201, 202), answer.text
        created: dict[str, Any] = answer.json()
        return created

    async def look(self, session_id: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.http.get(f"/v1/sessions/{session_id}")).json()
        return found

    def session(self, session_id: str) -> Session:
        return self.daemon.registry.get(session_id)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Looks again after each round trip through the server."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await self.http.get("/healthz")

    async def until_state(self, session_id: str, state: str) -> None:
        """Wakes at every change of state."""
        session, changed = self.session(session_id), asyncio.Event()
        session.watchers.add(changed.set)
        try:
            async with asyncio.timeout(DEADLINE_S):
                while session.data.state != state:
                    changed.clear()
                    await changed.wait()
        finally:
            session.watchers.discard(changed.set)

    @contextlib.asynccontextmanager
    async def connect(
        self, session: dict[str, Any], *, host_header: str = "127.0.0.1", **options: Any
    ) -> AsyncIterator[Client]:
        port = httpx.URL(self.url).port
        address = f"ws://{host_header}:{port}{session['stream_path']}"
        protocols = [Subprotocol("ithaka.v1")]
        if "token" in session:
            protocols.append(Subprotocol(f"ithaka.token.{session['token']}"))
        options.setdefault("subprotocols", protocols)
        async with websockets.connect(
            address, host="127.0.0.1", compression=None, max_size=None, proxy=None, **options
        ) as socket:
            yield Client(socket)


@contextlib.asynccontextmanager
async def served(
    config: ServeConfig | None = None, engine: FakeEngine | None = None, *, page_folder: Path = PAGE_FOLDER
) -> AsyncIterator[Served]:
    """Time moves only when the test says so."""
    config, engine, timers, wall = config or config_for(), engine or FakeEngine(), FakeTimers(), FakeWall()
    engine.now_ns = timers.now_ns
    listener = bind(config)
    daemon = build(config, engine, timers, SignalLog(timers), wall_s=wall, page_folder=page_folder)
    await engine.start(daemon.registry.engine_event)
    for status in engine.models():
        engine.emit(ModelChanged(status))
    serving = asyncio.create_task(daemon.http.serve([listener]))
    await daemon.http.is_listening.wait()
    url = url_of(config, listener)
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        try:
            with structlog.testing.capture_logs() as logs:
                yield Served(url, daemon, engine, timers, wall, http, logs)
        finally:
            daemon.registry.force_all()
            await daemon.services.rtc.close_all()
            await daemon.services.recordings.close()
            await cut(daemon, serving)
            assert timers.num_pending == 0, "a timer was left behind"


@dataclass(frozen=True)
class Frame:
    seq: int
    pts: int
    control_id: int
    chunk: int
    age_ms: int
    key: bool
    decode_only: bool
    payload: bytes


class Client:
    """Reads and writes messages; keeps no promise by itself."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.stream = ""

    async def say(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def hear(self) -> dict[str, Any] | Frame:
        async with asyncio.timeout(DEADLINE_S):
            message = await self.socket.recv()
        return read_frame(message) if isinstance(message, bytes) else json.loads(message)

    async def expect(self, kind: str) -> dict[str, Any]:
        """The next message of this type; states on the way are skipped unless asked for."""
        while True:
            message = await self.hear()
            if isinstance(message, dict) and message["type"] == kind:
                return message
            assert isinstance(message, dict) and message["type"] in ("state", "ping"), f"{message} came instead of {kind}"

    async def expect_state(self, state: str) -> dict[str, Any]:
        while (message := await self.expect("state"))["state"] != state:
            pass
        return message

    async def frame(self) -> Frame:
        while not isinstance(message := await self.hear(), Frame):
            assert message["type"] in ("state", "ping"), f"{message} came instead of a frame"
        return message

    async def frames(self, count: int) -> list[Frame]:
        return [await self.frame() for _ in range(count)]

    async def greet(self, next_seq: int | None = None) -> dict[str, Any]:
        """hello, then resume from where it says, or from ``next_seq``."""
        hello = await self.expect("hello")
        self.stream = hello["stream"]
        await self.say("resume", stream=self.stream, next_seq=next_seq or hello["next_seq"])
        return hello

    async def ack(self, through: int) -> None:
        await self.say("ack", received_through=through, decoded_through=through)

    async def closed(self) -> int | None:
        """The close code, whatever still comes before it."""
        async with asyncio.timeout(DEADLINE_S):
            with contextlib.suppress(websockets.ConnectionClosed):
                while True:
                    await self.socket.recv()
        return self.socket.close_code

    async def refused(self) -> tuple[str, int | None]:
        """The error's code and the close code."""
        error = await self.expect("error")
        return error["code"], await self.closed()


def read_frame(message: bytes) -> Frame:
    kind, flags, header_bytes, payload_bytes, seq, pts, control_id, chunk, age_ms = HEADER.unpack_from(message)
    assert (kind, header_bytes, payload_bytes) == (1, HEADER.size, len(message) - HEADER.size)
    return Frame(seq, pts, control_id, chunk, age_ms, bool(flags & 1), bool(flags & 2), message[header_bytes:])
