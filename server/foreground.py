"""``python -m ithaka.server.foreground``: the ``ithaka`` command in a process group of its own, for who is started by make.

Ctrl-C reaches every process of a terminal's foreground group, and make, whatever its command does with it, ends by the signal
afterwards. So this process takes the terminal over while it runs: Ctrl-C is the daemon's alone, which ends with 0, and so does
make. Ctrl-Z does nothing meanwhile: make would not notice that its command stopped, and the terminal would be lost.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator

from ithaka.server.cli import main


@contextlib.contextmanager
def own_foreground(terminal_fd: int) -> Iterator[Callable[[], None]]:
    """In a new group in the foreground of ``terminal_fd``, where ours is that; else nothing.

    Given back in the end, or by what this yields, for who ends the process at once.
    """
    group = os.getpgrp()
    if not os.isatty(terminal_fd) or os.tcgetpgrp(terminal_fd) != group or group == os.getpid():
        yield lambda: None
        return
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    os.setpgid(0, 0)
    _give_terminal(terminal_fd, os.getpgrp())

    def give_back() -> None:
        with contextlib.suppress(OSError):
            _give_terminal(terminal_fd, group)

    try:
        yield give_back
    finally:
        give_back()


def _give_terminal(terminal_fd: int, group: int) -> None:
    # A group in the background is stopped for asking, unless it ignores that.
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        os.tcsetpgrp(terminal_fd, group)
    finally:
        signal.signal(signal.SIGTTOU, before)


if __name__ == "__main__":
    with own_foreground(sys.stdin.fileno()) as give_back:
        main(before_leaving=give_back)
