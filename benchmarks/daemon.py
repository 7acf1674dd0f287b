"""A daemon of its own for a benchmark: started on a free port, stopped with one SIGINT, its processes measurable."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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


@contextmanager
def running_daemon(config: Path | None = None, *, flags: Sequence[str] = (), cores: Sequence[int] = ()) -> Iterator[Daemon]:
    """Start ``ithaka serve`` and wait until it is ready; stop it at the end. ``cores`` pins the server, not its children."""
    command = [sys.executable, "-m", "ithaka.server.cli", "serve", "--port", "0", "--log-level", "warning", *flags]
    if config is not None:
        command += ["-c", str(config)]
    started = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
    )
    assert process.stdout is not None
    try:
        url = _read_url(process)
        while True:
            if httpx.get(f"{url}/readyz").status_code == 200:
                break
            if time.monotonic() - started > READY_TIMEOUT_S:
                raise TimeoutError(f"not ready after {READY_TIMEOUT_S} s")
            time.sleep(0.02)
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


def _read_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"https?://\S+", line):
            return found.group(0).rstrip("/")
    raise RuntimeError(f"the daemon ended with {process.wait()} before it served")
