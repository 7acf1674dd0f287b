"""From worlds and poses to pictures: a vectorised ray caster with bricks, floor tiles, sky and fog."""

from __future__ import annotations

import math

import torch

from .themes import NUM_COLOURS
from .world import GRID, Poses, Worlds

FIELD_OF_VIEW = 1.25
"""Radians, horizontally and vertically."""
MAX_CROSSINGS = 26
"""Grid lines a ray may cross: about 13 cells of sight, where the fog has closed."""
SUN_AZIMUTH = 0.7
SUN_ELEVATION = 0.42
BRICK_ROWS = 4.0
BRICKS_PER_CELL = 2.0


def render(
    worlds: Worlds, poses: Poses, palettes: torch.Tensor, *, size_pixels: int = 128, oversampling: int = 2
) -> torch.Tensor:
    """Draw what each walker sees.

    ``palettes`` float [B, PALETTE_WIDTH] (rows of ``palette_table``, or a mix). Returns float32 RGB in 0..1,
    [B, 3, size_pixels, size_pixels].
    """
    size = size_pixels * oversampling
    picture = _shade(worlds, poses, palettes, size)
    if oversampling > 1:
        picture = torch.nn.functional.avg_pool2d(picture, oversampling)
    return picture.clamp(0, 1)


def _shade(worlds: Worlds, poses: Poses, palettes: torch.Tensor, size: int) -> torch.Tensor:
    device = poses.x.device
    half = math.tan(FIELD_OF_VIEW / 2)
    centred = (torch.arange(size, device=device) + 0.5) / size * 2 - 1
    across = centred * half
    up = -centred * half
    cos, sin = torch.cos(poses.heading)[:, None], torch.sin(poses.heading)[:, None]
    ray_x = cos - across * sin
    ray_y = sin + across * cos
    depth, along, colour, facing = _cast(worlds, poses, ray_x, ray_y)

    colours = palettes[:, : 3 * (NUM_COLOURS + 6)].reshape(-1, NUM_COLOURS + 6, 3)
    glow, stars, fog, contrast = (palettes[:, i, None, None] for i in range(-4, 0))
    sky = _sky(colours, glow, stars, poses.heading, across, up)
    wall_height = up[None, :, None] * depth[:, None, :]
    wall = _bricks(colours, contrast, depth, along, colour, facing, wall_height)
    floor, floor_depth = _floor(colours, contrast, poses, ray_x, ray_y, up)

    haze = colours[:, NUM_COLOURS + 4][:, :, None, None]
    wall = haze + (wall - haze) * torch.exp(-fog * depth[:, None, :] ** 1.2)[:, None]
    floor = haze + (floor - haze) * torch.exp(-fog * floor_depth**1.2)[:, None]
    is_wall = (wall_height.abs() < 0.5)[:, None]
    is_floor = (up < 0)[None, None, :, None]
    return torch.where(is_wall, wall, torch.where(is_floor, floor, sky))


