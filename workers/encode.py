"""Entry of the encode process: ``python -m ithaka.workers.encode --control-fd N --parent-pid P``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ithaka.workers import contract
from ithaka.workers.child_log import configure_child_log
from ithaka.workers.child_socket import ChildSocket, close_fds, guard_parent
from ithaka.workers.fault import FaultPoints


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 after Shutdown, 1 when the server is gone."""
    parser = argparse.ArgumentParser(prog=contract.ENCODE_ENTRY)
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--fault", action="append", default=[], metavar="POINT:COUNT:ACTION")
    arguments = parser.parse_args(argv)
    guard_parent(arguments.parent_pid)
    faults = FaultPoints.parse(arguments.fault)
    control = ChildSocket.from_fd(arguments.control_fd)
    received = control.receive()
    if received is None:
        return 1
    configure, fds = received
    if not isinstance(configure, contract.ConfigureEncode):
        parser.error(f"the first message must be ConfigureEncode, got {type(configure).__name__}")
    close_fds(fds)
    configure_child_log(configure.log_level, configure.log_format, process=configure.name)
    # FFmpeg is loaded only now, when the parent is known to live.
    from ithaka.workers.encoding.process import EncodeProcess

    return EncodeProcess(control, configure, faults).run()


if __name__ == "__main__":
    raise SystemExit(main())
