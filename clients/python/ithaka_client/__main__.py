"""``ithaka-client record OUT.mp4``: watch a session and keep what arrives. ``ithaka-client bench``: load, and its figures."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from ithaka_client.bench import cli as bench
from ithaka_client.client import Client
from ithaka_client.errors import IthakaError, NotFoundError
from ithaka_client.stream import Outcome


def main() -> None:
    """Exit code 0: recorded and delivered; 1: something went wrong, the message says what."""
    parser = argparse.ArgumentParser(prog="ithaka-client", description="Client of the Ithaka daemon.")
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="record a session to an MP4 file, as it was received")
    record.add_argument("path", metavar="OUT.mp4")
    record.add_argument("--url", default="http://127.0.0.1:8765", help="of the daemon; its key in ITHAKA_API_KEY")
    record.add_argument("--model", help="the first one otherwise")
    record.add_argument("--frames", type=int, default=160)
    record.add_argument("--seed", type=int)
    record.add_argument("--prompt", default="")
    record.add_argument("--hold", nargs="*", default=[], metavar="KEY", help="keys held from the start, e.g. KeyW")
    record.add_argument("--exact", action="store_true", help="the model's samples bit for bit")
    bench.add_command(commands)
    options = parser.parse_args()
    try:
        if options.command == "bench":
            sys.exit(bench.run_command(options))
        outcome = asyncio.run(_record(options))
    except (IthakaError, OSError) as error:
        sys.exit(f"ithaka-client: {error}")
    sys.stdout.write(f"{options.path}: {outcome.decoded_count} frames\n")
    sys.exit(0 if outcome.delivered else "ithaka-client: the daemon did not confirm the delivery of all frames")


async def _record(options: argparse.Namespace) -> Outcome:
    async with (
        Client(options.url, os.environ.get("ITHAKA_API_KEY")) as client,
        await client.create_session(
            options.model or await _first_model(client),
            seed=options.seed,
            prompt=options.prompt,
            pixels="exact" if options.exact else "lossy",
            max_frames=options.frames,
        ) as session,
    ):
        await session.connect()
        session.record(options.path)
        if options.hold:
            await session.control(pressed=options.hold)
        async for _ in session.frames():
            pass
        assert session.outcome is not None
        return session.outcome


async def _first_model(client: Client) -> str:
    models = await client.models()
    if not models:
        raise NotFoundError("model_unknown", "The daemon serves no model.", status=404)
    return models[0].name


if __name__ == "__main__":
    main()
