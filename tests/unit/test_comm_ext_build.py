"""Finding a compiler, saying what is missing, and keeping what was built; with compilers of a few lines of shell."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from ithaka.comm_ext import build as builder
from ithaka.comm_ext.build import BuildError, build, find_compiler, find_library, main

NVCC = """#!/bin/sh
case "$*" in
  --version) echo "Cuda compilation tools, release {release}, V{release}.1" ;;
  --list-gpu-code) echo sm_75; echo sm_80; echo sm_90 ;;
  *)
    echo "$*" >> "{log}"
    while [ "$1" != -o ]; do shift; done
    {outcome}
    echo library > "$2" ;;
esac
"""
PARTS = ("include/crt/host_config.h", "nvvm/bin/cicc", "include/cuda_runtime.h", "include/cccl/x")


def make_toolkit(home: Path, *, without: str = "", release: str = "13.0", outcome: str = "") -> Path:
    """A toolkit of empty files, and an nvcc that writes down what it is asked."""
    for part in (part for part in PARTS if part != without):
        (home / part).parent.mkdir(parents=True, exist_ok=True)
        (home / part).touch()
    (home / "bin").mkdir(parents=True, exist_ok=True)
    nvcc = home / "bin" / "nvcc"
    nvcc.write_text(NVCC.format(release=release, log=home / "asked", outcome=outcome))
    nvcc.chmod(0o755)
    return home


def commands(home: Path) -> list[str]:
    return (home / "asked").read_text().splitlines() if (home / "asked").exists() else []


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler but the test's, no cache but its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if not (Path(folder) / "nvidia").is_dir()])
    find = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "nvcc" else find(name))


def test_without_a_compiler_it_says_which_wheels_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda self: is_file(self) and not str(self).startswith("/usr/local/cuda"))
    assert main([]) == 1
    told = capsys.readouterr().err
    for wheel in ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-cccl"):
        assert f"'{wheel}==13.0.*'" in told


@pytest.mark.parametrize(
    ("part", "wheel"),
    [*zip(PARTS, ("nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-cccl"), strict=True)],
)
def test_a_compiler_with_a_part_missing_names_the_wheel_of_its_version(tmp_path: Path, part: str, wheel: str) -> None:
    make_toolkit(tmp_path / "cuda", without=part, release="13.2")
    with pytest.raises(BuildError) as caught:
        find_compiler()
    assert str(caught.value).endswith(f"pip install '{wheel}==13.2.*'")


def test_without_a_host_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_toolkit(tmp_path / "cuda")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BuildError, match="apt-get install g"):
        find_compiler()


def test_it_builds_once_for_what_the_compiler_knows_and_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = make_toolkit(tmp_path / "cuda")
    assert find_library() is None
    assert main([]) == 0
    built = Path(capsys.readouterr().out.strip())
    assert built == find_library()
    (command,) = commands(home)
    assert "code=sm_80" in command and "code=sm_90" in command  # 100 and 120 are beyond this compiler
    assert "code=sm_100" not in command
    assert main([]) == 0
    assert len(commands(home)) == 1


def test_a_check_compiles_for_one_architecture_and_is_never_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = make_toolkit(tmp_path / "cuda")
    assert main(["--check"]) == 0
    (command,) = commands(home)
    assert command.count("-gencode") == 1
    assert find_library() is None
    assert main(["--check"]) == 0
    assert len(commands(home)) == 1
    capsys.readouterr()


def test_other_sources_are_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_toolkit(tmp_path / "cuda")
    first = build([90])
    monkeypatch.setattr(builder, "source_hash", lambda: "changed")
    assert find_library() is None
    assert build([90]) != first


def test_an_architecture_that_the_compiler_does_not_know_is_refused(tmp_path: Path) -> None:
    make_toolkit(tmp_path / "cuda")
    with pytest.raises(BuildError, match=r"compiles for \[80, 90\] of ours, asked for \[120\]"):
        build([120])


def test_a_compilation_that_fails_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_toolkit(tmp_path / "cuda", outcome="echo 'ulysses.cu(1): error' >&2; exit 2")
    assert main(["--arch", "90"]) == 1
    assert "ulysses.cu(1): error" in capsys.readouterr().err
    assert find_library() is None
    assert list((tmp_path / "cache" / "ithaka").iterdir()) == []
