"""Rules of the house that a reader should be able to rely on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_LINES = {".py": 400, ".ts": 400, ".cpp": 400, ".cu": 600, ".cuh": 600}
BANNED_NAMES = {"utils", "helpers", "common", "manager", "misc"}


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and not (ROOT / name).is_symlink()]


def test_files_are_small_and_named_for_a_noun() -> None:
    for path in tracked():
        limit = MAX_LINES.get(path.suffix)
        if limit and path.exists():
            assert len(path.read_text().splitlines()) <= limit, path
            assert path.stem not in BANNED_NAMES, path


def test_the_map_fits_a_screen() -> None:
    assert len((ROOT / "docs/structure.md").read_text().splitlines()) <= 60


def test_lock_files_hold_hashes_and_no_addresses() -> None:
    for path in tracked():
        if path.name.endswith(".lock") or path.name == "package-lock.json":
            text = path.read_text()
            assert not re.search(r"https?://[^\"\s]*(\.whl|\.tgz|\.tar\.gz)", text), path
            assert "sha256:" in text or '"integrity": "sha512-' in text, path


def test_links_between_pages_lead_somewhere() -> None:
    for page in (path for path in tracked() if path.suffix == ".md" and path.exists()):
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


@pytest.mark.parametrize(
    "module", ["ithaka.server.commands", "ithaka.server.daemon", "ithaka.server.supervisor", "ithaka.workers.encode"]
)
def test_server_and_encode_load_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit(any(name in sys.modules for name in ('torch', 'diffusers')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
