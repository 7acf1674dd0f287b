"""The daemon's life: bind, start the engine, serve, and go in order when told to.

One signal drains: no session is taken any more, those that live deliver what was generated, then the engine stops and the
sockets close. A second signal, a second later or more, forces. The handlers only record; ``serve`` acts.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog
import uvicorn
from starlette.types import ASGIApp

from ithaka.configs.schema import RecordingSection, ServeConfig
from ithaka.server.app import create_app
from ithaka.server.auth import Access, SessionTokens
from ithaka.server.engine_client import Engine, EngineError, ModelChanged
from ithaka.server.http_server import HttpServer
from ithaka.server.metrics import Metrics
from ithaka.server.recording.recordings import Recordings
from ithaka.server.routes.page import PAGE_FOLDER
from ithaka.server.routes.services import Services
from ithaka.server.session.peer import CLOSE_GRACE_S, PeerSettings
from ithaka.server.session.registry import SessionRegistry
from ithaka.server.session.spec import Surroundings
from ithaka.server.session.timers import LoopTimers, Timers, wall_clock_s
from ithaka.server.transports.webrtc.connections import ConnectionLimits, WebRtcConnections
from ithaka.server.transports.webrtc.gathering import Gathering, GatheringError
from ithaka.server.transports.webrtc.guard import AiortcError, check_aiortc
from ithaka.server.transports.webrtc.settings import ice_settings
from ithaka.server.websocket_protocol import TellingWebSocket

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_CANT_START = 2
EXIT_FORCED = 130
FORCE_AFTER_S = 1.0
"""A second signal sooner than this is the same key press (a terminal and a supervisor may both send one)."""
UNSENT_BYTES = 128 * 1024
"""Of one connection, in the kernel: enough for a fast network between two turns of the loop."""
HTTP_GRACE_S = 2
"""For connections that are still open when every session is over."""

log = structlog.get_logger()


class StartError(Exception):
    """The daemon can't start; the message says what to change."""


class SignalLog:
    """Signals that came, and when. Handlers only write here."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._first_s: float | None = None
        self.asked = asyncio.Event()
        self.forced = asyncio.Event()

    def record(self) -> None:
        now_s = self._timers.now_s()
        if self._first_s is None:
            self._first_s = now_s
            self.asked.set()
        elif now_s - self._first_s >= FORCE_AFTER_S:
            self.forced.set()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Those of Ctrl-C, of a supervisor and of a terminal that is closed are ours while this lasts."""
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        if before[signal.SIGHUP] is signal.SIG_IGN:
            del before[signal.SIGHUP]  # nohup: it shall outlive its terminal
        for number in before:
            loop.add_signal_handler(number, self.record)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class Daemon:
    """What ``serve`` is made of once everything is built."""

    config: ServeConfig
    engine: Engine
    services: Services
    http: HttpServer
    signals: SignalLog

    @property
    def registry(self) -> SessionRegistry:
        return self.services.registry


async def serve(config: ServeConfig, engine: Engine, *, on_ready: Callable[[str], None]) -> int:
    """Serve until a signal; ``on_ready`` gets the page's URL once the port listens (models may still be starting).

    Returns the exit code: 0 after a drain, 130 when a second signal forced the end, 2 when it could not start (the reason is
    logged, no child was started), 1 when the HTTP server failed.
    """
    timers = LoopTimers()
    signals = SignalLog(timers)
    try:
        daemon = build(config, engine, timers, signals)
        listener = bind(config)
    except StartError as error:
        log.error("daemon.cant_start", reason=str(error))
        return EXIT_CANT_START
    with signals.listening(), contextlib.closing(listener):
        return await run(daemon, listener, on_ready)


def bind(config: ServeConfig) -> socket.socket:
    """The listening socket. Raises StartError, naming the port."""
    server = config.server
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            server.host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise StartError(f"server.host {server.host!r} is no address of this machine: {error.strerror}") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit it: one whose peer takes nothing for this long is cut by the kernel, with what it has not sent.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(config.sessions.ack_timeout_s * 1000))
    # And what was not sent yet waits with us, where a live carrier can still skip it, not in the kernel.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise StartError(
            f"port {server.port} of {server.host} can't be used: {error.strerror}; stop what listens there, or choose another "
            "server.port (0 takes a free one)"
        ) from None
    listener.setblocking(False)
    return listener


def build(
    config: ServeConfig,
    engine: Engine,
    timers: Timers,
    signals: SignalLog,
    *,
    wall_s: Callable[[], float] = wall_clock_s,
    page_folder: Path = PAGE_FOLDER,
) -> Daemon:
    """Everything that lives in the server's process. Raises StartError."""
    metrics = Metrics()
    surroundings = Surroundings(engine, timers, config.sessions, metrics)
    registry = SessionRegistry(surroundings, wall_s=wall_s)
    tokens = SessionTokens(secrets.token_bytes(32), config.access.token_lifetime_s, wall_s)
    peers = PeerSettings(config.server.max_messages_per_s, config.sessions.ack_timeout_s)
    limits = ConnectionLimits(config.webrtc.max_connections, config.webrtc.connect_timeout_s, config.server.max_body_bytes)
    recordings = _recordings(config.recording, timers, wall_s)
    rtc = WebRtcConnections(_gathering(config), limits, peers=peers, timers=timers, metrics=metrics)
    services = Services(config, registry, Access(config, tokens), metrics, timers, peers, rtc, recordings, wall_s)
    app = create_app(services, num_connections=lambda: len(http.server_state.connections), page_folder=page_folder)
    http = _http_server(config, app, timers)
    return Daemon(config, engine, services, http, signals)


