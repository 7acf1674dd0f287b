"""Beginnings of walks to ship with the model: a few frames of the simulator per look, as latents."""

from __future__ import annotations

import torch

from ithaka.workers.families.wan.autoencoder import TinyAutoencoder
from ithaka.workers.families.wan.spec import START_FRAMES
from ithaka.workers.families.wan.weights_folder import Starts

from .clips import ClipMaker, Walks
from .themes import THEME_NAMES
from .train_transformer import encode_tokens
from .world import FORWARD_PER_FRAME, Poses, Worlds

CANDIDATES_PER_START = 8
FREE_FRAMES = 24
"""A beginning lets the walker go ahead this long, so that a first key press shows something."""


def make_starts(autoencoder: TinyAutoencoder, clips: ClipMaker, per_theme: int) -> Starts:
    """Draw more than needed and keep, per look, the views with a way ahead and the most to see."""
    latents, controls = [], []
    num = per_theme * CANDIDATES_PER_START
    for theme in range(len(THEME_NAMES)):
        ahead = torch.zeros(num, START_FRAMES + FREE_FRAMES, 3, device=clips.device)
        ahead[:, 1:, 0] = 1.0
        walks = clips.walks(num, START_FRAMES + FREE_FRAMES, controls=ahead)
        free = _distance(walks.poses[START_FRAMES - 1], walks.poses[-1]) > 0.95 * FREE_FRAMES * FORWARD_PER_FRAME
        looks = torch.full_like(walks.themes, theme)
        walks = Walks(walks.worlds, walks.poses, ahead, looks, walks.prompts)
        last = clips.pictures(walks, range(START_FRAMES - 1, START_FRAMES))[:, 0]
        detail = last.diff(dim=-1).abs().mean((1, 2, 3))
        best = (detail + free).topk(per_theme).indices
        tokens = encode_tokens(autoencoder, clips.pictures(_chosen(walks, best), range(START_FRAMES)).flatten(0, 1))
        latents.append(tokens.view(per_theme, START_FRAMES, *tokens.shape[1:]).cpu())
        controls.append(ahead[best, :START_FRAMES].cpu())
    return Starts(torch.stack(latents), torch.stack(controls))


def _distance(a: Poses, b: Poses) -> torch.Tensor:
    return torch.hypot(b.x - a.x, b.y - a.y)


def _chosen(walks: Walks, rows: torch.Tensor) -> Walks:
    poses = tuple(Poses(pose.x[rows], pose.y[rows], pose.heading[rows]) for pose in walks.poses)
    worlds = Worlds(walks.worlds.cells[rows])
    return Walks(worlds, poses, walks.controls[rows], walks.themes[rows], walks.prompts[rows])
