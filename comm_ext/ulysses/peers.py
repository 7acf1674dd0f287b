"""Watching the processes of the other ranks through pidfds: a death is seen at the next look, whatever killed it."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, told from a later one with the same number by the time it started."""

    pid: int
    start_ticks: int

    @classmethod
    def own(cls) -> ProcessIdentity:
        """This process."""
        return cls(os.getpid(), _stat_fields(os.getpid())[1])


class PeerWatch:
    """Pidfds of the peers, by rank. A peer that is gone before the watch begins counts as dead.

    Any thread may ask, also while another closes: a rank's own thread and the one that watches its device share a watch.
    """

    def __init__(self, processes: Mapping[int, ProcessIdentity]) -> None:
        self._processes = dict(processes)
        self._lock = threading.Lock()  # a poll object refuses a second caller while it polls
        self._dead: set[int] = set()
        self._rank_of: dict[int, int] = {}
        self._poll = select.poll()
        for rank, process in processes.items():
            self._open(rank, process)

    def _open(self, rank: int, process: ProcessIdentity) -> None:
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            self._dead.add(rank)
            return
        self._rank_of[pidfd] = rank
        try:
            if _stat_fields(process.pid)[1] != process.start_ticks:
                self._dead.add(rank)
                return
        except OSError:
            self._dead.add(rank)
            return
        self._poll.register(pidfd, select.POLLIN)

    def dead(self) -> frozenset[int]:
        """Ranks whose process has ended."""
        with self._lock:
            for pidfd, _ in self._poll.poll(0):
                self._poll.unregister(pidfd)
                self._dead.add(self._rank_of[pidfd])
            return frozenset(self._dead)

    def describe(self, rank: int) -> str:
        """A rank's process in words, for an error: pid, and whether it is stopped."""
        pid = self._processes[rank].pid
        try:
            state = _stat_fields(pid)[0]
        except OSError:
            return f"pid {pid}, gone"
        return f"pid {pid}, {'stopped' if state in 'Tt' else 'running'}"

    def close(self) -> None:
        """Close the pidfds; afterwards nobody is watched."""
        with self._lock:
            self._poll = select.poll()  # the old one would see the closed descriptors, or what takes their numbers
            for pidfd in self._rank_of:
                os.close(pidfd)
            self._rank_of.clear()


def _stat_fields(pid: int) -> tuple[str, int]:
    """State letter and start time in clock ticks, from proc(5)."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return fields[0], int(fields[19])
