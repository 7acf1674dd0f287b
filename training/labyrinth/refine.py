"""Refine a finished model: sharper pictures, also late in a walk.

``python -m training.labyrinth.refine --out runs/refined --state runs/labyrinth`` (a GPU, minutes). The state is what ``train``
left before the distillation: the teacher. Every stage leaves weights, its table and film strips to choose from; to go on from
one, name its folder as ``--weights``.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from ithaka.workers.families.wan.autoencoder import TinyAutoencoder
from ithaka.workers.families.wan.spec import LABYRINTH, LATENT_SIDE, Schedule
from ithaka.workers.families.wan.weights_folder import SHIPPED, WorldModel, load_world_model, save_world_model

from .clips import ClipMaker
from .critic import Critic, CriticTrainer
from .evaluate import Evaluator
from .own_walks import OwnWalks
from .refiner import RefinePlan, Refiner
from .render import render
from .report import write_strips
from .run_log import RunLog
from .sharpen_decoder import reach_beyond, sharpen_decoder
from .state import load_state
from .strip import WALK_COLUMNS
from .train import RENDER_BLOCK
from .train_transformer import LatentBank, Trainer, TrainingPlan

LONG_COLUMNS = (20, 48, *range(100, 601, 25))
STEADY_FROM = 100
"""A walk's sharpness from here on is averaged, since one frame of 64 mazes says little."""
SILENT_STEPS = 40
"""Steps in which the critic learns and does not push yet."""
MIN_STAGE_SECONDS = 15.0
RESERVE_SECONDS = 45.0
"""Kept for measuring and showing the last stage."""
SEED = 11


