"""Clips for training and for evaluation: controls drawn at random, poses, pictures, prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ithaka.workers.families.wan.prompt import PROMPT_TOKENS, THEME_WORDS, VOCABULARY

from .render import render
from .themes import NUM_COLOURS, THEME_NAMES, palette_table
from .world import Poses, Worlds, make_worlds, start_poses, walk

Renderer = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class Walks:
    """A batch of walks. ``controls`` [B, F, 3] (row f leads to frame f), ``poses`` of F frames, ``themes`` [B, F]."""

    worlds: Worlds
    poses: tuple[Poses, ...]
    controls: torch.Tensor
    themes: torch.Tensor
    prompts: torch.Tensor
    """int64 [B, F, PROMPT_TOKENS]: zeros where the clip comes without words."""


class ClipMaker:
    """Draws clips on one device from one generator."""

    def __init__(self, seed: int, device: torch.device, renderer: Renderer = render, block: int | None = None) -> None:
        """``block`` fixes the number of pictures per call of the renderer, which a compiled one likes."""
        self.device = device
        self._block = block
        self.generator = torch.Generator(device=device).manual_seed(seed)
        self._palettes = palette_table(device)
        self._renderer = renderer
        offsets, words = [], []
        for name in THEME_NAMES:
            offsets.append(VOCABULARY.index(THEME_WORDS[name][0]) + 1)
            words.append(len(THEME_WORDS[name]))
        self._word_offset = torch.tensor(offsets, device=device)
        self._num_words = torch.tensor(words, device=device)

    def walks(
        self,
        num_clips: int,
        num_frames: int,
        *,
        controls: torch.Tensor | None = None,
        returns: float = 0.0,
        switch: float = 0.0,
        wordless: float = 0.0,
    ) -> Walks:
        """Walk ``num_frames`` frames in new worlds.

        Shares of the clips: ``returns`` go back the way they came, ``switch`` change their look and prompt on the way,
        ``wordless`` have no prompt.
        """
        worlds = make_worlds(num_clips, NUM_COLOURS, self.generator, self.device)
        poses = start_poses(num_clips, self.generator, self.device)
        given = controls
        if given is None:
            given = random_controls(num_clips, num_frames, returns, self.generator, self.device)
        path = []
        for frame in range(num_frames):
            poses = walk(worlds, poses, given[:, frame])
            path.append(poses)
        themes, prompts = self._themes(num_clips, num_frames, switch, wordless)
        return Walks(worlds, tuple(path), given, themes, prompts)

    def pictures(self, walks: Walks, frames: range | None = None) -> torch.Tensor:
        """float32 RGB 0..1 of the chosen frames, [B, frames, 3, 128, 128]."""
        chosen = frames if frames is not None else range(len(walks.poses))
        num = walks.controls.shape[0]
        cells = walks.worlds.cells.repeat(len(chosen), 1, 1)
        x, y, heading = (torch.cat([getattr(walks.poses[f], axis) for f in chosen]) for axis in ("x", "y", "heading"))
        palettes = self._palettes[walks.themes[:, list(chosen)].T.flatten()]
        block = self._block or cells.shape[0]
        out = []
        for first in range(0, cells.shape[0], block):
            rows = torch.arange(first, first + block, device=self.device) % cells.shape[0]
            poses = Poses(x[rows], y[rows], heading[rows])
            out.append(self._renderer(Worlds(cells[rows]), poses, palettes[rows]))
        pictures = torch.cat(out)[: cells.shape[0]]
        return pictures.view(len(chosen), num, *pictures.shape[1:]).transpose(0, 1)

    def _themes(self, num: int, num_frames: int, switch: float, wordless: float) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = self._randint(len(THEME_NAMES), num), self._randint(len(THEME_NAMES), num)
        silent = self._rand(num) < wordless
        switching = (self._rand(num) < switch) & ~silent
        at = 1 + self._randint(max(1, num_frames - 1), num)
        at = torch.where(switching, at, num_frames)
        late = torch.arange(num_frames, device=self.device)[None] >= at[:, None]
        themes = torch.where(late, second[:, None], first[:, None])
        words = torch.where(late[:, :, None], self._words(second)[:, None], self._words(first)[:, None])
        return themes, torch.where(silent[:, None, None], 0, words)

    def _words(self, theme: torch.Tensor) -> torch.Tensor:
        pick = (self._rand(theme.shape[0], PROMPT_TOKENS) * self._num_words[theme][:, None]).long()
        count = 1 + self._randint(3, theme.shape[0])
        used = torch.arange(PROMPT_TOKENS, device=self.device)[None] < count[:, None]
        return torch.where(used, self._word_offset[theme][:, None] + pick, 0)

    def _rand(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device)

    def _randint(self, high: int, num: int) -> torch.Tensor:
        return torch.randint(0, high, (num,), generator=self.generator, device=self.device)


def random_controls(
    num: int, num_frames: int, returns: float, generator: torch.Generator, device: torch.device
) -> torch.Tensor:
    """Controls as a person gives them: held for a while, mostly ahead, turns by key or pointer.

    A share ``returns`` of the walks goes back the way it came. Returns float [num, num_frames, 3]: forward, strafe, turn.
    """

    def rand(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, device=device)

    shape = (num, num_frames)
    dice = rand(3, *shape)
    forward = (dice[0] > 0.36).float() - (dice[0] < 0.12).float()
    strafe = (dice[1] > 0.87).float() - (dice[1] < 0.13).float()
    turn = (dice[2] > 0.70).float() - (dice[2] < 0.30).float()
    pointer = rand(*shape) < 0.3
    turn = torch.where(pointer, turn * (0.1 + 1.4 * rand(*shape)), turn)
    drawn = torch.stack([forward, strafe, turn], -1)
    held_for = 1 + 11 * rand(num, 1)
    renew = rand(*shape) < 1 / held_for
    renew[:, 0] = True
    frames = torch.arange(num_frames, device=device).expand(shape)
    source = torch.where(renew, frames, 0).cummax(1).values
    controls = drawn.gather(1, source[:, :, None].expand(-1, -1, 3))
    turning_point = num_frames // 3 + (rand(num, 1) * num_frames * 0.4).long()
    mirrored = 2 * turning_point - 1 - frames
    back = -controls.gather(1, mirrored.clamp(0, num_frames - 1)[:, :, None].expand(-1, -1, 3))
    returning = (rand(num, 1) < returns) & (frames >= turning_point) & (mirrored >= 0)
    return torch.where(returning[:, :, None], back, controls)
