"""Make the few-step student's pictures look true, also late in its own walks.

Two forces act on what the student predicts: the teacher's path pulls it to where many steps lead, as in the distillation;
the critic, which sees its decoded pictures beside decoded true ones, pushes it towards what real views look like. Half of
the clips are true, half come from the student's own walks; half of its late steps begin where its own early step led.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from .clip_model import ClipInput
from .critic import CriticTrainer, balanced
from .distil import follow, teacher_levels
from .train_transformer import Batch, Trainer

Decode = Callable[[torch.Tensor], torch.Tensor]
"""Latent tokens [N, 64, 16] → RGB about -1..1 [N, 3, 128, 128], float, with gradients."""


@dataclass(frozen=True, slots=True)
class RefinePlan:
    """How the student is refined."""

    middle: float
    """Noise level between its two steps."""
    pictures: int
    """Decoded per step."""
    first_judged: int = 4
    """Frames of a clip before this one know too little to be judged."""
    own_pull: float = 0.5
    """Weight of the pull in the student's own walks, where the teacher is as lost as the student."""


class Refiner:
    """Makes the loss of one step; ``student`` and ``teacher`` hold transformers over clips of the same shape."""

    def __init__(self, student: Trainer, teacher: Trainer, critic: CriticTrainer, decode: Decode, plan: RefinePlan) -> None:
        self._student, self._teacher = student, teacher
        self._critic, self._decode, self._plan = critic, decode, plan
        self._levels = teacher_levels(plan.middle)

    def loss(self, true: Batch, own: Batch, share: float) -> tuple[torch.Tensor, str]:
        """A value whose gradient is that of both forces, and what to log.

        Equal numbers of clips in both batches; the critic's push has ``share`` times the length of the teacher's pull.
        """
        plan = self._plan
        batch = Batch(
            torch.cat([true.latents, own.latents]),
            torch.cat([true.controls, own.controls]),
            torch.cat([true.words, own.words]),
        )
        clip, noise, _ = self._student.noisy(batch)
        early_end, middle, clean = self._paths(clip, noise, batch.words)
        rows = self.judged(noise)
        late = torch.rand(noise.shape[:2], device=noise.device) < 0.5
        late.view(-1)[rows] = True
        start = torch.where(late[..., None, None], middle, noise)
        target = torch.where(late[..., None, None], (middle - clean) / plan.middle, (noise - early_end) / (1 - plan.middle))
        levels = torch.where(late, plan.middle, 1.0)
        made, _ = self._student.predict(replace(clip, made=start, made_levels=levels))

        error = made.detach() - target
        weight = torch.ones(noise.shape[0], 1, 1, 1, device=noise.device)
        weight[true.latents.shape[0] :] = plan.own_pull
        force = 2 * weight * error / error.numel()
        flat = force.flatten(0, 1)
        push, said = self._push(made.detach().flatten(0, 1)[rows], start.flatten(0, 1)[rows], self._true_rows(true, rows))
        flat[rows] += balanced(flat[rows], push, share)
        return (made * flat.view_as(made)).sum(), f"pull {error.square().mean().item():.4f}, {said}"

    def _paths(self, clip: ClipInput, noise: torch.Tensor, words: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Where the teacher's early path ends; a middle, the teacher's or the student's; where the teacher leads from it."""
        high, low = self._levels
        with torch.no_grad():
            told = replace(clip, words=self._teacher.prompt_encoder(words))
        early_end = follow(self._teacher, told, noise, high)
        own = follow(self._student, clip, noise, (high[0], high[-1]))
        by_student = torch.rand(noise.shape[:2], device=noise.device) < 0.5
        middle = torch.where(by_student[..., None, None], own, early_end)
        return early_end, middle, follow(self._teacher, told, middle, low)

    def judged(self, noise: torch.Tensor) -> torch.Tensor:
        """Random rows, of frames that know enough, of [B * F]."""
        dice = torch.rand(noise.shape[:2], device=noise.device)
        dice[:, : self._plan.first_judged] = -1.0
        return dice.flatten().topk(self._plan.pictures).indices

    def _true_rows(self, true: Batch, rows: torch.Tensor) -> torch.Tensor:
        """Beside a frame of a true clip the truth itself, beside one of an own walk any true frame."""
        flat = true.latents.flatten(0, 1)
        return flat[rows % flat.shape[0]]

    def _push(self, velocity: torch.Tensor, start: torch.Tensor, true: torch.Tensor) -> tuple[torch.Tensor, str]:
        velocity = velocity.clone().requires_grad_()
        with torch.no_grad():
            true_pictures = self._decode(true)
        pictures = self._decode(start - self._plan.middle * velocity)
        (push,) = torch.autograd.grad(self._critic.push(true_pictures, pictures), velocity)
        lead, steepness = self._critic.learn(true_pictures, pictures)
        sharp = (pictures.diff(dim=-1).abs().mean() / true_pictures.diff(dim=-1).abs().mean()).item()
        return push, f"lead {lead:.3f}, steepness {steepness:.3f}, sharpness {sharp:.3f}"
