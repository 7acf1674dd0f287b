"""A process that has torch loaded and forks ranks on request, so that each rank is a real process and starts at once.

``python -m tests.process.ulysses_zygote FD MODULE`` reads one JSON request per packet from the socket FD, along with three
descriptors (arena, verdict, the rank's control socket), and answers the pid of the rank that it forked. MODULE holds the
scenarios. No device is touched before the fork.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import torch
from tests.process.ulysses_scenarios import RankContext


def main() -> None:
    torch.set_num_threads(1)
    scenarios = importlib.import_module(sys.argv[2]).SCENARIOS
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended ranks are reaped by the kernel
    requests = socket.socket(fileno=int(sys.argv[1]))
    while True:
        data, fds, _, _ = socket.recv_fds(requests, 65536, 3)
        if not data:
            return
        pid = os.fork()
        if pid == 0:
            requests.close()
            run_rank(scenarios, json.loads(data), fds)
        for fd in fds:
            os.close(fd)
        requests.send(json.dumps(pid).encode())


def run_rank(scenarios: dict[str, Callable[[RankContext], Any]], request: dict[str, Any], fds: list[int]) -> None:
    """Play one rank's part, report how it ended, and end the process."""
    arena_fd, verdict_fd, control_fd = fds
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    context = RankContext(
        request["rank"], request["num_ranks"], arena_fd, verdict_fd, socket.socket(fileno=control_fd), request["options"]
    )
    try:
        result = scenarios[request["scenario"]](context)
    except BaseException as error:
        result = {"failed": f"{type(error).__name__}: {error}"}
    context.control.send(json.dumps({"result": result}).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
