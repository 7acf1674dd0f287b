"""``make serve`` in a real terminal: one Ctrl-C, and make ends as calmly as the daemon."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
CONFIG = """
server: {port: 0}
models: [{name: barcodes, family: synthetic}]
"""
CTRL_C, CTRL_Z = b"\x03", b"\x1a"


class Terminal:
    """``make serve`` in the foreground of a terminal of its own."""

    def __init__(self, config: Path) -> None:
        self.fd, inner_fd = pty.openpty()
        self.said = ""
        try:
            self.make = subprocess.Popen(
                # What is installed stays as it is.
                ["make", "--no-print-directory", "-o", ".venv/.ready", "serve", f"CONFIG={config}"],
                cwd=ROOT,
                stdin=inner_fd,
                stdout=inner_fd,
                stderr=inner_fd,
                start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            )
        finally:
            os.close(inner_fd)

    def read_until(self, wanted: str) -> None:
        while not re.search(wanted, self.said):
            self.said += self._read() or pytest.fail(f"it ended: {self.said}")

    def read_to_the_end(self) -> None:
        while piece := self._read():
            self.said += piece

    def press(self, key: bytes) -> None:
        os.write(self.fd, key)

    def _read(self) -> str:
        # A terminal that nobody holds any more is an error to read.
        with contextlib.suppress(OSError):
            return re.sub(r"\x1b\[[0-9;]*m", "", os.read(self.fd, 4096).decode(errors="replace"))
        return ""


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    path = tmp_path / "terminal.yaml"
    path.write_text(CONFIG)
    opened = Terminal(path)
    try:
        opened.read_until("daemon.listening")
        yield opened
    finally:
        for process in psutil.Process(opened.make.pid).children(recursive=True) if opened.make.poll() is None else ():
            process.kill()
        opened.make.kill()
        opened.make.wait()
        os.close(opened.fd)


def test_one_ctrl_c_ends_make_with_0_and_no_word_of_an_error(terminal: Terminal) -> None:
    children = psutil.Process(terminal.make.pid).children(recursive=True)
    terminal.press(CTRL_C)
    terminal.read_to_the_end()
    assert terminal.make.wait(30) == 0
    assert "daemon.stopped" in terminal.said and "forced=False" in terminal.said
    assert not re.search(r"\*\*\*|Interrupt|Error|Traceback|make:", terminal.said), terminal.said
    assert psutil.wait_procs(children, timeout=3)[1] == []


def test_ctrl_z_leaves_the_terminal_usable(terminal: Terminal) -> None:
    terminal.press(CTRL_Z + CTRL_C)
    terminal.read_to_the_end()
    assert terminal.make.wait(30) == 0


def test_a_killed_daemon_is_make_s_error(terminal: Terminal) -> None:
    (daemon,) = psutil.Process(terminal.make.pid).children()
    daemon.send_signal(signal.SIGKILL)
    terminal.read_to_the_end()
    assert terminal.make.wait(30) == 2
    assert "Killed" in terminal.said