def _cast(
    worlds: Worlds, poses: Poses, ray_x: torch.Tensor, ray_y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Walk every ray from grid line to grid line: depth, place along the wall, colour, face (0..3); [B, columns] each."""
    x, y = poses.x[:, None].expand_as(ray_x), poses.y[:, None].expand_as(ray_x)
    cell_x, cell_y = torch.floor(x), torch.floor(y)
    step_x, step_y = torch.sign(ray_x), torch.sign(ray_y)
    per_x = 1 / ray_x.abs().clamp_min(1e-6)
    per_y = 1 / ray_y.abs().clamp_min(1e-6)
    next_x = torch.where(step_x > 0, cell_x + 1 - x, x - cell_x) * per_x
    next_y = torch.where(step_y > 0, cell_y + 1 - y, y - cell_y) * per_y
    depth = torch.full_like(x, 1e3)
    colour = torch.zeros_like(x, dtype=torch.long)
    crossed_x = torch.zeros_like(x, dtype=torch.bool)
    going = torch.ones_like(x, dtype=torch.bool)
    cells = worlds.cells.flatten(1)
    for _ in range(MAX_CROSSINGS):
        to_x = next_x < next_y
        reached = torch.minimum(next_x, next_y)
        cell_x = torch.where(to_x, cell_x + step_x, cell_x)
        cell_y = torch.where(to_x, cell_y, cell_y + step_y)
        next_x = torch.where(to_x, next_x + per_x, next_x)
        next_y = torch.where(to_x, next_y, next_y + per_y)
        found = cells.gather(1, (cell_y.long() % GRID) * GRID + cell_x.long() % GRID).long()
        hit = going & (found > 0)
        depth = torch.where(hit, reached, depth)
        colour = torch.where(hit, found - 1, colour)
        crossed_x = torch.where(hit, to_x, crossed_x)
        going = going & ~hit
    depth = depth.clamp_min(0.02)
    along = torch.where(crossed_x, y + depth * ray_y, x + depth * ray_x)
    facing = torch.where(crossed_x, (step_x > 0).long(), 2 + (step_y > 0).long())
    return depth, along - torch.floor(along), colour, facing


def _bricks(
    colours: torch.Tensor,
    contrast: torch.Tensor,
    depth: torch.Tensor,
    along: torch.Tensor,
    colour: torch.Tensor,
    facing: torch.Tensor,
    height: torch.Tensor,
) -> torch.Tensor:
    """Colour of the wall at every pixel, [B, 3, rows, columns]."""
    base = colours.gather(1, colour[:, :, None].expand(-1, -1, 3)).transpose(1, 2)[:, :, None, :]
    mortar = colours[:, NUM_COLOURS][:, :, None, None]
    brightness = torch.tensor([1.0, 0.62, 0.78, 0.9], device=depth.device)[facing][:, None, None, :]
    row = (height + 0.5).clamp(0, 0.9999) * BRICK_ROWS
    course = torch.floor(row)
    column = along[:, None, :] * BRICKS_PER_CELL + 0.5 * (course % 2)
    brick = torch.floor(column)
    to_bed = torch.minimum(row - course, course + 1 - row) / BRICK_ROWS
    to_joint = torch.minimum(column - brick, brick + 1 - column) / BRICKS_PER_CELL
    joint = 1 - _smooth(torch.minimum(to_bed, to_joint), 0.012, 0.034)
    tone = torch.sin(brick * 12.9898 + course * 78.233 + colour[:, None, :] * 37.719) * 0.5
    near = (1 - _smooth(depth, 3.0, 8.0))[:, None, :]
    tone = 1 + 0.16 * contrast * near * tone
    edge = 1 - 0.25 * (1 - _smooth(torch.minimum(along, 1 - along), 0.0, 0.05))[:, None, :]
    foot = 0.82 + 0.18 * _smooth(height + 0.5, 0.0, 0.25)
    face = base * (tone * edge * foot)[:, None]
    share = (joint * near * 0.75 * contrast)[:, None]
    return (face + (mortar - face) * share) * brightness


def _floor(
    colours: torch.Tensor,
    contrast: torch.Tensor,
    poses: Poses,
    ray_x: torch.Tensor,
    ray_y: torch.Tensor,
    up: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Colour of the floor at every pixel, [B, 3, rows, columns], and its depth [1, rows, 1]."""
    depth = (0.5 / (-up).clamp_min(0.02))[None, :, None]
    x = poses.x[:, None, None] + depth * ray_x[:, None, :]
    y = poses.y[:, None, None] + depth * ray_y[:, None, :]
    near = 1 - _smooth(depth, 2.5, 7.0)
    tile_x, tile_y = x * 2, y * 2
    checker = 0.5 + 0.5 * torch.sign(torch.sin(torch.pi * tile_x) * torch.sin(torch.pi * tile_y))
    checker = 0.5 + (checker - 0.5) * near
    to_seam = torch.minimum((tile_x - torch.round(tile_x)).abs(), (tile_y - torch.round(tile_y)).abs())
    seam = (1 - _smooth(to_seam, 0.02, 0.06)) * near
    light = colours[:, NUM_COLOURS + 1][:, :, None, None]
    dark = colours[:, NUM_COLOURS + 2][:, :, None, None]
    ground = dark + (light - dark) * checker[:, None]
    return ground * (1 - 0.22 * contrast * seam)[:, None], depth


def _sky(
    colours: torch.Tensor,
    glow: torch.Tensor,
    stars: torch.Tensor,
    heading: torch.Tensor,
    across: torch.Tensor,
    up: torch.Tensor,
) -> torch.Tensor:
    """Colour of the sky at every pixel, [B, 3, rows, columns]: a gradient, a sun or moon with its glow, stars."""
    azimuth = (heading[:, None] + torch.atan(across))[:, None, :]
    elevation = torch.atan(up)[None, :, None]
    zenith = colours[:, NUM_COLOURS + 3][:, :, None, None]
    horizon = colours[:, NUM_COLOURS + 4][:, :, None, None]
    light = colours[:, NUM_COLOURS + 5][:, :, None, None]
    height = (elevation / (FIELD_OF_VIEW / 2)).clamp(0, 1) ** 0.8
    sky = horizon + (zenith - horizon) * height[:, None]
    turn = torch.remainder(azimuth - SUN_AZIMUTH + torch.pi, 2 * torch.pi) - torch.pi
    angle = torch.sqrt(turn**2 + (elevation - SUN_ELEVATION) ** 2)
    halo = glow * torch.exp(-((angle / 0.35) ** 2)) * 0.8
    disc = 1 - _smooth(angle, 0.085, 0.11)
    sky = sky + (light - sky) * torch.maximum(halo, disc)[:, None]
    cell_a, cell_e = torch.floor(azimuth / 0.1963495), torch.floor(elevation / 0.17)
    spot = torch.frac((torch.sin(torch.remainder(cell_a, 32) * 127.1 + cell_e * 311.7) * 43758.5).abs())
    off_a = azimuth / 0.1963495 - cell_a - (0.3 + 0.4 * spot)
    off_e = elevation / 0.17 - cell_e - (0.3 + 0.4 * torch.frac(spot * 7))
    star = (1 - _smooth(torch.sqrt(off_a**2 + off_e**2), 0.03, 0.12)) * (spot > 0.45) * stars
    return sky + (1 - sky) * (0.85 * star * (1 - disc))[:, None]


def _smooth(value: torch.Tensor, low: float, high: float) -> torch.Tensor:
    share = ((value - low) / (high - low)).clamp(0, 1)
    return share * share * (3 - 2 * share)
