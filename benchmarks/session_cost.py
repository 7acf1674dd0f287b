"""CPU that the server and the encode process spend on one streaming session, by process and by frame.

``python -m benchmarks.session_cost [-c CONFIG] [--model NAME] [--seconds 20]`` starts a daemon of its own; the Python client
decodes and acknowledges every frame. The first seconds are not counted. Wake-ups are voluntary context switches of all threads.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.daemon import Daemon, running_daemon
from ithaka_client import Client

SETTLING_S = 3.0


@dataclass(frozen=True, slots=True)
class Spent:
    """By a process's threads since they began: seconds of CPU, and how often they went to sleep of their own accord."""

    cpu_s: float
    wake_ups: int

    @staticmethod
    def by(process: psutil.Process) -> Spent:
        tasks = [Path(f"/proc/{process.pid}/task/{thread.id}") for thread in process.threads()]
        statuses = [line for task in tasks for line in (task / "status").read_text().splitlines()]
        # In nanoseconds: the CPU times of processes come in hundredths of a second.
        cpu_ns = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
        return Spent(cpu_ns / 1e9, sum(int(line.split()[1]) for line in statuses if line.startswith("voluntary_ctxt")))


def spent_by(daemon: Daemon) -> dict[str, Spent]:
    encode = [child for child in daemon.processes()[1:] if any("workers.encode" in word for word in child.cmdline())]
    return {"server": Spent.by(daemon.process), "encode": Spent.by(encode[0])}


async def measure(daemon: Daemon, model: str, seconds: float) -> tuple[Mapping[str, Spent], float, int]:
    """What each process spent, in how many seconds, for how many frames."""
    before, began_s, began_at = spent_by(daemon), time.monotonic(), 0
    async with Client(daemon.url) as client, await client.create_session(model, seed=7) as session:
        await session.control(pressed=["KeyW"])
        first_s = time.monotonic()
        async for frame in session.frames():
            now_s = time.monotonic()
            if began_at == 0 and now_s - first_s >= SETTLING_S:
                before, began_s, began_at = spent_by(daemon), now_s, frame.seq
            elif began_at and now_s - began_s >= seconds:
                after = spent_by(daemon)
                used = {
                    name: Spent(after[name].cpu_s - spent.cpu_s, after[name].wake_ups - spent.wake_ups)
                    for name, spent in before.items()
                }
                return used, now_s - began_s, frame.seq - began_at
    raise RuntimeError("the session ended early")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--config", type=Path)
    parser.add_argument("--model", help="the first one otherwise")
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    with running_daemon(options.config) as daemon:
        model = options.model or httpx.get(f"{daemon.url}/v1/models").json()["models"][0]["name"]
        used, seconds, frames = asyncio.run(measure(daemon, model, options.seconds))
    table = Table("", "CPU a frame, ms", "of a core, %", "wake-ups a frame", box=None)
    total = Spent(sum(spent.cpu_s for spent in used.values()), sum(spent.wake_ups for spent in used.values()))
    for name, spent in {**used, "together": total}.items():
        cells = (1000 * spent.cpu_s / frames, 100 * spent.cpu_s / seconds, spent.wake_ups / frames)
        table.add_row(name, *(f"{cell:.2f}" for cell in cells))
    console = Console()
    console.print(table)
    console.print(
        f"{model}: {frames} frames in {seconds:.1f} s, {frames / seconds:.1f} a second; load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
