"""The maze as a simulation: many worlds at once, walls that stop the walker, no pixels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

GRID = 16
"""Cells along one side; the plane repeats beyond it, so that a walk never ends."""
WALKER_RADIUS = 0.25
FORWARD_PER_FRAME = 0.12
STRAFE_PER_FRAME = 0.09
TURN_PER_FRAME = 0.11
"""Radians, 6.3 degrees: the turn of a held arrow key."""
WALL_SHARE = 0.27


@dataclass(frozen=True, slots=True)
class Worlds:
    """``cells`` uint8 [B, GRID, GRID]: 0 free, 1.. the colour of a block."""

    cells: torch.Tensor

    def solid(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Whether the points (x, y), float [B, ...] in cells, lie in a block."""
        column = torch.floor(x).long() % GRID
        row = torch.floor(y).long() % GRID
        flat = (row * GRID + column).flatten(1)
        return (self.cells.flatten(1).gather(1, flat) > 0).view(x.shape)


@dataclass(frozen=True, slots=True)
class Poses:
    """Where the walkers stand and look: float32 [B] each, cells and radians."""

    x: torch.Tensor
    y: torch.Tensor
    heading: torch.Tensor


def make_worlds(num_worlds: int, num_colours: int, generator: torch.Generator, device: torch.device) -> Worlds:
    """Scatter blocks. The cell of the start and its right neighbour are always free."""
    wall = torch.rand(num_worlds, GRID, GRID, generator=generator, device=device) < WALL_SHARE
    colour = torch.randint(1, num_colours + 1, wall.shape, generator=generator, device=device)
    cells = torch.where(wall, colour, 0).to(torch.uint8)
    middle = GRID // 2
    cells[:, middle, middle : middle + 2] = 0
    return Worlds(cells)


def start_poses(num_worlds: int, generator: torch.Generator, device: torch.device) -> Poses:
    """Stand near the middle of the plane, looking anywhere."""
    jitter = torch.rand(3, num_worlds, generator=generator, device=device)
    x = GRID // 2 + 0.3 + 1.4 * jitter[0]
    y = GRID // 2 + 0.3 + 0.4 * jitter[1]
    return Poses(x, y, 2 * torch.pi * jitter[2])


def walk(worlds: Worlds, poses: Poses, controls: torch.Tensor) -> Poses:
    """Move one frame. ``controls`` float [B, 3]: forward, strafe (right), turn (right), each about -1..1."""
    heading = poses.heading + TURN_PER_FRAME * controls[:, 2]
    ahead_x, ahead_y = torch.cos(heading), torch.sin(heading)
    forward = FORWARD_PER_FRAME * controls[:, 0]
    strafe = STRAFE_PER_FRAME * controls[:, 1]
    step_x = forward * ahead_x - strafe * ahead_y
    step_y = forward * ahead_y + strafe * ahead_x
    x = torch.where(_touches(worlds, poses.x + step_x, poses.y), poses.x, poses.x + step_x)
    y = torch.where(_touches(worlds, x, poses.y + step_y), poses.y, poses.y + step_y)
    return Poses(x, y, heading)


def _touches(worlds: Worlds, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    sign = torch.tensor([-1.0, 1.0], device=x.device) * WALKER_RADIUS
    corner_x = x[:, None, None] + sign[None, :, None]
    corner_y = y[:, None, None] + sign[None, None, :]
    shape = (x.shape[0], 2, 2)
    return worlds.solid(corner_x.expand(shape), corner_y.expand(shape)).flatten(1).any(1)
