"""The test's end of rank processes: start them, step them, signal them, read what they report."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from types import TracebackType
from typing import Any

from ithaka.comm_ext.ulysses.group import GroupDescriptors

DEADLINE_S = 20.0
"""Until a report must come; shorter than the timeouts that a test does not mean to see."""


class RankProcess:
    """One rank, by its pidfd and its control socket."""

    def __init__(self, rank: int, pid: int, control: socket.socket) -> None:
        self.rank = rank
        self.control = control
        control.settimeout(DEADLINE_S)
        self._pidfd = os.pidfd_open(pid)

    def reached(self, phase: str) -> None:
        """Wait until the rank says that it is there."""
        assert self.report() == {"reached": phase}

    def go(self) -> None:
        """Let a rank that paused go on."""
        self.control.send(b"go")

    def result(self, deadline_s: float = DEADLINE_S) -> Any:
        """What the scenario returned; skips whatever it reached on the way. A longer deadline only where much is compiled."""
        self.control.settimeout(deadline_s)
        while "result" not in (report := self.report()):
            pass
        assert "failed" not in report["result"], f"rank {self.rank}: {report['result']['failed']}"
        return report["result"]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; a kill is awaited."""
        signal.pidfd_send_signal(self._pidfd, number)
        if number is signal.SIGKILL:
            self.await_end()

    def await_end(self) -> None:
        """Wait until the process is gone."""
        assert select.select([self._pidfd], [], [], DEADLINE_S)[0], f"rank {self.rank} does not end"

    def close(self) -> None:
        """Kill what is left, and wait until it is gone, with all that it held."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self.await_end()
        os.close(self._pidfd)
        self.control.close()

    def report(self) -> dict[str, Any]:
        """The rank's next message."""
        data = self.control.recv(65536)
        assert data, f"rank {self.rank} ended without a report"
        report: dict[str, Any] = json.loads(data)
        return report


class RankPool:
    """Starts ranks by one zygote, which plays the scenarios of a module."""

    def __init__(self, scenarios: str = "tests.process.ulysses_scenarios") -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.process.ulysses_zygote", str(theirs.fileno()), scenarios]
        paths = [path for path in sys.path if path]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self._zygote = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        theirs.close()
        self._ranks: list[RankProcess] = []

    def start(self, scenario: str, num_ranks: int, **options: Any) -> list[RankProcess]:
        """One process per rank, all in a new group."""
        descriptors = GroupDescriptors.create(num_ranks)
        started = []
        for rank in range(num_ranks):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            request = {"scenario": scenario, "rank": rank, "num_ranks": num_ranks, "options": options}
            socket.send_fds(self._requests, [json.dumps(request).encode()], [*descriptors.fds, theirs.fileno()])
            theirs.close()
            started.append(RankProcess(rank, json.loads(self._requests.recv(4096)), ours))
        descriptors.close()
        self._ranks += started
        return started

    def end_ranks(self) -> None:
        """Kill all that was started since the last time."""
        for rank in self._ranks:
            rank.close()
        self._ranks.clear()

    def __enter__(self) -> RankPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.end_ranks()
        self._requests.close()
        self._zygote.wait(DEADLINE_S)
