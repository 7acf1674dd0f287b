"""Teach the decoder alone to draw what a critic takes for true; latents, and so the transformer, stay as they are."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import torch

from ithaka.workers.families.wan.autoencoder import TinyAutoencoder

from .clips import ClipMaker
from .critic import CriticTrainer, balanced
from .train_autoencoder import draw_pictures, picture_loss, with_noise

LEARNING_RATE = 3e-4
POOL_DRAWS = 16
SILENT_SHARE = 0.1
"""Of the time, in which the critic learns and does not push yet."""


def reach_beyond(first: TinyAutoencoder, sharpened: TinyAutoencoder, reach: float) -> TinyAutoencoder:
    """A copy of ``sharpened`` that goes ``reach`` times the way from ``first`` to it, weight by weight.

    The refinement runs against ``sharpened``; what ships reaches a little further, since a picture of the model's own
    latents is softer than one of true latents. Both share their encoder.
    """
    beyond = copy.deepcopy(sharpened)
    with torch.no_grad():
        for weight, start in zip(beyond.parameters(), first.parameters(), strict=True):
            weight.copy_(start.lerp(weight, reach))
    return beyond


def sharpen_decoder(
    model: TinyAutoencoder,
    clips: ClipMaker,
    critic: CriticTrainer,
    *,
    share: float,
    seconds: float,
    batch: int,
    log: Callable[[str], None],
) -> None:
    """Go on with the decoder for a time; the push has ``share`` times the length of the picture loss's pull."""
    decoder = model.decoder
    decoder.requires_grad_(True)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=LEARNING_RATE, betas=(0.5, 0.95), weight_decay=1e-4)
    pool = torch.cat([draw_pictures(clips, batch) for _ in range(POOL_DRAWS)])
    started, step = time.monotonic(), 0
    while (past := (time.monotonic() - started) / seconds) < 1:
        rows = torch.randint(0, pool.shape[0], (batch,), device=pool.device)
        pictures = (pool[rows].float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)
        with torch.autocast(pictures.device.type, torch.bfloat16, enabled=pictures.is_cuda):
            with torch.no_grad():
                latents = with_noise(model.encode(pictures))
            decoded = model.decode(latents)
        decoded = decoded.float()
        leaf = decoded.detach().requires_grad_()
        loss, squared = picture_loss(leaf, pictures)
        (force,) = torch.autograd.grad(loss, leaf)
        (push,) = torch.autograd.grad(critic.push(pictures, leaf), leaf)
        lead, steepness = critic.learn(pictures, leaf)
        if past > SILENT_SHARE:
            force = force + balanced(force, push, share)
        (decoded * force).sum().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / 50, max(0.02, (1 - past) / 0.5))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0:
            sharp = (leaf.diff(dim=-1).abs().mean() / pictures.diff(dim=-1).abs().mean()).item()
            decibels = -10 * torch.log10(squared / 4).item()
            log(f"decoder step {step}, {decibels:.2f} dB, lead {lead:.3f}, steepness {steepness:.3f}, sharpness {sharp:.3f}")
        step += 1
    model.requires_grad_(False).eval()
