"""Train the transformer on clips of latents by flow matching, with a memory that is noisy by a random amount."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ithaka.workers.families.wan.autoencoder import TinyAutoencoder
from ithaka.workers.families.wan.model import CausalWanModel
from ithaka.workers.families.wan.prompt import PromptEncoder

from .clip_model import ClipInput, ClipModel
from .clips import ClipMaker
from .optimizer import TwoOptimizers

STEPS_PER_RENEWAL = 16
RETURN_SHARE = 0.2
"""Clips that go back the way they came, so that remembering pays."""
SWITCH_SHARE = 0.15
"""Clips whose prompt, and look, change on the way."""
WORDLESS_SHARE = 0.12


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How long and how fast; rates fall to zero over the last ``decay`` share of the time."""

    seconds: float
    clips_per_step: int
    num_frames: int
    window: int
    muon_rate: float
    adamw_rate: float
    decay: float
    bank_clips: int
    compiled: bool
    warmup_steps: int = 150
    ema_steps: int = 600


@dataclass(frozen=True, slots=True)
class Batch:
    """Clean latents [B, F, 64, 16], controls [B, F, 3], word ids [B, F, W]."""

    latents: torch.Tensor
    controls: torch.Tensor
    words: torch.Tensor


class LatentBank:
    """Clips as latents on the device, renewed bit by bit."""

    def __init__(self, clips: ClipMaker, autoencoder: TinyAutoencoder, num_clips: int, num_frames: int) -> None:
        self._clips, self._autoencoder, self._num_frames = clips, autoencoder, num_frames
        self._oldest = 0
        parts = [self._draw(min(512, num_clips - first)) for first in range(0, num_clips, 512)]
        self._latents = torch.cat([part.latents for part in parts])
        self._controls = torch.cat([part.controls for part in parts])
        self._words = torch.cat([part.words for part in parts])

    def renew(self, num_clips: int) -> None:
        """Replace the oldest clips."""
        fresh = self._draw(num_clips)
        rows = (self._oldest + torch.arange(num_clips, device=fresh.latents.device)) % self._latents.shape[0]
        self._latents[rows], self._controls[rows], self._words[rows] = fresh.latents, fresh.controls, fresh.words
        self._oldest = (self._oldest + num_clips) % self._latents.shape[0]

    def pick(self, num_clips: int) -> Batch:
        """A random batch."""
        rows = torch.randint(0, self._latents.shape[0], (num_clips,), device=self._latents.device)
        return Batch(self._latents[rows].float(), self._controls[rows], self._words[rows])

    @torch.no_grad()
    def _draw(self, num_clips: int) -> Batch:
        walks = self._clips.walks(
            num_clips, self._num_frames, returns=RETURN_SHARE, switch=SWITCH_SHARE, wordless=WORDLESS_SHARE
        )
        latents = torch.stack(
            [
                encode_tokens(self._autoencoder, self._clips.pictures(walks, range(f, f + 1))[:, 0])
                for f in range(self._num_frames)
            ],
            1,
        )
        return Batch(latents.bfloat16(), walks.controls, walks.prompts)


@torch.no_grad()
def encode_tokens(autoencoder: TinyAutoencoder, pictures: torch.Tensor) -> torch.Tensor:
    """RGB 0..1 [N, 3, 128, 128] → latent tokens [N, 64, 16]."""
    with torch.autocast(pictures.device.type, torch.bfloat16, enabled=pictures.is_cuda):
        latents = autoencoder.encode((pictures * 2 - 1).contiguous(memory_format=torch.channels_last))
    return latents.float().flatten(2).transpose(1, 2)


