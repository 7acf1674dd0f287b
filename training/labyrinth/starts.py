"""Beginnings of walks to ship with the model: a few frames of the simulator per look, as latents."""

from __future__ import annotations

import torch

from ithaka.workers.families.wan.autoencoder import TinyAutoencoder
from ithaka.workers.families.wan.spec import START_FRAMES
from ithaka.workers.families.wan.weights import Starts

from .clips import ClipMaker, Walks
from .themes import THEME_NAMES
from .train_transformer import encode_tokens

CANDIDATES_PER_START = 8


def make_starts(autoencoder: TinyAutoencoder, clips: ClipMaker, per_theme: int) -> Starts:
    """Draw more than needed and keep, per look, the views with the most to see."""
    latents, controls = [], []
    num = per_theme * CANDIDATES_PER_START
    for theme in range(len(THEME_NAMES)):
        ahead = torch.zeros(num, START_FRAMES, 3, device=clips.device)
        ahead[:, 1:, 0] = 1.0
        walks = clips.walks(num, START_FRAMES, controls=ahead)
        looks = torch.full_like(walks.themes, theme)
        pictures = clips.pictures(Walks(walks.worlds, walks.poses, ahead, looks, walks.prompts))
        detail = pictures[:, -1].diff(dim=-1).abs().mean((1, 2, 3))
        best = detail.topk(per_theme).indices
        tokens = encode_tokens(autoencoder, pictures[best].flatten(0, 1))
        latents.append(tokens.view(per_theme, START_FRAMES, *tokens.shape[1:]).cpu())
        controls.append(ahead[best].cpu())
    return Starts(torch.stack(latents), torch.stack(controls))
