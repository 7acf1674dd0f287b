"""What the maze can look like: palettes that a prompt picks by its words, and that mix linearly."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ithaka.workers.families.wan.prompt import THEME_WORDS

Colour = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours in linear 0..1 RGB; scalars say how the surfaces look."""

    bricks: tuple[Colour, Colour, Colour, Colour, Colour, Colour]
    mortar: Colour
    floor_light: Colour
    floor_dark: Colour
    zenith: Colour
    horizon: Colour
    light: Colour
    """Colour of the sun or moon and of its glow."""
    glow: float
    stars: float
    fog: float
    """Extinction per cell of distance."""
    contrast: float
    """How far mortar and brick-to-brick variation stand out."""


THEMES: dict[str, Theme] = {
    "garden": Theme(
        bricks=(
            (0.80, 0.30, 0.24),
            (0.27, 0.45, 0.78),
            (0.90, 0.72, 0.28),
            (0.26, 0.62, 0.55),
            (0.60, 0.38, 0.68),
            (0.88, 0.84, 0.76),
        ),
        mortar=(0.86, 0.84, 0.78),
        floor_light=(0.52, 0.70, 0.36),
        floor_dark=(0.40, 0.60, 0.29),
        zenith=(0.25, 0.52, 0.90),
        horizon=(0.78, 0.90, 0.98),
        light=(1.0, 0.97, 0.82),
        glow=0.25,
        stars=0.0,
        fog=0.05,
        contrast=1.0,
    ),
    "sunset": Theme(
        bricks=(
            (0.78, 0.34, 0.24),
            (0.52, 0.26, 0.42),
            (0.92, 0.58, 0.30),
            (0.40, 0.30, 0.52),
            (0.84, 0.44, 0.46),
            (0.94, 0.78, 0.58),
        ),
        mortar=(0.34, 0.20, 0.26),
        floor_light=(0.72, 0.48, 0.40),
        floor_dark=(0.56, 0.35, 0.36),
        zenith=(0.26, 0.20, 0.46),
        horizon=(1.0, 0.58, 0.32),
        light=(1.0, 0.86, 0.52),
        glow=0.75,
        stars=0.0,
        fog=0.06,
        contrast=0.9,
    ),
    "ice": Theme(
        bricks=(
            (0.62, 0.82, 0.94),
            (0.36, 0.60, 0.84),
            (0.86, 0.93, 0.98),
            (0.42, 0.76, 0.80),
            (0.66, 0.68, 0.92),
            (0.26, 0.44, 0.68),
        ),
        mortar=(0.95, 0.98, 1.0),
        floor_light=(0.90, 0.95, 0.99),
        floor_dark=(0.74, 0.85, 0.94),
        zenith=(0.48, 0.68, 0.88),
        horizon=(0.92, 0.96, 1.0),
        light=(1.0, 1.0, 1.0),
        glow=0.3,
        stars=0.0,
        fog=0.08,
        contrast=0.8,
    ),
    "jungle": Theme(
        bricks=(
            (0.30, 0.48, 0.22),
            (0.50, 0.40, 0.24),
            (0.58, 0.62, 0.28),
            (0.18, 0.40, 0.34),
            (0.66, 0.52, 0.30),
            (0.42, 0.56, 0.38),
        ),
        mortar=(0.14, 0.22, 0.12),
        floor_light=(0.40, 0.36, 0.20),
        floor_dark=(0.28, 0.30, 0.15),
        zenith=(0.22, 0.46, 0.44),
        horizon=(0.74, 0.86, 0.58),
        light=(0.98, 0.98, 0.70),
        glow=0.35,
        stars=0.0,
        fog=0.09,
        contrast=1.0,
    ),
    "night": Theme(
        bricks=(
            (0.62, 0.16, 0.46),
            (0.12, 0.44, 0.60),
            (0.36, 0.20, 0.62),
            (0.12, 0.52, 0.40),
            (0.64, 0.36, 0.14),
            (0.30, 0.34, 0.48),
        ),
        mortar=(0.05, 0.06, 0.12),
        floor_light=(0.17, 0.19, 0.30),
        floor_dark=(0.10, 0.11, 0.20),
        zenith=(0.02, 0.03, 0.10),
        horizon=(0.13, 0.16, 0.34),
        light=(0.94, 0.95, 1.0),
        glow=0.3,
        stars=1.0,
        fog=0.07,
        contrast=1.0,
    ),
    "desert": Theme(
        bricks=(
            (0.86, 0.66, 0.42),
            (0.72, 0.46, 0.30),
            (0.94, 0.82, 0.58),
            (0.24, 0.58, 0.60),
            (0.62, 0.34, 0.24),
            (0.80, 0.56, 0.44),
        ),
        mortar=(0.60, 0.46, 0.32),
        floor_light=(0.93, 0.80, 0.56),
        floor_dark=(0.85, 0.69, 0.46),
        zenith=(0.30, 0.58, 0.84),
        horizon=(0.98, 0.90, 0.72),
        light=(1.0, 0.97, 0.84),
        glow=0.5,
        stars=0.0,
        fog=0.05,
        contrast=0.8,
    ),
}
THEME_NAMES = tuple(THEME_WORDS)
NUM_COLOURS = 6
PALETTE_WIDTH = 3 * (NUM_COLOURS + 6) + 4


def palette_table(device: torch.device) -> torch.Tensor:
    """One row per theme, float32 ``[themes, PALETTE_WIDTH]``: bricks, mortar, floor, sky, light, then the scalars."""
    rows = []
    for name in THEME_NAMES:
        theme = THEMES[name]
        colours = [*theme.bricks, theme.mortar, theme.floor_light, theme.floor_dark]
        colours += [theme.zenith, theme.horizon, theme.light]
        row = [value for colour in colours for value in colour]
        rows.append([*row, theme.glow, theme.stars, theme.fog, theme.contrast])
    return torch.tensor(rows, device=device)
