"""How many frames a fragmented MP4 holds, from its boxes alone (ISO/IEC 14496-12, 8.8): nothing is decoded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_SIZE_IN_64_BITS = 1
_TO_THE_END = 0


def count_frames(path: Path) -> int:
    """Samples of all whole fragments; what a killed or a running writer has begun is none. Raises OSError."""
    total = waiting = 0
    with path.open("rb") as file:
        end = os.fstat(file.fileno()).st_size
        for kind, start, stop in _boxes(file, 0, end):
            if kind == b"moof":
                waiting = _samples(file, start, stop)
            elif kind == b"mdat":
                total += waiting
                waiting = 0
    return total


def _samples(file: BinaryIO, start: int, stop: int) -> int:
    runs = [
        run_start
        for kind, traf_start, traf_stop in _boxes(file, start, stop)
        if kind == b"traf"
        for run, run_start, run_stop in _boxes(file, traf_start, traf_stop)
        if run == b"trun" and run_stop - run_start >= 8
    ]
    total = 0
    for run_start in runs:
        # Version and flags, then the number of samples.
        file.seek(run_start + 4)
        total += int.from_bytes(file.read(4), "big")
    return total


def _boxes(file: BinaryIO, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Type, and where the contents begin and end, of each whole box; at the first that is not whole it stops."""
    while end - start >= 8:
        file.seek(start)
        head = file.read(8)
        size, contents = int.from_bytes(head[:4], "big"), start + 8
        if size == _SIZE_IN_64_BITS:
            size, contents = int.from_bytes(file.read(8), "big"), start + 16
        elif size == _TO_THE_END:
            size = end - start
        if size < contents - start or start + size > end:
            return
        yield head[4:8], contents, start + size
        start += size
