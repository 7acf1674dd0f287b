"""Train the autoencoder on fresh pictures until the time is up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from ithaka.workers.families.wan.autoencoder import TinyAutoencoder

from .clips import ClipMaker

LEARNING_RATE = 2e-3
LATENT_NOISE = 0.06
"""Added to the latents in training, so that the decoder forgives what the transformer gets slightly wrong."""
ENERGY_WEIGHT = 0.5
FAR_FLOOR_ROWS = (60, 82)
"""Picture rows where the floor's pattern is too far to be told: asked for its energy, the decoder would invent a grid."""
FRAMES_PER_WALK = 4
STEPS_PER_DRAW = 16


def train_autoencoder(
    model: TinyAutoencoder,
    clips: ClipMaker,
    *,
    seconds: float,
    batch: int,
    compiled: bool,
    decoder_only: bool = False,
    log: Callable[[str], None],
) -> None:
    """Minimise squared and absolute error of pictures and of their gradients; leaves the model in eval mode.

    ``decoder_only`` keeps the latents as they are, so that a transformer trained on them still fits.
    """
    trained = model.decoder if decoder_only else model
    trained.requires_grad_(True)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=1e-4)
    forward = torch.compile(_loss, dynamic=False) if compiled else _loss
    trained.train()
    model.to(memory_format=torch.channels_last)
    pool = _pool(clips, batch)
    started = time.monotonic()
    step = 0
    while (share := (time.monotonic() - started) / seconds) < 1:
        if step % STEPS_PER_DRAW == 0:
            at = (step // STEPS_PER_DRAW * batch) % pool.shape[0]
            pool[at : at + batch] = draw_pictures(clips, batch)
        rate = LEARNING_RATE * min(1.0, (step + 1) / 100, max(0.02, (1 - share) / 0.5))
        for group in optimizer.param_groups:
            group["lr"] = rate
        chosen = torch.randint(0, pool.shape[0], (batch,), device=pool.device)
        pictures = pool[chosen].float().to(memory_format=torch.channels_last) / 127.5 - 1
        with torch.autocast(pictures.device.type, torch.bfloat16, enabled=pictures.is_cuda):
            loss, squared = forward(model, pictures)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 200 == 0:
            log(f"autoencoder step {step}, {share:4.0%} of its time, {-10 * math.log10(squared.item() / 4):.2f} dB")
        step += 1
    model.requires_grad_(False).eval()


def _loss(model: TinyAutoencoder, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    noisy = with_noise(model.encode(pictures))
    return picture_loss(model.decode(noisy).float(), pictures)


def with_noise(latents: torch.Tensor) -> torch.Tensor:
    """Latents [N, C, h, w] with a random amount of noise each, LATENT_NOISE on average."""
    amount = LATENT_NOISE * 2 * torch.rand(latents.shape[0], 1, 1, 1, device=latents.device)
    return latents + amount * torch.randn_like(latents)


def picture_loss(decoded: torch.Tensor, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of decoded pictures, -1..1 [N, 3, H, W], and their squared error."""
    error = decoded - pictures
    squared = error.square().mean()
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    energy = sum((_energy(decoded, dim) - _energy(pictures, dim)).abs().mean() for dim in (-1, -2))
    return 2 * squared + 0.1 * error.abs().mean() + 0.1 * edges + ENERGY_WEIGHT * energy, squared.detach()


def _energy(pictures: torch.Tensor, dim: int) -> torch.Tensor:
    """How much changes from pixel to pixel around every place: a blurred edge has less of it wherever it lies."""
    changes = pictures.diff(dim=dim).abs()
    rows = torch.arange(changes.shape[-2], device=changes.device)
    told = (rows < FAR_FLOOR_ROWS[0]) | (rows >= FAR_FLOOR_ROWS[1])
    return F.avg_pool2d(changes * told[:, None], 5, stride=2)


def _pool(clips: ClipMaker, batch: int) -> torch.Tensor:
    return torch.cat([draw_pictures(clips, batch) for _ in range(16)])


def draw_pictures(clips: ClipMaker, num_pictures: int) -> torch.Tensor:
    """uint8 [num_pictures, 3, 128, 128] from walks of a few frames each."""
    walks = clips.walks(-(-num_pictures // FRAMES_PER_WALK), 8 * FRAMES_PER_WALK)
    frames = range(7, 8 * FRAMES_PER_WALK, 8)
    pictures = clips.pictures(walks, frames).flatten(0, 1)[:num_pictures]
    return (pictures * 255).round().to(torch.uint8)
