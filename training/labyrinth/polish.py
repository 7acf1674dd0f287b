"""Go on with the decoder of a finished model, then measure and show it: ``python -m training.labyrinth.polish --out runs/p``.

With ``--seconds 0`` nothing is trained: the weights are measured and shown as they are.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from ithaka.workers.families.wan.spec import LABYRINTH
from ithaka.workers.families.wan.weights_folder import SHIPPED, load_world_model, save_world_model

from .clips import ClipMaker
from .report import write_strips, write_table
from .run_log import RunLog
from .starts import make_starts
from .strip import WALK_COLUMNS
from .train_autoencoder import train_autoencoder


def main(argv: list[str] | None = None) -> None:
    """Parse the command line, polish, write the weights, the table and the strips."""
    options = _parser().parse_args(argv)
    torch.manual_seed(options.seed)
    device = torch.device(options.device)
    log = RunLog(options.out / "log.txt")
    world = replace(load_world_model(options.weights), sampling=LABYRINTH)
    for part in (world.transformer, world.autoencoder, world.prompt_encoder):
        part.to(device=device)
    if options.seconds > 0:
        train_autoencoder(
            world.autoencoder,
            ClipMaker(options.seed, device),
            seconds=options.seconds,
            batch=options.pictures,
            compiled=False,
            decoder_only=True,
            log=log,
        )
    if options.starts > 0:
        starts = make_starts(world.autoencoder, ClipMaker(options.seed + 1, device), options.starts)
        world = replace(world, starts=starts)
    save_world_model(options.out / "weights", world)
    clips = partial(ClipMaker, device=device)
    columns = tuple(options.columns)
    if options.mazes > 0:
        write_table(options.out / "table.md", world, clips=clips, mazes=options.mazes, log=log, columns=columns, others=False)
    if options.strips:
        write_strips(options.out, world, clips=clips, columns=columns)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--weights", type=Path, default=SHIPPED)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=256, help="pictures per step")
    parser.add_argument("--starts", type=int, default=0, help="new beginnings for each look; 0 keeps the old ones")
    parser.add_argument("--mazes", type=int, default=64, help="held-out mazes of the table; 0 leaves it out")
    parser.add_argument("--strips", action="store_true", help="draw the film strips")
    parser.add_argument("--columns", type=int, nargs="+", default=list(WALK_COLUMNS), help="frames of the long walk")
    return parser


if __name__ == "__main__":
    main()
