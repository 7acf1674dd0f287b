"""The synthetic family by itself, on one rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ithaka.workers.families.base import Controls, FamilyInputError, FamilyLoadError, StepInput
from ithaka.workers.families.synthetic import barcode
from ithaka.workers.families.synthetic.family import SyntheticFamily, load


def _load(rank: int = 0, **options: Any) -> SyntheticFamily:
    return load(model="m", options=options, device=torch.device("cpu"), rank=rank, num_ranks=1, communicator=None)


def _frames(family: SyntheticFamily, chunks: int, *, seed: int = 1, controls: Controls | None = None) -> torch.Tensor:
    session = family.open_session("s", seed=seed, prompt="a maze", options={})
    steps = [family.step(session, StepInput("s", chunk, controls or Controls()), lambda: None) for chunk in range(chunks)]
    return torch.cat([step for step in steps if step is not None])


def _read(family: SyntheticFamily, frame: torch.Tensor) -> barcode.Barcode | None:
    return barcode.read(np.asarray(frame[: family.spec.height]))


def test_frames_are_numbered_and_say_what_was_pressed() -> None:
    family = _load(width=128, height=64, chunk_frames=3)
    held, tapped = frozenset({"KeyW", "ArrowLeft"}), frozenset({"KeyD"})
    frames = _frames(family, 2, controls=Controls(held, tapped))
    assert frames.shape == (6, 96, 128) and frames.dtype == torch.uint8
    prompt = barcode.check(b"a maze")
    assert [_read(family, frame) for frame in frames] == [
        barcode.Barcode(number, held, tapped, prompt) for number in range(1, 7)
    ]


def test_a_new_prompt_shows() -> None:
    family = _load()
    frames = _frames(family, 1, controls=Controls(prompt="another"))
    code = _read(family, frames[0])
    assert code is not None and code.prompt_check == barcode.check(b"another")


def test_the_picture_moves_and_follows_seed_and_pointer() -> None:
    family = _load(chunk_frames=2)
    still = _frames(family, 1)
    assert not torch.equal(still[0, -64:], still[1, -64:])
    assert torch.equal(still, _frames(family, 1))
    assert not torch.equal(still[0, -64:], _frames(family, 1, seed=2)[0, -64:])
    assert not torch.equal(still[0, -64:], _frames(family, 1, controls=Controls(pointer_dx=20))[0, -64:])


def test_the_last_chunk_is_short_and_then_there_is_none() -> None:
    family = _load(chunk_frames=4)
    session = family.open_session("s", seed=0, prompt="", options={"frames": 6})
    steps = [family.step(session, StepInput("s", chunk, Controls()), lambda: None) for chunk in range(3)]
    assert [None if step is None else len(step) for step in steps] == [4, 2, None]


def test_other_ranks_return_nothing() -> None:
    family = _load(rank=1)
    session = family.open_session("s", seed=0, prompt="", options={})
    assert family.step(session, StepInput("s", 0, Controls()), lambda: None) is None


def test_pretended_work_shows_progress() -> None:
    family = _load(step_ms=120)
    session = family.open_session("s", seed=0, prompt="", options={})
    calls: list[None] = []
    family.step(session, StepInput("s", 0, Controls()), lambda: calls.append(None))
    assert len(calls) >= 3


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"widht": 128}, "widht"),
        ({"width": 129}, "width"),
        ({"width": 126}, "width"),
        ({"height": 62}, "height"),
        ({"fps": 0}, "fps"),
        ({"fps": "16"}, "fps"),
        ({"chunk_frames": 65}, "chunk_frames"),
        ({"frames": 0}, "frames"),
        ({"width": 4096, "height": 4096, "chunk_frames": 64}, "pixels"),
    ],
)
def test_a_wrong_model_option_is_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises(FamilyLoadError, match=field):
        _load(**options)


def test_fail_load_fails() -> None:
    with pytest.raises(FamilyLoadError, match="fail_load"):
        _load(fail_load=True)


@pytest.mark.parametrize("options", [{"frames": 0}, {"frames": "9"}, {"width": 256}, {"fail_at_chunk": 0}])
def test_a_session_may_choose_its_length_only(options: dict[str, Any]) -> None:
    with pytest.raises(FamilyInputError, match=next(iter(options))):
        _load().open_session("s", seed=0, prompt="", options=options)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(FamilyInputError, match="seed"):
        _load().open_session("s", seed=-1, prompt="", options={})


def test_injected_failures_come_at_their_chunk() -> None:
    family = _load(fail_at_chunk=1)
    session = family.open_session("s", seed=0, prompt="", options={})
    assert family.step(session, StepInput("s", 0, Controls()), lambda: None) is not None
    with pytest.raises(RuntimeError, match="fail_at_chunk"):
        family.step(session, StepInput("s", 1, Controls()), lambda: None)
    family = _load(refuse_at_chunk=0)
    session = family.open_session("s", seed=0, prompt="", options={})
    with pytest.raises(FamilyInputError, match="refuse_at_chunk"):
        family.step(session, StepInput("s", 0, Controls()), lambda: None)
