"""Compile the CUDA engine once per source and machine kind: ``python -m ithaka.comm_ext.build``.

One shared library with a C ABI, no header of torch: it takes seconds with nvcc alone and serves every torch version. It lies in
a cache folder under a name made of the sources' hash and the architectures, so a stale build is never loaded.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "csrc"
CHECKED_ARCHITECTURE = 90
WANTED_ARCHITECTURES = (80, 90, 100, 120)
_MAIN_SOURCE = "ulysses.cu"
# What a compiler is made of, any of these files each, and the wheel that brings it.
_PARTS = {
    ("bin/nvcc",): "nvidia-cuda-nvcc",
    (
        "include/crt/host_config.h",
        "targets/x86_64-linux/include/crt/host_config.h",
        "targets/sbsa-linux/include/crt/host_config.h",
    ): "nvidia-cuda-crt",
    ("nvvm/bin/cicc",): "nvidia-nvvm",
    ("include/cuda_runtime.h",): "nvidia-cuda-runtime",
    ("include/cccl", "include/cuda/std", "targets/x86_64-linux/include/cccl"): "nvidia-cuda-cccl",
}


class BuildError(RuntimeError):
    """The engine can't be built here; the message says what is missing and the command that helps."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """An nvcc, with the folders that its package layout needs named."""

    nvcc: Path
    library_folders: tuple[Path, ...]
    version: str


def source_hash() -> str:
    """Of all sources, names included."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/ithaka``, or ``~/.cache/ithaka``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ithaka"


def find_compiler() -> Compiler:
    """nvcc of CUDA_HOME, of PATH, of /usr/local/cuda, or of NVIDIA's wheels in this environment. Raises BuildError."""
    homes = [Path(os.environ["CUDA_HOME"])] if os.environ.get("CUDA_HOME") else []
    if on_path := shutil.which("nvcc"):
        homes.append(Path(on_path).resolve().parent.parent)
    homes.append(Path("/usr/local/cuda"))
    homes += [Path(folder) / "nvidia" / name for folder in sys.path for name in ("cu13", "cu12") if folder]
    for home in homes:
        nvcc = home / "bin" / "nvcc"
        if not nvcc.is_file():
            continue
        answer = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
        release = re.search(r"release (\d+\.\d+)", answer.stdout)
        if release:
            _raise_if_incomplete(home, release.group(1))
            folders = tuple(home / name for name in ("lib64", "lib") if (home / name).is_dir())
            return Compiler(nvcc, folders, release.group(1))
    raise BuildError(
        f"no nvcc found. Install the CUDA toolkit and set CUDA_HOME, or install the compiler's wheels, all of one version:\n"
        f"  {_install(_PARTS.values(), '13.0')}"
    )


def _raise_if_incomplete(home: Path, release: str) -> None:
    """The wheels are installed one by one, and nvcc's own words about what it lacks are dark."""
    missing = [wheel for part, wheel in _PARTS.items() if not any((home / place).exists() for place in part)]
    if missing:
        raise BuildError(
            f"the nvcc {release} in {home} lacks parts of itself; install them, all of its version:\n"
            f"  {_install(missing, release)}"
        )
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        raise BuildError("nvcc needs a C++ compiler for the host: on Debian and Ubuntu apt-get install g++")


def _install(wheels: Iterable[str], release: str) -> str:
    return "pip install " + " ".join(f"'{wheel}=={release}.*'" for wheel in wheels)


def supported_architectures(compiler: Compiler) -> tuple[int, ...]:
    """Those of WANTED_ARCHITECTURES that the compiler knows."""
    answer = subprocess.run([compiler.nvcc, "--list-gpu-code"], capture_output=True, text=True, check=False)
    known = {int(number) for number in re.findall(r"sm_(\d+)\b", answer.stdout)}
    return tuple(architecture for architecture in WANTED_ARCHITECTURES if architecture in known)


def _library_path(architectures: Sequence[int], defines: Sequence[str], check_only: bool) -> Path:
    name = "-".join((source_hash(), *map(str, architectures)))
    if defines:
        return cache_folder() / f"trial-{name}-{hashlib.blake2b(repr(defines).encode(), digest_size=4).hexdigest()}.so"
    return cache_folder() / f"{'check' if check_only else 'ulysses'}-{name}.so"


def find_library() -> Path | None:
    """A build of the present sources, for whatever architectures."""
    builds = sorted(cache_folder().glob(f"ulysses-{source_hash()}-*.so"))
    return max(builds, key=lambda path: len(path.name)) if builds else None


def build(
    architectures: Sequence[int] | None = None,
    *,
    defines: Sequence[str] = (),
    check_only: bool = False,
    verbose: bool = False,
) -> Path:
    """Compile unless it is cached; the library's path. Raises BuildError.

    ``find_library`` never finds what was built with ``defines`` (NAME=VALUE; an engine that a test breaks on purpose), nor what
    is ``check_only``: where the device is of another kind, that would hide that there is none for it.
    """
    compiler = find_compiler()
    supported = supported_architectures(compiler)
    chosen = tuple(architectures) if architectures is not None else supported
    if not chosen or not set(chosen) <= set(supported):
        raise BuildError(f"nvcc {compiler.version} compiles for {list(supported)} of ours, asked for {list(chosen)}")
    target = _library_path(chosen, defines, check_only)
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        fresh = Path(folder) / target.name
        command = [
            str(compiler.nvcc),
            *("-O3", "-std=c++17", "-lineinfo", "-shared", "-cudart", "static", "-cudadevrt", "none"),
            *("-Xcompiler", "-fPIC,-Wall", "--threads", "0"),
            f'-DITHAKA_SOURCE_HASH="{source_hash()}"',
            f"-I{SOURCES}",
            *(f"-D{define}" for define in defines),
            *(f"-gencode=arch=compute_{number},code=sm_{number}" for number in chosen),
            *(f"-L{folder}" for folder in compiler.library_folders),
            *(("-Xptxas", "-v") if verbose else ()),
            *("-o", str(fresh), str(SOURCES / _MAIN_SOURCE)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        if verbose:
            sys.stderr.write(done.stderr)
        os.replace(fresh, target)
    return target


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Exit code 0: built; 1: it can't be, and why."""
    parser = argparse.ArgumentParser(prog="python -m ithaka.comm_ext.build", description="Compile the CUDA engine.")
    parser.add_argument("--arch", type=int, action="append", help="an architecture, for example 90; default: all known ones")
    parser.add_argument("--check", action="store_true", help="compile for one architecture only, to see that it compiles")
    parser.add_argument("--verbose", action="store_true", help="show the compiler's report of registers and stack")
    options = parser.parse_args(arguments)
    architectures = options.arch or ([CHECKED_ARCHITECTURE] if options.check else None)
    try:
        path = build(architectures, check_only=options.check, verbose=options.verbose)
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
