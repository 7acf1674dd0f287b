"""The table of measures and the film strips of a trained model, as files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ithaka.workers.families.wan.spec import Schedule
from ithaka.workers.families.wan.weights_folder import WorldModel

from .clips import ClipMaker
from .evaluate import Evaluator
from .strip import save_picture, switch_strip, truth_strip, walk_strip

STRIP_SEED = 4_242
OTHER_MIDDLES = (0.65, 0.5)
LONG_WALK = 20
"""Frames from which on a walk counts as long."""

Clips = Callable[[int], ClipMaker]
Log = Callable[[str], None]


def write_table(
    file: Path, model: WorldModel, *, clips: Clips, mazes: int, log: Log, columns: tuple[int, ...], others: bool
) -> None:
    """Measure the shipped schedule, and with ``others`` four steps and other middles; log and write the tables."""
    evaluator = Evaluator(model, clips, mazes)
    sampling = model.sampling
    shipped = sampling.schedule(sampling.steps)
    lines = [str(evaluator.autoencoder_row())]
    log(lines[0])

    def add(schedule: Schedule, long_frames: tuple[int, ...]) -> None:
        title = f"{len(schedule.levels)} steps at {schedule.levels}, remembered at {schedule.context_level}"
        rows = [str(row) for row in evaluator.table(schedule, long_frames=long_frames)]
        log("\n".join([title, *rows]))
        lines.extend(["", title, "", *rows])
        file.write_text("\n".join(lines) + "\n")

    add(shipped, tuple(column for column in columns if column >= LONG_WALK))
    if others:
        add(sampling.schedule(max(sampling.levels)), ())
        for middle in OTHER_MIDDLES:
            add(replace(shipped, levels=(1.0, middle)), ())


def write_strips(folder: Path, model: WorldModel, *, clips: Clips, columns: tuple[int, ...]) -> None:
    """Film strips to look at: ``walk.png``, ``truth.png`` and ``switch.png``."""
    shipped = model.sampling.schedule(model.sampling.steps)
    save_picture(folder / "walk.png", walk_strip(model, clips(STRIP_SEED), shipped, columns))
    save_picture(folder / "truth.png", truth_strip(model, clips(STRIP_SEED + 1), shipped))
    save_picture(folder / "switch.png", switch_strip(model, clips(STRIP_SEED + 2), shipped))