@dataclass(frozen=True, slots=True)
class Bench:
    """Measures and shows candidates in one folder."""

    out: Path
    clips: Callable[[int], ClipMaker]
    mazes: int
    columns: tuple[int, ...]
    log: RunLog

    def measure(self, name: str, world: WorldModel, schedule: Schedule) -> None:
        """Log and keep all rows of the table, and the mean sharpness late in the walk."""
        torch.set_float32_matmul_precision("highest")
        evaluator = Evaluator(world, self.clips, self.mazes)
        rows = [evaluator.autoencoder_row(), *evaluator.table(schedule, long_frames=self.columns)]
        late = [value for frame, value in rows[-1].values.items() if frame >= STEADY_FROM]
        lines = [f"{name}: steps at {schedule.levels}, remembered at {schedule.context_level}", *map(str, rows)]
        if late:
            lines.append(f"| mean from frame {STEADY_FROM} | {sum(late) / len(late):.3f}, lowest {min(late):.2f} |")
        text = "\n".join(lines)
        self.log(text)
        with (self.out / "tables.md").open("a") as file:
            print(text, end="\n\n", file=file)
        torch.set_float32_matmul_precision("high")

    def keep(self, name: str, world: WorldModel) -> None:
        """Write a candidate's weights, measure it and draw its strips."""
        save_world_model(self.out / name, world)
        if self.mazes > 0:
            self.measure(name, world, world.sampling.schedule(world.sampling.steps))
            write_strips(self.out / name, world, clips=self.clips, columns=WALK_COLUMNS)


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and run the stages in order."""
    options = _parser().parse_args(argv)
    started = time.monotonic()
    torch.manual_seed(SEED)
    torch.set_float32_matmul_precision("high")
    device = torch.device(options.device)
    compiled = device.type == "cuda"
    log = RunLog(options.out / "log.txt")
    bench = Bench(options.out, partial(ClipMaker, device=device), options.mazes, tuple(options.columns), log)
    clips = ClipMaker(
        SEED, device, torch.compile(render, dynamic=False) if compiled else render, RENDER_BLOCK if compiled else None
    )

    world = replace(load_world_model(options.weights), sampling=LABYRINTH)
    for part in (world.transformer, world.autoencoder, world.prompt_encoder):
        part.to(device=device)
    for level in options.sweep_middles:
        bench.measure("before", world, replace(LABYRINTH.schedule(2), levels=(1.0, level)))
    for level in options.sweep_contexts:
        bench.measure("before", world, replace(LABYRINTH.schedule(2), context_level=level))

    plan = TrainingPlan(
        seconds=options.teacher_seconds,
        clips_per_step=options.clips,
        num_frames=options.frames,
        window=LABYRINTH.window,
        muon_rate=options.teacher_rate,
        adamw_rate=options.teacher_rate / 4,
        decay=1.0,
        bank_clips=options.bank,
        compiled=compiled,
        warmup_steps=20,
        ema_steps=100,
    )
    autoencoder = copy.deepcopy(world.autoencoder).to(memory_format=torch.channels_last)
    bank = LatentBank(clips, autoencoder, plan.bank_clips, plan.num_frames)
    log(f"bank of {plan.bank_clips} clips is ready")
    teacher = _trainer_from(world, plan)
    load_state(options.state, {"transformer": teacher.clip_model.model, "prompt_encoder": teacher.prompt_encoder})
    student_plan = replace(plan, muon_rate=options.rate, adamw_rate=options.rate / 4, decay=0.4)
    student = _trainer_from(world, student_plan)
    for trainer in (teacher, student):
        trainer.flow_loss(bank.pick(options.clips)).backward()  # type: ignore[no-untyped-call]
    student.drop_gradients()
    teacher.drop_gradients()
    log("the first forward and backward are through")
    if options.teacher_seconds > 0:
        log(f"teacher trained for {teacher.train(bank, log)} steps")
        teacher.swap_means()

    critic = CriticTrainer(Critic().to(device))
    if options.decoder_seconds > 0:
        sharpen_decoder(
            autoencoder,
            clips,
            CriticTrainer(Critic().to(device)),
            share=options.decoder_share,
            seconds=options.decoder_seconds,
            batch=options.pictures,
            log=log,
        )
        sharpened = replace(world, autoencoder=autoencoder)
        save_world_model(options.out / "decoder", sharpened)
        if options.mazes > 0:
            bench.measure("decoder", sharpened, LABYRINTH.schedule(2))

    refiner = Refiner(
        student, teacher, critic, partial(decode, autoencoder), RefinePlan(LABYRINTH.levels[2][1], options.judged)
    )
    for stage, share in enumerate(options.shares, 1):
        left = options.limit_seconds - (time.monotonic() - started) - RESERVE_SECONDS
        if left < MIN_STAGE_SECONDS:
            log(f"no time left for stage {stage}")
            break
        own = OwnWalks(_exported(student, world, autoencoder), clips, options.walks, options.walk_frames)
        log(f"{options.walks} own walks of {options.walk_frames} frames")
        seconds = min(options.stage_seconds, left)
        steps = _run_stage(student, refiner, bank, own, seconds, share, stage == 1, log)
        student.swap_means()
        log(f"stage {stage}: {steps} steps at share {share}")
        kept = reach_beyond(world.autoencoder, autoencoder, options.decoder_reach)
        bench.keep(f"stage{stage}", _exported(student, world, kept))
    if options.decoder_seconds > 0 and options.mazes > 0:
        bench.measure("last stage, first decoder", _exported(student, world, world.autoencoder), LABYRINTH.schedule(2))
    log("done")


def _run_stage(
    student: Trainer, refiner: Refiner, bank: LatentBank, own: OwnWalks, seconds: float, share: float, first: bool, log: RunLog
) -> int:
    plan, started, step = student.plan, time.monotonic(), 0
    half = plan.clips_per_step // 2
    while (past := (time.monotonic() - started) / seconds) < 1:
        pushing = share if step >= SILENT_STEPS or not first else 0.0
        loss, said = refiner.loss(bank.pick(half), own.pick(half, plan.num_frames), pushing)
        student.update(loss, step, past)
        if step % 50 == 0:
            log(f"refinement step {step}, {past:4.0%} of its time: {said}")
        step += 1
    return step


def decode(autoencoder: TinyAutoencoder, tokens: torch.Tensor) -> torch.Tensor:
    """Latent tokens [N, 64, 16] → RGB about -1..1, float32 [N, 3, 128, 128], with gradients."""
    latents = tokens.transpose(1, 2).reshape(tokens.shape[0], -1, LATENT_SIDE, LATENT_SIDE)
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda):
        pictures = autoencoder.decode(latents.contiguous(memory_format=torch.channels_last))
    return pictures.float()


def _trainer_from(world: WorldModel, plan: TrainingPlan) -> Trainer:
    transformer, prompt_encoder = copy.deepcopy(world.transformer), copy.deepcopy(world.prompt_encoder)
    return Trainer(transformer.requires_grad_(True), prompt_encoder.requires_grad_(True), plan)


def _exported(student: Trainer, world: WorldModel, autoencoder: TinyAutoencoder) -> WorldModel:
    transformer, prompt_encoder = copy.deepcopy(world.transformer), copy.deepcopy(world.prompt_encoder)
    transformer.load_state_dict(student.clip_model.model.state_dict())
    prompt_encoder.load_state_dict(student.prompt_encoder.state_dict())
    return replace(world, transformer=transformer, prompt_encoder=prompt_encoder, autoencoder=copy.deepcopy(autoencoder))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for candidates, tables and strips")
    parser.add_argument("--state", type=Path, required=True, help="folder with the state of `train` before the distillation")
    parser.add_argument("--weights", type=Path, default=SHIPPED, help="the finished model to refine")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--limit-seconds", type=float, default=500, help="start nothing that would end after this")
    parser.add_argument("--teacher-seconds", type=float, default=40, help="to train the teacher out at falling rates")
    parser.add_argument("--teacher-rate", type=float, default=1e-3)
    parser.add_argument("--decoder-seconds", type=float, default=35, help="0 keeps the decoder")
    parser.add_argument("--decoder-share", type=float, default=0.5)
    parser.add_argument("--decoder-reach", type=float, default=1.3, help="from the old decoder (0) past the new (1): kept")
    parser.add_argument("--stage-seconds", type=float, default=75)
    parser.add_argument("--shares", type=float, nargs="*", default=[0.5], help="one stage each: push against pull")
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--pictures", type=int, default=128, help="pictures per step of the decoder")
    parser.add_argument("--judged", type=int, default=128, help="pictures per step that the critic sees of the transformer")
    parser.add_argument("--clips", type=int, default=32, help="clips per step, half of them own walks")
    parser.add_argument("--frames", type=int, default=16, help="frames of a clip")
    parser.add_argument("--bank", type=int, default=6144, help="true clips kept as latents on the device")
    parser.add_argument("--walks", type=int, default=128, help="own walks per stage")
    parser.add_argument("--walk-frames", type=int, default=320)
    parser.add_argument("--mazes", type=int, default=64, help="held-out mazes of the tables; 0 leaves them and the strips out")
    parser.add_argument("--columns", type=int, nargs="+", default=list(LONG_COLUMNS), help="frames of the long walk to measure")
    parser.add_argument("--sweep-middles", type=float, nargs="*", default=[], help="middle levels to measure beforehand")
    parser.add_argument("--sweep-contexts", type=float, nargs="*", default=[], help="context levels to measure beforehand")
    return parser


if __name__ == "__main__":
    main()