def _gathering(config: ServeConfig) -> Gathering:
    gathering = Gathering(ice_settings(config))
    try:
        check_aiortc()
        gathering.check()
    except (AiortcError, GatheringError) as error:
        raise StartError(str(error)) from None
    return gathering


def _recordings(section: RecordingSection, timers: Timers, wall_s: Callable[[], float]) -> Recordings:
    recordings = Recordings(section, timers=timers, wall_s=wall_s)
    try:
        recordings.start()
    except OSError as error:
        raise StartError(f"recording.folder {str(section.folder)!r} can't be used: {error}") from None
    return recordings


def _http_server(config: ServeConfig, app: ASGIApp, timers: Timers) -> HttpServer:
    server = config.server
    websocket = functools.partial(TellingWebSocket, max_frames_per_s=server.max_messages_per_s, now_s=timers.now_s)
    settings = uvicorn.Config(
        app,
        ws=websocket,  # type: ignore[arg-type]
        ws_max_size=server.max_body_bytes,
        ws_per_message_deflate=False,
        ws_ping_interval=None,
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=HTTP_GRACE_S,
        ssl_certfile=server.tls_certificate,
        ssl_keyfile=server.tls_key,
    )
    try:
        settings.load()
    except (OSError, ssl.SSLError) as error:
        raise StartError(
            f"server.tls_certificate {server.tls_certificate} with server.tls_key {server.tls_key} can't be used: {error}"
        ) from None
    return HttpServer(settings, head_timeout_s=server.head_timeout_s)


def url_of(config: ServeConfig, listener: socket.socket) -> str:
    """Where a browser on this machine finds the page."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.server.host, config.server.host)
    scheme = "http" if config.server.tls_certificate is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/"


async def run(daemon: Daemon, listener: socket.socket, on_ready: Callable[[str], None]) -> int:
    """From the bound socket to the exit code."""
    try:
        await daemon.engine.start(daemon.registry.engine_event)
    except EngineError as error:
        log.error("daemon.cant_start", reason=str(error))
        await daemon.engine.stop(deadline_s=_stop_deadline_s(daemon.config))
        return EXIT_CANT_START
    for status in daemon.engine.models():
        daemon.registry.engine_event(ModelChanged(status))
    serving = asyncio.create_task(daemon.http.serve([listener]))
    listening = asyncio.create_task(daemon.http.is_listening.wait())
    asked = asyncio.create_task(daemon.signals.asked.wait())
    try:
        await asyncio.wait({serving, listening}, return_when=asyncio.FIRST_COMPLETED)
        if listening.done():
            url = url_of(daemon.config, listener)
            log.info("daemon.listening", url=url)
            on_ready(url)
            await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            log.error("daemon.http_failed", exc_info=serving.exception())
        code = await _leave(daemon)
        return EXIT_FAILED if serving.done() else code
    except BaseException:
        daemon.engine.kill()
        raise
    finally:
        await daemon.services.rtc.close_all()
        await daemon.services.recordings.close()
        await _stop_http(daemon, serving)
        for task in (listening, asked):
            task.cancel()


async def _leave(daemon: Daemon) -> int:
    """Drain the sessions, or force them; then stop the engine."""
    daemon.registry.stop_admitting()
    forced = asyncio.create_task(daemon.signals.forced.wait())
    try:
        was_forced = await _drain(daemon, forced)
        if was_forced:
            daemon.registry.force_all()
            daemon.engine.kill()
        stopping = asyncio.create_task(daemon.engine.stop(deadline_s=_stop_deadline_s(daemon.config)))
        await asyncio.wait({stopping, forced}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            was_forced = True
            daemon.engine.kill()
        await stopping
        await _let_last_words_out(daemon)
    finally:
        forced.cancel()
    log.info("daemon.stopped", forced=was_forced)
    return EXIT_FORCED if was_forced else EXIT_DONE


async def _drain(daemon: Daemon, forced: asyncio.Task[bool]) -> bool:
    """Until every session is over; each has its own deadlines. True when a second signal cut it short."""
    log.info("daemon.draining", sessions=sum(not session.is_over for session in daemon.registry.all()))
    daemon.registry.drain_all()
    over = asyncio.create_task(daemon.registry.wait_all_over())
    try:
        await asyncio.wait({over, forced}, return_when=asyncio.FIRST_COMPLETED)
        return not over.done()
    finally:
        over.cancel()


async def _let_last_words_out(daemon: Daemon) -> None:
    """Every session is over; each connection has its own bound for saying so."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(2 * CLOSE_GRACE_S):
            await daemon.services.streams.wait_none()


async def _stop_http(daemon: Daemon, serving: asyncio.Task[None]) -> None:
    """uvicorn's own order, with an end to it: connections that do not close are cut."""
    daemon.http.leave()
    await asyncio.wait({serving}, timeout=HTTP_GRACE_S)
    daemon.http.abort_connections()
    await asyncio.wait({serving})


def _stop_deadline_s(config: ServeConfig) -> float:
    """Three rungs: cooperative, terminate, kill."""
    return 3 * config.supervisor.stop_timeout_s
