"""What a weights folder says of its model besides the tensors: the memory, the steps, the pictures."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Schedule:
    """Noise levels of a frame's steps, from 1 downwards, and the level at which a finished frame is remembered."""

    levels: tuple[float, ...]
    context_level: float


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """How frames are made; ``levels`` holds one schedule per number of steps."""

    levels: dict[int, tuple[float, ...]]
    steps: int
    """The shipped number of steps."""
    context_level: float
    window: int
    sink: int

    def schedule(self, steps: int) -> Schedule:
        """The schedule of a number of steps that ``levels`` holds."""
        return Schedule(self.levels[steps], self.context_level)

    def to_json(self) -> dict[str, Any]:
        """For model_index.json."""
        return {**asdict(self), "levels": {str(steps): list(levels) for steps, levels in self.levels.items()}}

    @staticmethod
    def from_json(data: dict[str, Any]) -> SamplingSpec:
        """The reverse of ``to_json``; KeyError, TypeError or ValueError on anything else."""
        levels = {int(steps): tuple(float(x) for x in listed) for steps, listed in data["levels"].items()}
        spec = SamplingSpec(
            levels=levels,
            steps=int(data["steps"]),
            context_level=float(data["context_level"]),
            window=int(data["window"]),
            sink=int(data["sink"]),
        )
        if spec.steps not in levels or any(not listed or listed[0] != 1.0 for listed in levels.values()):
            raise ValueError("levels must begin at 1.0 and include the shipped number of steps")
        return spec


LABYRINTH = SamplingSpec(
    levels={1: (1.0,), 2: (1.0, 0.8), 3: (1.0, 0.85, 0.5), 4: (1.0, 0.9, 0.7, 0.4)},
    steps=2,
    context_level=0.0,
    window=16,
    sink=0,
)
PICTURE_PIXELS = 128
LATENT_SIDE = 8
FPS = 16
START_FRAMES = 4
"""Frames of the shipped beginnings, enough to see a direction."""
