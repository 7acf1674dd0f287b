"""From a sweep to the table of launches: ``python -m benchmarks.ulysses_choice SWEEP.json MACHINE`` prints the table. Pure.

A sweep is ``{"scatter 4680x12": {"remote=32 local=32 copied=0": µs, …}, …}``: tokens and heads of all ranks.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import sys
from collections.abc import Mapping
from typing import Any

from ithaka.comm_ext.ulysses.cuda_calibration import Launch, Row, plain_rows

Sweep = Mapping[str, Mapping[str, float]]
UNBOUNDED_BYTES = 1 << 40


def choose_table(sweep: Sweep, num_ranks: int, bytes_per_head: int, measured_on: str) -> dict[str, Any]:
    """The table in the form of the package's JSON file: for each size and length of rows the launch that is fastest both ways.

    A size, or a length, reaches halfway (in ratio) to the next measured one; the shortest length reaches down to nothing.
    """
    best: dict[int, dict[int, Launch]] = {}
    for shape in dict.fromkeys(key.split()[1] for key in sweep):
        times = [row for key, row in sweep.items() if key.split()[1] == shape]
        shared = [facts for facts in times[0] if all(facts in row for row in times)]
        fastest = min(shared, key=lambda facts: math.prod(row[facts] for row in times))
        tokens, heads = map(int, shape.split("x"))
        size = tokens * heads * bytes_per_head // num_ranks**2 * (num_ranks - 1)
        best.setdefault(size, {})[heads // num_ranks * bytes_per_head] = _launch_of(fastest)
    rows: list[Row] = []
    before: list[tuple[int, Launch]] = []
    for size, larger in itertools.zip_longest(sorted(best), sorted(best)[1:]):
        border = math.isqrt(size * larger) if larger else UNBOUNDED_BYTES
        lengths = _by_length(best[size])
        if lengths == before:
            del rows[-len(lengths) :]
        rows += [Row(num_ranks, border, launch, shortest) for shortest, launch in lengths]
        before = lengths
    return {"measured_on": measured_on, "rows": plain_rows(rows)}


def _by_length(best: Mapping[int, Launch]) -> list[tuple[int, Launch]]:
    """Launches of one size with the shortest rows that each is for, longer rows first."""
    lengths: list[tuple[int, Launch]] = []
    shorter = 0
    for row_bytes in sorted(best):
        if not lengths or lengths[-1][1] != best[row_bytes]:
            lengths.append((math.isqrt(shorter * row_bytes), best[row_bytes]))
        shorter = row_bytes
    return lengths[::-1]


def _launch_of(facts: str) -> Launch:
    found = re.fullmatch(r"remote=(\d+) local=(\d+) copied=([\d.]+)", facts)
    assert found is not None, facts
    return Launch(int(found[1]), int(found[2]), float(found[3]))


def main() -> None:
    """Print the table chosen from a sweep of two ranks with heads of 128 values in 2 bytes."""
    with open(sys.argv[1]) as file:
        print(json.dumps(choose_table(json.load(file), 2, 256, sys.argv[2]), indent=1))


if __name__ == "__main__":
    main()
