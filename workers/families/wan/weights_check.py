"""Looks a model's weights over without serving it, for ``ithaka doctor``: as loading does, part by part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ithaka.workers.families.base import FamilyLoadError
from ithaka.workers.families.wan.options import ModelOptions
from ithaka.workers.families.wan.spec import SamplingSpec
from ithaka.workers.families.wan.weights_folder import SHIPPED, load_world_model


def check_weights(options: dict[str, Any], num_ranks: int) -> str:
    """What the weights are, in words. Files are read and their digests compared, tensors are held against the model.

    Raises FamilyLoadError as loading them would.
    """
    parsed = ModelOptions.parse(options)
    folder = parsed.weights or SHIPPED
    world = load_world_model(folder)
    check_steps(world.sampling, parsed.steps)
    check_ranks(num_ranks, world.transformer.num_heads)
    files = [file for file in folder.rglob("*") if file.is_file()]
    return f"{len(files)} files, {_mebibytes(files):.1f} MiB in {folder}: sha256, shapes and values are right"


def check_steps(sampling: SamplingSpec, steps: int | None) -> None:
    """Raises FamilyLoadError for a number of steps that the model was not made for; None is its own."""
    if steps is not None and steps not in sampling.levels:
        known = ", ".join(str(number) for number in sorted(sampling.levels))
        raise FamilyLoadError(
            f"the model samples in {known} steps, not {steps}. Change the option `steps`.", field="options.steps"
        )


def check_ranks(num_ranks: int, num_heads: int) -> None:
    """Raises FamilyLoadError where a rank would be left without a head."""
    if num_ranks > num_heads:
        raise FamilyLoadError(
            f"the model has {num_heads} attention heads, so it can be split over at most {num_heads} ranks, "
            f"not {num_ranks}. Set ranks to {num_heads} or fewer; numbers that divide {num_heads} share the work evenly.",
            field="ranks",
        )


def _mebibytes(files: list[Path]) -> float:
    return sum(file.stat().st_size for file in files) / 2**20
