"""What a client sees of a daemon: first frame, frames per second, key press to picture, and how long a decoded frame took.

``python -m benchmarks.client_e2e [--url URL | -c CONFIG] [--model NAME] [--seconds 20] [--browser] [--json FILE]``

Without ``--url`` a daemon is started for the occasion. Times end at the client, when a picture is decoded:

- *first frame*: from the call that creates the session;
- *key to picture*: from sending a key press or release to the first decoded frame that used it, at random moments;
- *frame to picture*: from the end of a frame's generation to its decoding (the frame's age when it was sent plus the time
  from its arrival to its picture; the way over the network between the two is not in it);
- *frame to acknowledgement*: from generation to the decoded acknowledgement, interpolated in the daemon's own histogram.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.client_e2e_browser import measure_browser
from benchmarks.daemon import running_daemon
from ithaka_client import Client, Session

KEY = "KeyW"
HISTOGRAM = "ithaka_frame_decoded_seconds"


@dataclass(slots=True)
class Measured:
    """Times in milliseconds; ``fps`` without the first second."""

    client: str
    model: str
    first_frame_ms: float
    fps: float
    frames: int
    delivered: bool | None
    key_ms: list[float] = field(default_factory=list)
    picture_ms: list[float] = field(default_factory=list)


async def measure_python(url: str, model: str, seconds: float) -> Measured:
    async with Client(url) as client:
        created_s = time.monotonic()
        async with await client.create_session(model, seed=7) as session:
            decoded_s: list[float] = []
            picture_ms, key_ms = [], []
            sent_s: dict[int, float] = {}
            pressing: asyncio.Task[None] | None = None
            async for frame in session.frames():
                decoded_s.append(frame.decoded_at_s)
                picture_ms.append(frame.age_ms + 1000 * (frame.decoded_at_s - frame.received_at_s))
                for control_id in [sent for sent in sent_s if sent <= frame.control_id]:
                    key_ms.append(1000 * (frame.decoded_at_s - sent_s.pop(control_id)))
                pressing = pressing or asyncio.create_task(_press_keys(session, sent_s))
                if frame.decoded_at_s - created_s > seconds and not pressing.done():
                    pressing.cancel()
                    await session.end()
            assert session.outcome is not None
            return Measured(
                client="Python",
                model=model,
                first_frame_ms=1000 * (decoded_s[0] - created_s),
                fps=rate_of(decoded_s),
                frames=len(decoded_s),
                delivered=session.outcome.delivered,
                key_ms=key_ms,
                picture_ms=picture_ms,
            )


async def _press_keys(session: Session, sent_s: dict[int, float]) -> None:
    """Down and up at moments that keep no step with the frames."""
    generator, is_down = random.Random(7), False
    while True:
        await asyncio.sleep(generator.uniform(0.2, 0.5))
        at_s = time.monotonic()
        pressed, released = ([], [KEY]) if is_down else ([KEY], [])
        sent_s[await session.control(pressed=pressed, released=released)] = at_s
        is_down = not is_down


def rate_of(decoded_s: list[float]) -> float:
    """Frames per second after the first second."""
    steady = [at_s for at_s in decoded_s if at_s > decoded_s[0] + 1]
    return (len(steady) - 1) / (steady[-1] - steady[0]) if len(steady) > 1 else 0.0


def acknowledged_ms(metrics: str, model: str, ranks: tuple[int, ...]) -> list[float]:
    """Percentiles of generation → decoded acknowledgement, interpolated between the histogram's bounds."""
    pattern = rf'^{HISTOGRAM}_bucket{{le="([^"]+)",model="{re.escape(model)}"}} (\S+)$'
    buckets = [(float(bound), float(count)) for bound, count in re.findall(pattern, metrics, re.MULTILINE)]
    if not buckets or buckets[-1][1] == 0:
        return [float("nan")] * len(ranks)
    bounds = [0.0, *(bound for bound, _ in buckets[:-1]), buckets[-2][0]]
    counts = [0.0, *(count for _, count in buckets)]
    return [1000 * float(np.interp(rank / 100 * counts[-1], counts, bounds)) for rank in ranks]


def summary(measured: Measured, metrics: str) -> dict[str, Any]:
    """What goes into the JSON file."""
    ack_p50, ack_p95 = acknowledged_ms(metrics, measured.model, (50, 95))
    return {
        "client": measured.client,
        "model": measured.model,
        "frames": measured.frames,
        "delivered": measured.delivered,
        "first_frame_ms": round(measured.first_frame_ms, 1),
        "fps": round(measured.fps, 2),
        "key_presses": len(measured.key_ms),
        **_percentiles("key", measured.key_ms),
        **_percentiles("picture", measured.picture_ms),
        "ack_p50_ms": round(ack_p50, 1),
        "ack_p95_ms": round(ack_p95, 1),
    }


def _percentiles(name: str, values_ms: list[float]) -> dict[str, float]:
    p50, p95 = np.percentile(values_ms, (50, 95)) if values_ms else (float("nan"), float("nan"))
    return {f"{name}_p50_ms": round(float(p50), 1), f"{name}_p95_ms": round(float(p95), 1)}


def table_of(row: dict[str, Any]) -> Table:
    table = Table(title=f"{row['model']}, seen by {row['client']}", show_header=False)
    table.add_row("frames per second", f"{row['fps']:.1f}")
    table.add_row("first frame after create", f"{row['first_frame_ms']:.0f} ms")
    for name, words in (("key", "key to picture"), ("picture", "frame to picture"), ("ack", "frame to acknowledgement")):
        table.add_row(words, f"p50 {row[f'{name}_p50_ms']:.1f} ms, p95 {row[f'{name}_p95_ms']:.1f} ms")
    table.add_row("frames, delivered", f"{row['frames']}, {row['delivered']}")
    table.add_row("key presses and releases", str(row["key_presses"]))
    return table


@contextlib.contextmanager
def daemon_at(url: str | None, config: Path | None) -> Iterator[str]:
    if url is not None:
        yield url.rstrip("/")
        return
    with running_daemon(config) as daemon:
        yield daemon.url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", help="of a running daemon without keys")
    where.add_argument("-c", "--config", type=Path, help="for a daemon that is started here")
    parser.add_argument("--model", help="the first one otherwise")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--browser", action="store_true", help="measure in Chromium instead of the Python client")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    with daemon_at(options.url, options.config) as url:
        model = options.model or httpx.get(f"{url}/v1/models").json()["models"][0]["name"]
        if options.browser:
            measured = Measured(client="Chromium", model=model, **measure_browser(url, model, options.seconds))
        else:
            measured = asyncio.run(measure_python(url, model, options.seconds))
        row = summary(measured, httpx.get(f"{url}/metrics").text)
    Console().print(table_of(row))
    if options.json is not None:
        options.json.write_text(json.dumps(row, indent=2) + "\n")


if __name__ == "__main__":
    main()
