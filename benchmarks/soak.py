"""Create, stream and end sessions over and over: memory, descriptors and processes must stay flat, and no frame be lost.

``python -m benchmarks.soak --cycles 1000`` starts a daemon of its own on the synthetic family.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.daemon import Daemon, running_daemon
from ithaka_client import Client

CONFIG = """
models:
  - {name: barcodes, family: synthetic, ranks: 2, max_sessions: 2, options: {width: 320, height: 192, fps: 60}}
"""
MAX_GROWTH_MIB = 24.0
"""Of the whole tree's unique memory over the run, after the warm-up cycles; allocators breathe about this much."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The daemon and all its children together, between two sessions."""

    unique_mib: float
    num_fds: int
    num_processes: int


@dataclass(slots=True)
class Soak:
    frames: int = 0
    lost: int = 0
    undelivered: int = 0
    samples: list[Sample] = field(default_factory=list)

    @property
    def growth_mib(self) -> float:
        """Median of the last quarter against the median of the first."""
        quarter = max(1, len(self.samples) // 4)
        memory = [sample.unique_mib for sample in self.samples]
        return statistics.median(memory[-quarter:]) - statistics.median(memory[:quarter])

    @property
    def growth_fds(self) -> int:
        """What stays: a sample may still see the connection that has just been closed."""
        quarter = max(1, len(self.samples) // 4)
        descriptors = [sample.num_fds for sample in self.samples]
        return min(descriptors[-quarter:]) - min(descriptors[:quarter])

    def complaints(self) -> list[str]:
        """What is not flat or not whole; empty is good."""
        found = []
        if self.lost or self.undelivered:
            found.append(f"{self.lost} frames lost, {self.undelivered} sessions not confirmed as delivered")
        if len({sample.num_processes for sample in self.samples}) > 1:
            found.append("the number of processes changed")
        if self.growth_fds > 0:
            found.append(f"{self.growth_fds} more descriptors stay open")
        if self.growth_mib > MAX_GROWTH_MIB:
            found.append(f"memory grew by {self.growth_mib:.1f} MiB")
        return found


async def soak(daemon: Daemon, *, cycles: int, frames: int, warm_up: int = 3) -> Soak:
    """Run ``cycles`` sessions of ``frames`` frames, one after another, and look at the processes after each."""
    result = Soak()
    for cycle in track(range(warm_up + cycles), "soak", console=Console(stderr=True)):
        async with Client(daemon.url) as client:
            session = await client.create_session("barcodes", seed=cycle, pacing="unpaced", max_frames=frames)
            async with session:
                seqs = [frame.seq async for frame in session.frames()]
        result.frames += len(seqs)
        result.lost += frames - len(seqs) if seqs == list(range(1, len(seqs) + 1)) else frames
        result.undelivered += not (session.outcome and session.outcome.delivered)
        if cycle >= warm_up:
            result.samples.append(_sample(daemon))
    return result


def _sample(daemon: Daemon) -> Sample:
    processes = daemon.processes()
    return Sample(
        sum(process.memory_full_info().uss for process in processes) / 2**20,
        sum(process.num_fds() for process in processes),
        len(processes),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--frames", type=int, default=24)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "soak.yaml")
        config.write_text(CONFIG)
        with running_daemon(config) as daemon:
            result = asyncio.run(soak(daemon, cycles=options.cycles, frames=options.frames))
    first, last = result.samples[0], result.samples[-1]
    table = Table("", "first", "last", box=None)
    table.add_row("unique memory, MiB", f"{first.unique_mib:.1f}", f"{last.unique_mib:.1f}")
    table.add_row("descriptors", str(first.num_fds), str(last.num_fds))
    table.add_row("processes", str(first.num_processes), str(last.num_processes))
    console = Console()
    console.print(table)
    console.print(f"{options.cycles} sessions, {result.frames} frames, {result.lost} lost, memory {result.growth_mib:+.1f} MiB")
    for complaint in result.complaints():
        console.print(f"[red]{complaint}[/]")
    return 1 if result.complaints() else 0


if __name__ == "__main__":
    sys.exit(main())
