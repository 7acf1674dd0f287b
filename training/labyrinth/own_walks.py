"""Clips out of the model's own long walks: what its memory really holds, far from the last true frame."""

from __future__ import annotations

import torch

from ithaka.workers.families.wan.weights_folder import WorldModel

from .clips import ClipMaker
from .evaluate import generate_tokens
from .train_transformer import SWITCH_SHARE, WORDLESS_SHARE, Batch

CONTEXT = 4
"""True frames at the beginning of a walk."""


class OwnWalks:
    """Walks of one model at one time; draw them anew when it has changed."""

    def __init__(self, model: WorldModel, clips: ClipMaker, num_walks: int, num_frames: int) -> None:
        """``num_walks`` walks of ``num_frames`` generated frames, with the shipped schedule."""
        walks = clips.walks(num_walks, CONTEXT + num_frames, switch=SWITCH_SHARE, wordless=WORDLESS_SHARE)
        schedule = model.sampling.schedule(model.sampling.steps)
        tokens = generate_tokens(model, clips, walks, CONTEXT, num_frames, schedule)
        self._latents = torch.stack([frame.bfloat16() for frame in tokens], 1)
        self._controls, self._words = walks.controls[:, CONTEXT:], walks.prompts[:, CONTEXT:]

    def pick(self, num_clips: int, num_frames: int) -> Batch:
        """Clips from anywhere in the walks."""
        num_walks, length = self._latents.shape[:2]
        device = self._latents.device
        walk = torch.randint(0, num_walks, (num_clips, 1), device=device)
        first = torch.randint(0, length - num_frames + 1, (num_clips, 1), device=device)
        frames = first + torch.arange(num_frames, device=device)
        return Batch(self._latents[walk, frames].float(), self._controls[walk, frames], self._words[walk, frames])
