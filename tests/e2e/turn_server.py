"""A TURN server (coturn) on loopback, over UDP and TCP, for peers that find no other way."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event

PROGRAM = shutil.which("turnserver") or "turnserver"
READY_WITHIN_S = 20.0
SECRET = "a-secret-of-this-test-only"


@dataclass(frozen=True, slots=True)
class TurnServer:
    """``SECRET`` makes its passwords; each of ``relay_ports`` may stand for a peer."""

    port: int
    relay_ports: range
    log: Path

    def url(self, transport: str) -> str:
        return f"turn:127.0.0.1:{self.port}?transport={transport}"


@contextlib.contextmanager
def running_turn_server(folder: Path) -> Iterator[TurnServer]:
    server = TurnServer(_free_port(), range(45_000, 45_100), folder / "turn.log")
    options = {
        "listening-ip": "127.0.0.1",
        "relay-ip": "127.0.0.1",
        "listening-port": server.port,
        "min-port": server.relay_ports[0],
        "max-port": server.relay_ports[-1],
        "static-auth-secret": SECRET,
        "realm": "ithaka.test",
        "log-file": "stdout",
        "pidfile": folder / "turn.pid",
        "userdb": folder / "turn.db",
    }
    flags = ["use-auth-secret", "allow-loopback-peers", "no-cli", "no-tls", "no-dtls", "verbose"]
    arguments = [*(f"--{name}={value}" for name, value in options.items()), *(f"--{flag}" for flag in flags)]
    # Without its own files of settings.
    with server.log.open("w") as output:
        process = subprocess.Popen([PROGRAM, "-n", *arguments], stdout=output, stderr=subprocess.STDOUT)
        try:
            _await_ready(process, server)
            yield server
        finally:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _await_ready(process: subprocess.Popen[bytes], server: TurnServer) -> None:
    pause, deadline_s = Event(), time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port), timeout=1):
            return
        pause.wait(0.05)
    raise AssertionError(f"the TURN server did not become ready:\n{server.log.read_text()}")
