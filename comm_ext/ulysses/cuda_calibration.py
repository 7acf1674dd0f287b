"""Which engine moves how many bytes, with how many blocks: a table measured by ``benchmarks/ulysses.py calibrate``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

MAX_REMOTE_BLOCKS = 383
"""Arrival words of one source, less the one of the copy engine."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How one call is made; equal on all ranks, since each waits for the arrival words of the others."""

    remote_blocks: int
    """Blocks that write to peers; 0 if the copy engine does it all."""
    local_blocks: int
    """Blocks that copy the own share."""
    copied: float
    """The fraction of each peer's tokens that the copy engine moves."""

    def facts(self) -> str:
        """In words, for the signature."""
        return f"remote={self.remote_blocks} local={self.local_blocks} copied={self.copied:g}"


@dataclass(frozen=True, slots=True)
class Row:
    """The launch for calls of at most ``max_wire_bytes`` from one rank to its peers, in rows of ``min_row_bytes`` or more."""

    num_ranks: int
    max_wire_bytes: int
    launch: Launch
    min_row_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Calibration:
    """The table, and where it was measured."""

    measured_on: str
    rows: tuple[Row, ...]

    def launch_for(self, num_ranks: int, wire_bytes: int, row_bytes: int, backend: str) -> Launch:
        """The launch for a call whose shortest row has ``row_bytes``; ``backend`` "sm" or "copy_engine" keeps to one engine."""
        near = min({row.num_ranks for row in self.rows}, key=lambda ranks: (abs(ranks - num_ranks), ranks))
        rows = sorted(
            (row for row in self.rows if row.num_ranks == near and row.min_row_bytes <= row_bytes),
            key=lambda row: (row.max_wire_bytes, -row.min_row_bytes),
        )
        if backend == "sm":
            rows = [row for row in rows if row.launch.copied == 0] or rows
        launch = next((row.launch for row in rows if wire_bytes <= row.max_wire_bytes), rows[-1].launch)
        if backend == "copy_engine":
            return Launch(0, max(launch.local_blocks, 1), 1.0)
        return launch

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Calibration:
        """From the form of the JSON file."""
        rows = tuple(_row(entry) for entry in plain["rows"])
        for num_ranks in {row.num_ranks for row in rows}:
            if not any(row.num_ranks == num_ranks and row.min_row_bytes == 0 for row in rows):
                raise ValueError(f"calibration has no row of {num_ranks} ranks for rows of any length")
        return cls(plain["measured_on"], rows)

    @classmethod
    def shipped(cls) -> Calibration:
        """The table of this package."""
        text = resources.files(__package__).joinpath("cuda_calibration.json").read_text()
        return cls.from_plain(json.loads(text))


def plain_rows(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The form of the JSON file."""
    return [
        {
            "num_ranks": row.num_ranks,
            "max_wire_bytes": row.max_wire_bytes,
            "min_row_bytes": row.min_row_bytes,
            "remote_blocks": row.launch.remote_blocks,
            "local_blocks": row.launch.local_blocks,
            "copied": row.launch.copied,
        }
        for row in rows
    ]


def _row(entry: dict[str, Any]) -> Row:
    launch = Launch(entry["remote_blocks"], entry["local_blocks"], entry["copied"])
    if not (0 <= launch.remote_blocks <= MAX_REMOTE_BLOCKS and launch.local_blocks >= 1 and 0 <= launch.copied <= 1):
        raise ValueError(f"calibration row out of range: {entry}")
    if (launch.remote_blocks == 0) != (launch.copied == 1):
        raise ValueError(f"calibration row moves nothing, or twice: {entry}")
    return Row(entry["num_ranks"], entry["max_wire_bytes"], launch, entry["min_row_bytes"])
