"""The simulator: walls stop, controls move, pictures show it."""

from __future__ import annotations

import math

import pytest
import torch
from training.labyrinth.clips import ClipMaker, random_controls
from training.labyrinth.render import render
from training.labyrinth.themes import NUM_COLOURS, PALETTE_WIDTH, THEME_NAMES, palette_table
from training.labyrinth.world import (
    FORWARD_PER_FRAME,
    GRID,
    STRAFE_PER_FRAME,
    TURN_PER_FRAME,
    WALKER_RADIUS,
    Poses,
    Worlds,
    make_worlds,
    start_poses,
    walk,
)

CPU = torch.device("cpu")


def _empty() -> Worlds:
    return Worlds(torch.zeros(1, GRID, GRID, dtype=torch.uint8))


def _pose(x: float, y: float, heading: float) -> Poses:
    return Poses(torch.tensor([x]), torch.tensor([y]), torch.tensor([heading]))


def _moved(worlds: Worlds, pose: Poses, forward: float, strafe: float, turn: float) -> tuple[float, float, float]:
    after = walk(worlds, pose, torch.tensor([[forward, strafe, turn]]))
    return after.x.item(), after.y.item(), after.heading.item()


def test_controls_move_as_they_say() -> None:
    here = _pose(3.5, 4.5, 0.0)
    assert _moved(_empty(), here, 1, 0, 0) == pytest.approx((3.5 + FORWARD_PER_FRAME, 4.5, 0.0))
    assert _moved(_empty(), here, 0, 1, 0) == pytest.approx((3.5, 4.5 + STRAFE_PER_FRAME, 0.0))
    assert _moved(_empty(), here, 0, 0, -1) == pytest.approx((3.5, 4.5, -TURN_PER_FRAME))


def test_walls_stop_and_are_slid_along() -> None:
    worlds = _empty()
    worlds.cells[0, :, 5] = 1
    before = _pose(5 - WALKER_RADIUS - 0.01, 4.5, math.pi / 4)
    x, y, _ = _moved(worlds, before, 1, 0, 0)
    assert x == pytest.approx(before.x.item())
    assert y > 4.5


def test_nobody_ever_stands_in_a_wall() -> None:
    generator = torch.Generator().manual_seed(1)
    worlds = make_worlds(32, NUM_COLOURS, generator, CPU)
    poses = start_poses(32, generator, CPU)
    controls = random_controls(32, 60, 0.2, generator, CPU)
    for frame in range(60):
        assert not worlds.solid(poses.x[:, None], poses.y[:, None]).any()
        poses = walk(worlds, poses, controls[:, frame])


def _picture(worlds: Worlds, pose: Poses, theme: int = 0) -> torch.Tensor:
    return render(worlds, pose, palette_table(CPU)[theme : theme + 1], size_pixels=32, oversampling=1)


def test_a_near_wall_fills_the_picture_and_shows_its_colour() -> None:
    worlds = _empty()
    worlds.cells[0, 4, 5] = 2
    near = _picture(worlds, _pose(4.7, 4.5, 0.0))
    away = _picture(worlds, _pose(4.7, 4.5, math.pi))
    assert near[0, 2, 8:24, 8:24].mean() > near[0, 0, 8:24, 8:24].mean()
    assert away[0, 1, 24:].mean() > away[0, 2, 24:].mean()
    assert near.min() >= 0 and near.max() <= 1


def test_the_plane_repeats() -> None:
    worlds = make_worlds(1, NUM_COLOURS, torch.Generator().manual_seed(2), CPU)
    here, far = _pose(8.5, 8.5, 0.3), _pose(8.5 + 5 * GRID, 8.5 - 3 * GRID, 0.3)
    torch.testing.assert_close(_picture(worlds, here), _picture(worlds, far), rtol=0, atol=0.02)


def test_every_look_is_its_own() -> None:
    table = palette_table(CPU)
    assert table.shape == (len(THEME_NAMES), PALETTE_WIDTH)
    pictures = [_picture(_empty(), _pose(3.5, 3.5, 0.0), theme) for theme in range(len(THEME_NAMES))]
    for index, picture in enumerate(pictures):
        assert all((picture - other).abs().mean() > 0.03 for other in pictures[:index])


def test_clips_switch_their_look_with_their_words() -> None:
    walks = ClipMaker(3, CPU).walks(64, 8, switch=1.0)
    changes = (walks.themes[:, 1:] != walks.themes[:, :-1]).any(1)
    word_changes = (walks.prompts[:, 1:] != walks.prompts[:, :-1]).flatten(1).any(1)
    assert changes.float().mean() > 0.6
    assert (word_changes | ~changes).all()
    assert not ClipMaker(3, CPU).walks(8, 4, wordless=1.0).prompts.any()


def test_walks_that_return_come_back() -> None:
    controls = random_controls(200, 16, 1.0, torch.Generator().manual_seed(4), CPU)
    for row in controls:
        assert any(torch.equal(row[turn : 2 * turn], -row[:turn].flip(0)[: 16 - turn]) for turn in range(5, 12))


def test_pictures_in_blocks_equal_pictures_at_once() -> None:
    maker, blocks = ClipMaker(5, CPU), ClipMaker(5, CPU, block=4)
    walks = maker.walks(3, 2)
    torch.testing.assert_close(maker.pictures(walks), blocks.pictures(walks))
