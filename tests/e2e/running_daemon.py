"""The daemon as a process of its own, for tests that come to it from outside."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import httpx

READY_WITHIN_S = 60.0
GONE_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class RunningDaemon:
    url: str
    """Without a slash at the end."""
    log: Path

    @property
    def port(self) -> int:
        port = httpx.URL(self.url).port
        assert port is not None
        return port


@contextlib.contextmanager
def running_daemon(folder: Path, config: str) -> Iterator[RunningDaemon]:
    """Serves ``config`` (YAML) on a free port; it is told to stop at the end, and has to leave with code 0."""
    path, log = folder / "daemon.yaml", folder / "daemon.log"
    path.write_text(config)
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "ithaka.server.cli", "serve", "-c", str(path), "--port", "0"],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield RunningDaemon(await_ready(process, log), log)
            process.send_signal(signal.SIGINT)
            assert process.wait(GONE_WITHIN_S) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()


def await_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    pause, deadline_s = Event(), time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline_s and process.poll() is None:
        if found := re.search(r"serves at (http://\S+?)/?\s", log.read_text()):
            url = found.group(1)
            if httpx.get(f"{url}/readyz", trust_env=False).status_code == 200:
                return url
        pause.wait(0.05)
    raise AssertionError(f"the daemon did not become ready:\n{log.read_text()}")
