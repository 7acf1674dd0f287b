"""Train the labyrinth: ``python -m training.labyrinth.train --out runs/labyrinth`` (a GPU, minutes; resumable)."""

from __future__ import annotations

import argparse
import copy
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from ithaka.workers.families.wan.autoencoder import TinyAutoencoder
from ithaka.workers.families.wan.model import CausalWanModel
from ithaka.workers.families.wan.prompt import PromptEncoder
from ithaka.workers.families.wan.spec import LABYRINTH
from ithaka.workers.families.wan.weights_folder import WorldModel, save_world_model

from .clips import ClipMaker
from .distil import Distiller, frozen_copy
from .render import render
from .report import write_strips, write_table
from .run_log import RunLog
from .starts import make_starts
from .state import load_state, save_state
from .strip import WALK_COLUMNS
from .train_autoencoder import train_autoencoder
from .train_transformer import LatentBank, Trainer, TrainingPlan

RENDER_BLOCK = 256


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and run the stages in order."""
    options = _parser().parse_args(argv)
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device(options.device)
    log = RunLog(options.out / "log.txt")
    compiled = device.type == "cuda"
    renderer = torch.compile(render, dynamic=False) if compiled else render
    clips = ClipMaker(options.seed + 1, device, renderer, RENDER_BLOCK if compiled else None)

    transformer, prompt_encoder = CausalWanModel().to(device), PromptEncoder(64).to(device)
    autoencoder = TinyAutoencoder().to(device)
    modules = {"transformer": transformer, "prompt_encoder": prompt_encoder, "autoencoder": autoencoder}
    first_step = load_state(options.resume, modules) if options.resume is not None else 0
    teach = partial(train_autoencoder, autoencoder, clips, batch=options.pictures, log=log)
    if options.autoencoder_seconds > 0:
        teach(seconds=options.autoencoder_seconds, compiled=compiled)
    if options.decoder_seconds > 0:
        teach(seconds=options.decoder_seconds, compiled=False, decoder_only=True)
    autoencoder.requires_grad_(False).eval().to(memory_format=torch.channels_last)

    plan = TrainingPlan(
        seconds=options.transformer_seconds,
        clips_per_step=options.clips,
        num_frames=options.frames,
        window=LABYRINTH.window,
        muon_rate=options.muon_rate,
        adamw_rate=options.adamw_rate,
        decay=options.decay,
        bank_clips=options.bank,
        compiled=compiled,
    )
    bank = LatentBank(clips, autoencoder, plan.bank_clips, plan.num_frames)
    log(f"bank of {plan.bank_clips} clips is ready")
    trainer = Trainer(transformer, prompt_encoder, plan)
    step = trainer.train(bank, log, first_step=first_step)
    log(f"transformer trained to step {step}")
    save_state(options.out, modules, step)
    trainer.swap_means()

    export = partial(_export, autoencoder=autoencoder, clips=ClipMaker(77, device), starts_per_theme=options.starts, log=log)
    model = export(options.out / "weights", trainer)
    clips_of = partial(ClipMaker, device=device)
    columns = tuple(options.columns)
    measure = partial(write_table, clips=clips_of, mazes=options.mazes, log=log, columns=columns, others=True)
    if options.distil_seconds > 0:
        if options.mazes > 0:
            measure(options.out / "teacher.md", model)
        student_plan = replace(plan, seconds=options.distil_seconds, decay=0.6, warmup_steps=30, ema_steps=60)
        student_plan = replace(student_plan, muon_rate=options.distil_rate, adamw_rate=options.distil_rate / 4)
        teacher = frozen_copy(trainer)
        student = Trainer(transformer, prompt_encoder, student_plan)
        num_steps = Distiller(student, teacher, LABYRINTH.levels[2][1]).train(bank, log)
        log(f"distilled for {num_steps} steps")
        student.swap_means()
        model = export(options.out / "weights", student)
    if options.mazes > 0:
        measure(options.out / "table.md", model)
    if options.strips:
        write_strips(options.out, model, clips=clips_of, columns=columns)


def _export(
    folder: Path, trainer: Trainer, autoencoder: TinyAutoencoder, clips: ClipMaker, starts_per_theme: int, log: RunLog
) -> WorldModel:
    transformer = CausalWanModel().to(clips.device)
    transformer.load_state_dict(trainer.clip_model.model.state_dict())
    model = WorldModel(
        transformer.requires_grad_(False).eval(),
        copy.deepcopy(autoencoder).eval(),
        copy.deepcopy(trainer.prompt_encoder).requires_grad_(False),
        make_starts(autoencoder, clips, starts_per_theme),
        LABYRINTH,
    )
    save_world_model(folder, model)
    log(f"weights written to {folder}")
    return model


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for weights, state, table and film strips")
    parser.add_argument("--resume", type=Path, help="folder of an earlier run, whose state goes on")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--autoencoder-seconds", type=float, default=100, help="0 after --resume")
    parser.add_argument("--decoder-seconds", type=float, default=0, help="more of the decoder alone; latents stay")
    parser.add_argument("--transformer-seconds", type=float, default=300)
    parser.add_argument("--distil-seconds", type=float, default=0, help="0 leaves the stage out")
    parser.add_argument("--decay", type=float, default=0.0, help="share of the time over which the rates fall to zero")
    parser.add_argument("--muon-rate", type=float, default=4e-3)
    parser.add_argument("--adamw-rate", type=float, default=1e-3)
    parser.add_argument("--distil-rate", type=float, default=1e-3)
    parser.add_argument("--pictures", type=int, default=256, help="pictures per step of the autoencoder")
    parser.add_argument("--clips", type=int, default=48, help="clips per step of the transformer")
    parser.add_argument("--frames", type=int, default=16, help="frames of a clip")
    parser.add_argument("--bank", type=int, default=12288, help="clips kept as latents on the device")
    parser.add_argument("--starts", type=int, default=8, help="beginnings shipped for each look")
    parser.add_argument("--mazes", type=int, default=64, help="held-out mazes of the table; 0 leaves it out")
    parser.add_argument("--strips", action="store_true", help="draw the film strips")
    parser.add_argument("--columns", type=int, nargs="+", default=list(WALK_COLUMNS), help="frames of the long walk to show")
    return parser


if __name__ == "__main__":
    main()
