"""The daemon as a process of its own, for tests that come to it from outside."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from benchmarks.daemon import await_ready, read_url, start

GONE_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class RunningDaemon:
    url: str
    """Without a slash at the end."""
    log: Path
    pid: int

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
        process = start("-c", path, log=output)
        try:
            url = read_url(process)
            await_ready(process, url)
            yield RunningDaemon(url, log, process.pid)
            process.send_signal(signal.SIGINT)
            assert process.wait(GONE_WITHIN_S) == 0, log.read_text()
        except (RuntimeError, TimeoutError) as error:
            raise AssertionError(f"{error}:\n{log.read_text()}") from error
        finally:
            process.kill()
            process.communicate()
