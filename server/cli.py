"""The ``ithaka`` command's first lines: Ctrl-C ends calmly while ``commands.py``, and all that it needs, is still imported."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

EXIT_INTERRUPTED = 130


def main(before_leaving: Callable[[], None] = lambda: None) -> None:
    """Entry point of the ``ithaka`` script; an early Ctrl-C calls ``before_leaving``, then ends the process."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""

    def leave(_number: int, _frame: FrameType | None) -> None:
        # Nothing is to be undone yet. An exception might get lost in a module that is half imported.
        before_leaving()
        if command == "serve":
            os._exit(0)
        os.write(2, b"Interrupted.\n")
        os._exit(EXIT_INTERRUPTED)

    # Who started us may want it ignored, as a shell does for what runs in its background.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
    from ithaka.server.commands import app

    try:
        app()
    finally:
        # It is decided how the process ends: a key pressed again while the interpreter goes changes nothing.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
