"""The table of measures and the film strips of a trained model, as files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ithaka.workers.families.wan.weights import WorldModel

from .clips import ClipMaker
from .evaluate import Evaluator
from .strip import save_picture, switch_strip, truth_strip, walk_strip

STRIP_SEED = 4_242
OTHER_MIDDLES = (0.65, 0.5)
OTHER_CONTEXTS = (0.0, 0.12)
LONG_WALK = 20
"""Frames from which on a walk counts as long."""


def write_report(
    prefix: Path,
    model: WorldModel,
    *,
    clips: Callable[[int], ClipMaker],
    mazes: int,
    log: Callable[[str], None],
    brief: bool,
    columns: tuple[int, ...],
) -> None:
    """Log and write ``<prefix>-table.md``, ``-walk.png``, ``-truth.png`` and ``-switch.png``; ``brief`` is the table alone."""
    evaluator = Evaluator(model, clips, mazes)
    sampling = model.sampling
    shipped = sampling.schedule(sampling.steps)
    long_frames = tuple(c for c in columns if c >= LONG_WALK) if not brief else ()
    lines = [f"{prefix.name}", str(evaluator.autoencoder_row())]

    def add(title: str, rows: list[object]) -> None:
        lines.append(f"\n{title}\n")
        lines.extend(str(row) for row in rows)
        log("\n".join(lines[-len(rows) - 1 :]))

    add(f"{sampling.steps} steps {shipped}", [*evaluator.table(shipped, long_frames=long_frames)])
    four = sampling.schedule(max(sampling.levels))
    add(f"{len(four.levels)} steps {four}", [*evaluator.table(four, long_frames=())])
    for middle in OTHER_MIDDLES:
        other = replace(shipped, levels=(1.0, middle))
        add(f"2 steps {other}", [*evaluator.table(other, long_frames=())])
    if not brief:
        for level in OTHER_CONTEXTS:
            other = replace(shipped, context_level=level)
            add(f"2 steps {other}", [*evaluator.table(other, long_frames=long_frames)])
        save_picture(prefix.with_name(f"{prefix.name}-walk.png"), walk_strip(model, clips(STRIP_SEED), shipped, columns))
        save_picture(prefix.with_name(f"{prefix.name}-truth.png"), truth_strip(model, clips(STRIP_SEED + 1), shipped))
        save_picture(prefix.with_name(f"{prefix.name}-switch.png"), switch_strip(model, clips(STRIP_SEED + 2), shipped))
    prefix.with_name(f"{prefix.name}-table.md").write_text("\n".join(lines) + "\n")
