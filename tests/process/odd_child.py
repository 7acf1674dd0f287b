"""A child that misbehaves as its ``--fault`` says; started as ``python -m tests.process.odd_child``."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import threading

from ithaka.workers.child_socket import ChildSocket, guard_parent
from ithaka.workers.contract import EncodeReady, Heartbeat, SessionStarted, Shutdown


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--fault", required=True)
    arguments = parser.parse_args()
    guard_parent(arguments.parent_pid)
    fault = arguments.fault
    if fault == "exits":
        os._exit(3)
    if fault == "mute":
        threading.Event().wait()
    if fault == "garbage":
        sock = socket.socket(fileno=arguments.control_fd)
        sock.send(b"no message")
        threading.Event().wait()
    control = ChildSocket.from_fd(arguments.control_fd)
    control.receive()
    if fault == "wrong_way":
        control.send(Shutdown())
        threading.Event().wait()
    control.send(EncodeReady())
    if fault == "speaks_and_exits":
        control.send(SessionStarted("s"))
        os._exit(0)
    if fault == "closes":
        control.close()
        threading.Event().wait()
    # Alive, and never reading again.
    if fault == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    control.send(SessionStarted("deaf"))
    silence = threading.Event()
    progress = 0
    while not silence.wait(0.05):
        progress += 1
        control.send(Heartbeat(progress, False))


if __name__ == "__main__":
    main()
