"""A daemon on a free port. A benchmark stops its own with one SIGINT and measures its processes; tests start theirs alike."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx
import psutil

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Daemon:
    """A running daemon. ``ready_s`` is the time from spawn to the first 200 of /readyz."""

    url: str
    process: psutil.Process
    ready_s: float

    def processes(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]

    def cpu_s(self, *needles: str) -> float:
        """CPU seconds used so far by the daemon itself and those children whose command line holds one of ``needles``."""
        chosen = [p for p in self.processes()[1:] if any(needle in " ".join(p.cmdline()) for needle in needles)]
        return sum(sum(p.cpu_times()[:2]) for p in (self.process, *chosen))


def start(
    *arguments: str | Path,
    program: Sequence[str | Path] = (sys.executable, "-m", "ithaka.server.cli"),
    log: IO[str] | int | None = None,
    cwd: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> subprocess.Popen[str]:
    """``ithaka serve --port 0`` with ``arguments``; its stdout is a pipe; without ``log`` its log goes with ours."""
    return subprocess.Popen(
        [*program, "serve", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        cwd=cwd,
        env={**environ, "COLUMNS": "200", "PYTHONUNBUFFERED": "1"},
    )


def read_url(process: subprocess.Popen[str]) -> str:
    """Where the daemon serves, without a slash at the end, as soon as it says so."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"https?://\S+", line):
            return found.group(0).rstrip("/")
    raise RuntimeError(f"the daemon ended with {process.wait()} before it served")


def await_ready(process: subprocess.Popen[str], url: str) -> None:
    """Until it can take a session. Raises RuntimeError if it ends, TimeoutError if it does not get there."""
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while (answer := httpx.get(f"{url}/readyz", trust_env=False)).status_code != 200:
        if process.poll() is not None:
            raise RuntimeError(f"the daemon ended with {process.returncode} before it was ready")
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not ready after {READY_TIMEOUT_S} s: {answer.text}")
        time.sleep(0.02)


@contextmanager
def running_daemon(config: Path | None = None, *, flags: Sequence[str] = (), cores: Sequence[int] = ()) -> Iterator[Daemon]:
    """Start ``ithaka serve`` and wait until it is ready; stop it at the end. ``cores`` pins the server, not its children."""
    started = time.monotonic()
    process = start("--log-level", "warning", *flags, *(() if config is None else ("-c", config)))
    assert process.stdout is not None
    try:
        url = read_url(process)
        await_ready(process, url)
        daemon = Daemon(url, psutil.Process(process.pid), time.monotonic() - started)
        if cores:
            daemon.process.cpu_affinity(list(cores))
        yield daemon
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            process.stdout.close()
