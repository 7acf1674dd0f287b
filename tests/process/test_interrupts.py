"""Ctrl-C at any moment from the command's first line on: it ends calmly, and nothing is left."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from signal import SIGINT

import psutil
import pytest

CONFIG = "models: [{name: bars, family: synthetic}]\n"
# The interrupt comes while a module, the first argument, is looked for.
INTERRUPTED = """
import os, runpy, signal, sys

moment = sys.argv.pop(1)

class Interrupt:
    @staticmethod
    def find_spec(name, path, target=None):
        if name == moment:
            print("interrupted")
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt)
sys.stdout.reconfigure(line_buffering=True)
runpy.run_module("ithaka.server.cli", run_name="__main__", alter_sys=True)
"""
EARLY = ("ithaka.server.commands", "typer", "pydantic_core", "ithaka.configs.schema")


def interrupted(moment: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, moment, *arguments], capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("interrupted\n"), "nothing is said afterwards"
    return done


@pytest.mark.parametrize("moment", [*EARLY, "ithaka.server.daemon", "uvicorn", "ithaka.server.supervisor"])
def test_a_daemon_that_has_not_begun_ends_with_0_and_no_word(moment: str) -> None:
    done = interrupted(moment, "serve", "--port", "0")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("moment", [*EARLY, "ithaka.server.clip_command", "ithaka.server.supervisor"])
def test_a_clip_that_was_not_begun_ends_with_130_and_a_line(tmp_path: Path, moment: str) -> None:
    done = interrupted(moment, "generate", tmp_path / "clip.mp4")
    assert (done.returncode, done.stderr, list(tmp_path.iterdir())) == (130, "Interrupted.\n", [])


@pytest.mark.parametrize(("command", "moment"), [("doctor", "ithaka.server.doctor"), ("doctor", "av"), ("models", "typer")])
def test_the_other_commands_end_so_too(command: str, moment: str) -> None:
    done = interrupted(moment, command)
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")


@contextlib.contextmanager
def running(*command: str | Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_clip_in_the_making_is_undone(tmp_path: Path) -> None:
    config, clips = tmp_path / "bars.yaml", tmp_path / "clips"
    config.write_text(CONFIG)
    clips.mkdir()
    command = (sys.executable, "-m", "ithaka.server.cli", "generate", clips / "clip.mp4", "-n", "1000000", "-c", config)
    with running(*command) as process:
        while not list(clips.iterdir()):
            assert process.poll() is None
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(SIGINT)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said, list(clips.iterdir())) == (130, "Interrupted.\n", [])
    assert len(children) == 2
    assert psutil.wait_procs(children, timeout=3)[1] == []


def test_who_started_it_may_want_interrupts_ignored() -> None:
    """As a shell does for what runs in its background."""
    ignoring = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    command = [sys.executable, "-c", ignoring + INTERRUPTED, "typer", "models"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "labyrinth" in done.stdout
