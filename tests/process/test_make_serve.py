"""``make serve`` in a real terminal: one Ctrl-C, and make ends as calmly as the daemon."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
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
# Waits for the key while the module, its first argument, is looked for; then it is as if nothing had been.
HOLDING = """
import runpy, signal, sys

moment = sys.argv.pop(1)

class Hold:
    @staticmethod
    def find_spec(name, path, target=None):
        if name == moment:
            print("importing", flush=True)
            signal.pause()

sys.meta_path.insert(0, Hold)
runpy.run_module("ithaka.server.foreground", run_name="__main__", alter_sys=True)
"""
PYTHON_THAT_HOLDS = """#!/bin/bash
shift 3  # -P -m ithaka.server.foreground
{python} -P {code} {moment} "$@"
status=$?
{python} -c 'import os; print("given back:", os.tcgetpgrp(0) == os.getpgrp())'
exit $status
"""
CTRL_C, CTRL_Z = b"\x03", b"\x1a"


class Terminal:
    """``make serve`` in the foreground of a terminal of its own."""

    def __init__(self, config: Path, *overrides: str) -> None:
        self.fd, inner_fd = pty.openpty()
        self.said = ""
        try:
            self.make = subprocess.Popen(
                # What is installed stays as it is.
                ["make", "--no-print-directory", "-o", ".venv/.ready", "serve", f"CONFIG={config}", *overrides],
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

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.fd)

    def _read(self) -> str:
        # A terminal that nobody holds any more is an error to read.
        with contextlib.suppress(OSError):
            return re.sub(r"\x1b\[[0-9;]*m", "", os.read(self.fd, 4096).decode(errors="replace"))
        return ""


@pytest.fixture
def terminal(heeds_hangups: None, tmp_path: Path) -> Iterator[Terminal]:
    path = tmp_path / "terminal.yaml"
    path.write_text(CONFIG)
    with opened(path) as terminal:
        terminal.read_until("daemon.listening")
        yield terminal


@contextlib.contextmanager
def opened(config: Path, *overrides: str) -> Iterator[Terminal]:
    opened = Terminal(config, *overrides)
    try:
        yield opened
    finally:
        for process in psutil.Process(opened.make.pid).children(recursive=True) if opened.make.poll() is None else ():
            process.kill()
        opened.make.kill()
        opened.make.wait()
        opened.close()


def test_one_ctrl_c_ends_make_with_0_and_no_word_of_an_error(terminal: Terminal) -> None:
    children = psutil.Process(terminal.make.pid).children(recursive=True)
    terminal.press(CTRL_C)
    terminal.read_to_the_end()
    assert terminal.make.wait(30) == 0
    assert "daemon.stopped" in terminal.said and "forced=False" in terminal.said
    assert not re.search(r"\*\*\*|Interrupt|Error|Traceback|make:", terminal.said), terminal.said
    assert psutil.wait_procs(children, timeout=3)[1] == []


@pytest.mark.parametrize("moment", ["ithaka.server.commands", "pydantic_core", "uvicorn"])
def test_so_does_one_in_the_first_moments(tmp_path: Path, moment: str) -> None:
    python = tmp_path / "python"
    python.write_text(PYTHON_THAT_HOLDS.format(python=sys.executable, code=tmp_path / "holding.py", moment=moment))
    python.chmod(0o755)
    (tmp_path / "holding.py").write_text(HOLDING)
    config = tmp_path / "terminal.yaml"
    config.write_text(CONFIG)
    with opened(config, f"BIN={tmp_path}") as terminal:
        terminal.read_until("importing")
        terminal.press(CTRL_C)
        terminal.read_to_the_end()
        assert terminal.make.wait(30) == 0
        # The terminal's echo may come before the end of the line.
        assert re.sub(r"\s", "", terminal.said) == "importing^Cgivenback:True"


def test_a_closed_terminal_ends_everybody(terminal: Terminal) -> None:
    everybody = psutil.Process(terminal.make.pid).children(recursive=True)
    terminal.close()
    assert psutil.wait_procs(everybody, timeout=30)[1] == []


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
