"""The exchange between the GPUs of this host: checked, timed beside public implementations, calibrated.

    python -m benchmarks.ulysses check      # all engines, bit by bit, on real devices
    python -m benchmarks.ulysses table      # µs a call, eager (in a graph), beside whichever peers are importable
    python -m benchmarks.ulysses sweep      # every launch for every shape
    python -m benchmarks.ulysses calibrate  # the same, and the table chosen from it: what cuda_calibration.json is
    python -m benchmarks.ulysses trials     # builds of the kernel that differ, side by side
    python -m benchmarks.ulysses copies     # the copy engine alone, in all the ways there are to ask for a pitched copy

A call ends when the consumer may read. Times are the median of the slower rank. One process a GPU.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import torch

from ithaka.comm_ext.build import build
from ithaka.comm_ext.ulysses.group import GroupDescriptors

NUM_GROUPS = 64
TRIALS = {
    "base": (),
    "long parameters": ("UL_FEW_PIECES=24",),
    "one block": ("UL_BLOCKS_PER_MULTIPROCESSOR=1",),
    "rounds": ("UL_ORDER=1",),
    "stretches": ("UL_ORDER=2",),
    "2 in flight": ("UL_ROUND=2",),
    "8 in flight": ("UL_ROUND=8", "UL_BLOCKS_PER_MULTIPROCESSOR=1"),
    "8 in flight, stretches": ("UL_ROUND=8", "UL_BLOCKS_PER_MULTIPROCESSOR=1", "UL_ORDER=2"),
    "1024 threads": ("UL_THREADS=1024", "UL_BLOCKS_PER_MULTIPROCESSOR=1"),
    "256 threads, 8 in flight": ("UL_THREADS=256", "UL_ROUND=8"),
    "prefetch": ("UL_PREFETCH=1",),
}
"""Builds of the kernel by what they change: names and defines."""


def main() -> int:
    """The command; exit code 0 if every rank ended well."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ulysses", description=__doc__)
    parser.add_argument("mode", choices=("check", "table", "sweep", "calibrate", "trials", "copies"))
    parser.add_argument("--ranks", type=int, default=0, help="GPUs to use; default: all")
    parser.add_argument("--directory", help="where to leave the numbers as JSON")
    options = parser.parse_args()
    num_ranks = options.ranks or torch.cuda.device_count()
    if num_ranks < 2:
        sys.stderr.write("an exchange needs two GPUs at least\n")
        return 1
    print(f"torch {torch.__version__}, {num_ranks} x {torch.cuda.get_device_name()}", flush=True)
    groups = [GroupDescriptors.create(num_ranks) for _ in range(NUM_GROUPS)]
    job = {
        "num_ranks": num_ranks,
        "mode": options.mode,
        "fds": [list(group.fds) for group in groups],
        "port": _free_port(),
        "directory": options.directory,
        "trials": _build_trials() if options.mode == "trials" else {},
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.ulysses_rank", json.dumps({**job, "rank": rank})],
            pass_fds=[fd for group in groups for fd in group.fds],
        )
        for rank in range(num_ranks)
    ]
    for group in groups:
        group.close()
    failed = any([rank.wait() for rank in ranks])
    return 1 if failed else 0


def _build_trials() -> dict[str, str]:
    """All trials compiled, at once; their libraries by name."""
    major, minor = torch.cuda.get_device_capability()
    with ThreadPoolExecutor() as pool:
        building = {name: pool.submit(build, [10 * major + minor], defines=defines) for name, defines in TRIALS.items()}
        return {name: str(built.result()) for name, built in building.items()}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