class Trainer:
    """Holds what training changes: the model, the prompt encoder, their running means."""

    def __init__(self, model: CausalWanModel, prompt_encoder: PromptEncoder, plan: TrainingPlan) -> None:
        self.plan = plan
        self.clip_model = ClipModel(model, plan.num_frames, plan.window, compiled=plan.compiled)
        self.prompt_encoder = prompt_encoder
        self._parameters: list[torch.Tensor] = [*model.parameters(), *prompt_encoder.parameters()]
        self._means = [p.detach().clone() for p in self._parameters]
        self._optimizers = TwoOptimizers(model, list(prompt_encoder.parameters()))
        self._device = self._parameters[0].device

    def train(self, bank: LatentBank, log: Callable[[str], None], *, first_step: int = 0) -> int:
        """Run until the plan's time is up; returns the number of steps."""
        plan, started, step = self.plan, time.monotonic(), 0
        recent: list[torch.Tensor] = []
        while (share := (time.monotonic() - started) / plan.seconds) < 1:
            if step % STEPS_PER_RENEWAL == 0:
                bank.renew(plan.clips_per_step)
            loss = self.flow_loss(bank.pick(plan.clips_per_step))
            self.update(loss, step, share)
            recent.append(loss.detach())
            if step % 200 == 0:
                mean = torch.stack(recent).mean().item()
                log(f"transformer step {first_step + step}, {share:4.0%} of its time, loss {mean:.4f}")
                recent.clear()
            step += 1
        return first_step + step

    def update(self, loss: torch.Tensor, step: int, share: float) -> None:
        """One step of the optimizers and of the running means."""
        plan = self.plan
        loss.backward()  # type: ignore[no-untyped-call]
        factor = min(1.0, (step + 1) / plan.warmup_steps)
        if plan.decay > 0:
            factor *= min(1.0, max(0.0, 1 - share) / plan.decay)
        self._optimizers.step(plan.muon_rate * factor, plan.adamw_rate * factor)
        with torch.no_grad():
            torch._foreach_lerp_(self._means, self._parameters, 1 / min(plan.ema_steps, step + 1))

    def swap_means(self) -> None:
        """Exchange the parameters and their running means."""
        with torch.no_grad():
            for parameter, mean in zip(self._parameters, self._means, strict=True):
                kept = parameter.clone()
                parameter.copy_(mean)
                mean.copy_(kept)

    def drop_gradients(self) -> None:
        """Forget what a backward left."""
        for parameter in self._parameters:
            parameter.grad = None

    def flow_loss(self, batch: Batch) -> torch.Tensor:
        """Squared error of the velocity, for frames being made and for those remembered with visible noise."""
        clip, made_noise, remembered_noise = self.noisy(batch)
        made, remembered = self.predict(clip)
        loss = (made - (made_noise - batch.latents)).square().mean()
        seen = (clip.remembered_levels > 0.1).float()[:, :, None, None]
        extra = ((remembered - (remembered_noise - batch.latents)).square() * seen).mean()
        return loss + 0.5 * extra

    def predict(self, clip: ClipInput) -> tuple[torch.Tensor, torch.Tensor]:
        """Velocities of both streams in mixed precision."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self.plan.compiled):
            made, remembered = self.clip_model(clip)
        return made, remembered

    def noisy(self, batch: Batch) -> tuple[ClipInput, torch.Tensor, torch.Tensor]:
        """Noise both streams: returns the clip and the two noises."""
        shape = batch.latents.shape[:2]
        levels, remembered_levels = self.made_levels(shape), self.remembered_levels(shape)
        noise, remembered_noise = torch.randn_like(batch.latents), torch.randn_like(batch.latents)
        clip = ClipInput(
            made=torch.lerp(batch.latents, noise, levels[:, :, None, None]),
            made_levels=levels,
            remembered=torch.lerp(batch.latents, remembered_noise, remembered_levels[:, :, None, None]),
            remembered_levels=remembered_levels,
            controls=batch.controls,
            words=self.prompt_encoder(batch.words),
        )
        return clip, noise, remembered_noise

    def made_levels(self, shape: torch.Size) -> torch.Tensor:
        """A quarter pure noise, a third high noise, the rest anything: few steps spend their time up there."""
        dice, level = self._rand(shape), self._rand(shape)
        level = torch.where(dice < 0.6, 0.65 + 0.32 * level, level)
        return torch.where(dice < 0.25, 1.0, level)

    def remembered_levels(self, shape: torch.Size) -> torch.Tensor:
        """Mostly nearly clean; some clips remember badly, a few hardly at all."""
        dice = self._rand(torch.Size((shape[0], 1)))
        most = torch.where(dice < 0.6, 0.12, torch.where(dice < 0.88, 0.45, 1.0))
        return most * self._rand(shape)

    def _rand(self, shape: torch.Size) -> torch.Tensor:
        return torch.rand(shape, device=self._device)
