"""How every child begins: arguments, the tie to its parent, and the first message on its control socket."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ithaka.workers.child_socket import ChildSocket, guard_parent
from ithaka.workers.fault import FaultPoints

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Beginning(Generic[C]):
    """What a child knows once it was configured; ``fds`` came with ``configure`` and are the child's own now."""

    control: ChildSocket
    configure: C
    fds: list[int]
    faults: FaultPoints


def begin(entry: str, kind: type[C], argv: Sequence[str] | None) -> Beginning[C] | None:
    """Tie this process to its parent and wait for the first message; None when the parent is gone before it.

    ``argv`` is that of ``python -m entry``, the process's own where it is None. Ends the process with status 2 for wrong
    arguments, or for a first message that is no ``kind``.
    """
    parser = argparse.ArgumentParser(prog=entry)
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--fault", action="append", default=[], metavar="POINT:COUNT:ACTION")
    arguments = parser.parse_args(argv)
    guard_parent(arguments.parent_pid)
    faults = FaultPoints.parse(arguments.fault)
    control = ChildSocket.from_fd(arguments.control_fd)
    received = control.receive()
    if received is None:
        return None
    configure, fds = received
    if not isinstance(configure, kind):
        parser.error(f"the first message must be {kind.__name__}, got {type(configure).__name__}")
    return Beginning(control, configure, fds, faults)
