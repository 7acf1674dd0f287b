"""Film strips: rows of pictures to look at."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

from ithaka.workers.families.wan.prompt import THEME_WORDS, padded_ids, word_ids
from ithaka.workers.families.wan.spec import Schedule
from ithaka.workers.families.wan.weights_folder import WorldModel

from .clips import ClipMaker, Walks
from .evaluate import FREE_CONTEXT, begin, decode_tokens, generate, make_sampler
from .themes import THEME_NAMES

WALK_COLUMNS = (1, 5, 11, 20, 48, 100, 200, 300, 450, 600)
SWITCH_EVERY = 10


def save_picture(path: Path, rows: torch.Tensor, gap_pixels: int = 2) -> None:
    """Write RGB 0..1 [rows, columns, 3, H, W] as one PNG."""
    padded = torch.nn.functional.pad(rows, (0, gap_pixels, 0, gap_pixels), value=1.0)
    sheet = padded.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)
    Image.fromarray((sheet.clamp(0, 1) * 255).round().byte().cpu().numpy()).save(path)


def walk_strip(model: WorldModel, clips: ClipMaker, schedule: Schedule, columns: tuple[int, ...]) -> torch.Tensor:
    """One row per theme: the last true frame, then generated frames, far into the walk."""
    walks = clips.walks(len(THEME_NAMES), FREE_CONTEXT + max(columns))
    walks = _themed(walks)
    kept = [clips.pictures(walks, range(FREE_CONTEXT - 1, FREE_CONTEXT))[:, 0]]
    for number, picture in generate(model, clips, walks, FREE_CONTEXT, max(columns), schedule):
        if number in columns:
            kept.append(picture)
    return torch.stack([row.cpu() for row in kept], 1)


def truth_strip(model: WorldModel, clips: ClipMaker, schedule: Schedule) -> torch.Tensor:
    """Pairs of rows, truth over model, for four mazes: generated frames 1 to 23 of a free walk."""
    numbers = (1, 2, 3, 5, 8, 11, 15, 19, 23)
    walks = clips.walks(4, FREE_CONTEXT + max(numbers))
    made = {n: p.cpu() for n, p in generate(model, clips, walks, FREE_CONTEXT, max(numbers), schedule) if n in numbers}
    true = [clips.pictures(walks, range(FREE_CONTEXT + n - 1, FREE_CONTEXT + n))[:, 0].cpu() for n in numbers]
    return torch.stack([torch.stack(true, 1), torch.stack(list(made.values()), 1)], 1).flatten(0, 1)


def switch_strip(model: WorldModel, clips: ClipMaker, schedule: Schedule) -> torch.Tensor:
    """One row: the walker stands and turns slowly while the prompt changes every few frames."""
    walks = clips.walks(1, FREE_CONTEXT)
    sampler = make_sampler(model, model.sampling, schedule)
    stream = begin(sampler, model.autoencoder, clips, walks, FREE_CONTEXT)
    device = walks.controls.device
    shown = []
    for name in THEME_NAMES:
        ids = padded_ids(word_ids(f"a {THEME_WORDS[name][0]} labyrinth"))
        sampler.set_prompt(stream, torch.tensor([ids], device=device))
        for step in range(SWITCH_EVERY):
            tokens = sampler.sample(stream, torch.tensor([[0.3, 0.0, 0.15]], device=device))
            if step in (0, SWITCH_EVERY - 1):
                shown.append(decode_tokens(model.autoencoder, tokens)[0].cpu())
    return torch.stack(shown)[None]


def _themed(walks: Walks) -> Walks:
    themes = torch.arange(len(THEME_NAMES), device=walks.themes.device)[:, None].expand_as(walks.themes)
    ids = [padded_ids(word_ids(THEME_WORDS[name][0])) for name in THEME_NAMES]
    prompts = torch.tensor(ids, device=walks.prompts.device)[:, None].expand_as(walks.prompts)
    return Walks(walks.worlds, walks.poses, walks.controls, themes, prompts)
