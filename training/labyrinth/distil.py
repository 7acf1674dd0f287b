"""Teach two steps what many steps do: the student lands, in each of its steps, where the teacher's path goes."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import torch

from .clip_model import ClipInput
from .train_transformer import Batch, LatentBank, Trainer

TEACHER_STEPS_HIGH = 3
TEACHER_STEPS_LOW = 4


class Distiller:
    """``trainer`` holds the student, already at the teacher's weights; ``teacher`` keeps a frozen copy."""

    def __init__(self, trainer: Trainer, teacher: Trainer, middle: float) -> None:
        self._trainer = trainer
        self._teacher = teacher
        self._middle = middle

    def train(self, bank: LatentBank, log: Callable[[str], None]) -> int:
        """Run until the student's plan's time is up; returns the number of steps."""
        plan, started, step = self._trainer.plan, time.monotonic(), 0
        recent: list[torch.Tensor] = []
        while (share := (time.monotonic() - started) / plan.seconds) < 1:
            loss = self.loss(bank.pick(plan.clips_per_step))
            self._trainer.update(loss, step, share)
            recent.append(loss.detach())
            if step % 50 == 0:
                log(f"distillation step {step}, {share:4.0%} of its time, loss {torch.stack(recent).mean().item():.4f}")
                recent.clear()
            step += 1
        return step

    def loss(self, batch: Batch) -> torch.Tensor:
        """Squared error of the student's velocity against the teacher's mean velocity over the student's step."""
        clip, noise, _ = self._trainer.noisy(batch)
        middle, clean = self._teach(clip, noise)
        late = torch.rand(noise.shape[:2], device=noise.device) < 0.5
        late = late[:, :, None, None]
        start = torch.where(late, middle, noise)
        target = torch.where(late, (middle - clean) / self._middle, (noise - middle) / (1 - self._middle))
        levels = torch.where(late[:, :, 0, 0], self._middle, 1.0)
        made, _ = self._trainer.predict(replace(clip, made=start, made_levels=levels))
        return (made - target).square().mean()

    def _teach(self, clip: ClipInput, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        high, low = teacher_levels(self._middle)
        middle = follow(self._teacher, clip, noise, high)
        return middle, follow(self._teacher, clip, middle, low)


def follow(trainer: Trainer, clip: ClipInput, x: torch.Tensor, levels: Sequence[float]) -> torch.Tensor:
    """Take ``x``, the frames being made, down the levels by plain steps of the trainer's model, without gradients."""
    words = clip.words.detach()
    with torch.no_grad():
        for level, below in pairwise(levels):
            held = torch.full(x.shape[:2], level, device=x.device)
            velocity, _ = trainer.predict(replace(clip, made=x, made_levels=held, words=words))
            x = x + (below - level) * velocity
    return x


def teacher_levels(middle: float) -> tuple[list[float], list[float]]:
    """The teacher's levels above and below the student's middle."""
    high = torch.linspace(1.0, middle, TEACHER_STEPS_HIGH + 1).tolist()
    return high, torch.linspace(middle, 0.0, TEACHER_STEPS_LOW + 1).tolist()


def frozen_copy(trainer: Trainer) -> Trainer:
    """A teacher with the trainer's present weights."""
    model = copy.deepcopy(trainer.clip_model.model).requires_grad_(False)
    return Trainer(model, trainer.prompt_encoder, trainer.plan)
