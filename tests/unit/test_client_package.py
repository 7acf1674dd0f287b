"""The Python client stands alone: a user of it needs neither torch nor the server."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "clients" / "python"
FOREIGN = ("torch", "fastapi", "pydantic", "ithaka")


def test_nothing_of_ours_and_nothing_heavy_is_loaded() -> None:
    script = f"import sys, ithaka_client, ithaka_client.__main__; print([name for name in {FOREIGN} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_imported_is_declared() -> None:
    declared = {
        name.split(">")[0] for name in tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["dependencies"]
    }
    imported = set()
    for path in (PROJECT / "ithaka_client").glob("*.py"):
        for line in path.read_text().splitlines():
            words = line.split()
            if line.startswith(("import ", "from ")):
                imported.add(words[1].split(".")[0])
    assert imported - set(sys.stdlib_module_names) - {"ithaka_client"} == declared
