"""``ithaka-client bench``: load for a daemon, and the figures of it."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from ithaka_client.bench.load import run
from ithaka_client.bench.plan import CODECS, TRANSPORTS, Plan
from ithaka_client.bench.report import as_json, as_svg, as_table
from ithaka_client.errors import UsageError


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    bench = commands.add_parser("bench", help="play many sessions at once and account for every frame")
    bench.add_argument("--url", default="http://127.0.0.1:8765", help="of the daemon; its key in ITHAKA_API_KEY")
    bench.add_argument("--model", required=True)
    bench.add_argument("--sessions", type=int, default=1)
    bench.add_argument("--transport", choices=TRANSPORTS, default="websocket")
    bench.add_argument("--codec", choices=CODECS, default="h264", help="of the track of --transport webrtc")
    bench.add_argument("--delivery", choices=("lossless", "live"), default="lossless")
    bench.add_argument("--seconds", type=float, default=20.0, help="of each session, from its hello on")
    bench.add_argument("--controls", type=float, default=10.0, metavar="PER_S", help="control messages a second; 0 for none")
    bench.add_argument("--no-decode", action="store_true", help="receive only; for a client with fewer cores than the server")
    bench.add_argument("--json", type=Path, metavar="FILE")
    bench.add_argument("--plot", type=Path, metavar="FILE.svg")


def run_command(arguments: argparse.Namespace) -> int:
    """Exit status 0, 1 when a session failed or lossless frames were lost. Raises IthakaError, OSError."""
    plan = Plan(
        url=arguments.url.rstrip("/"),
        api_key=os.environ.get("ITHAKA_API_KEY"),
        model=arguments.model,
        num_sessions=arguments.sessions,
        transport=arguments.transport,
        delivery=arguments.delivery,
        duration_s=arguments.seconds,
        controls_per_s=arguments.controls,
        decodes=not arguments.no_decode,
        codec=arguments.codec,
    )
    if (problem := plan.problem()) is not None:
        raise UsageError(problem)
    result = asyncio.run(run(plan))
    sys.stdout.write(as_table(result) + "\n")
    if arguments.json is not None:
        arguments.json.write_text(as_json(result))
    if arguments.plot is not None:
        arguments.plot.write_text(as_svg(result))
    is_whole = plan.delivery == "live" or all(not known.lost_frames for known in result.sessions)
    return 0 if is_whole and all(known.error is None for known in result.sessions) else 1
