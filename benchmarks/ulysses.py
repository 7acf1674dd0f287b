"""The exchange between the GPUs of this host: checked, timed beside public implementations, calibrated.

    python -m benchmarks.ulysses check      # all engines, bit by bit, on real devices
    python -m benchmarks.ulysses table      # µs a call, eager (in a graph), beside whichever peers are importable
    python -m benchmarks.ulysses sweep      # every launch for every shape
    python -m benchmarks.ulysses calibrate  # the same, and the table chosen from it: what cuda_calibration.json is

A call ends when the consumer may read. Times are the median of the slower rank. One process a GPU.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys

import torch

from ithaka.comm_ext.ulysses.group import GroupDescriptors

NUM_GROUPS = 64


def main() -> int:
    """The command; exit code 0 if every rank ended well."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ulysses", description=__doc__)
    parser.add_argument("mode", choices=("check", "table", "sweep", "calibrate"))
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
