"""How long from `ithaka serve` to the first session's first frame: ``python -m benchmarks.startup [-c CONFIG] [--runs 3]``."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from pathlib import Path

from rich.console import Console

from benchmarks.daemon import running_daemon
from ithaka_client import Client


async def first_frame_s(url: str) -> float:
    """Seconds from create to the first decoded frame of the first model."""
    async with Client(url) as client:
        model = (await client.models())[0]
        started = time.monotonic()
        async with await client.create_session(model.name) as session:
            async for _ in session.frames():
                return time.monotonic() - started
    raise RuntimeError("the session had no frame")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--config", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    ready, first = [], []
    for _ in range(options.runs):
        with running_daemon(options.config) as daemon:
            ready.append(daemon.ready_s)
            first.append(asyncio.run(first_frame_s(daemon.url)))
    console = Console()
    console.print(f"/readyz after {statistics.median(ready):.2f} s (median of {options.runs}; worst {max(ready):.2f})")
    console.print(f"first frame after create {statistics.median(first):.2f} s (worst {max(first):.2f})")


if __name__ == "__main__":
    main()
