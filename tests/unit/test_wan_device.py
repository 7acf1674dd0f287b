"""A device that computes nothing, but refuses to mix with another: what the model makes on a walk lies where the model lies."""

from __future__ import annotations

import pytest
import torch

from ithaka.workers.families.base import Controls, StepInput
from ithaka.workers.families.wan.family import load
from ithaka.workers.i420 import rgb_to_i420

NOWHERE = torch.device("meta")


def test_a_walk_stays_on_the_models_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)  # it does not know this device
    family = load(model="labyrinth", options={"dtype": "bfloat16"}, device=NOWHERE, rank=0, num_ranks=1, communicator=None)
    session = family.open_session("walk", seed=3, prompt="ice", options={})
    for chunk in range(2):
        controls = Controls(frozenset({"KeyW"}), prompt="sunset" if chunk == 1 else None)
        made = family.step(session, StepInput("walk", chunk, controls), lambda: None)
        assert made is not None
        assert (made.device, made.dtype) == (NOWHERE, torch.uint8)
        assert rgb_to_i420(made).device == NOWHERE
