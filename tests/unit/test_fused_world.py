"""The shipped model with its queries and keys normed and turned by the exchange, as between GPUs: here by the host's."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from tests.unit.ulysses_loopback import on_every_rank

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.workers.families.base import Controls, StepInput
from ithaka.workers.families.wan import family as wan
from ithaka.workers.families.wan.shards import share_of

FRAMES = 3


def walk(communicator: UlyssesCommunicator | None, rank: int, num_ranks: int) -> list[torch.Tensor]:
    """Pictures on rank 0, nothing elsewhere."""
    family = wan.load(
        model="labyrinth",
        options={"dtype": "float32", "steps": 2},
        device=torch.device("cpu"),
        rank=rank,
        num_ranks=num_ranks,
        communicator=communicator,
    )
    session = family.open_session("walk", seed=3, prompt="ice", options={})
    made = [
        family.step(session, StepInput("walk", chunk, Controls(frozenset({"KeyW"}))), lambda: None) for chunk in range(FRAMES)
    ]
    return [frame for frame in made if frame is not None]


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_pictures_are_those_of_one_rank(num_ranks: int) -> None:
    calls: list[int] = []
    plain = UlyssesCommunicator.fused_qk_norm_rope_scatter

    def counted(self: UlyssesCommunicator, *args: torch.Tensor, **named: object) -> object:
        calls.append(self.rank)
        return plain(self, *args, **named)  # type: ignore[arg-type]

    with (
        patch.object(wan, "share_of", share_of_fused),
        patch.object(UlyssesCommunicator, "fused_qk_norm_rope_scatter", counted),
    ):
        outcomes = on_every_rank(num_ranks, lambda ours: walk(ours, ours.rank, num_ranks), max_bytes=1 << 24)
    assert set(calls) == set(range(num_ranks))
    pictures = outcomes[0]
    assert isinstance(pictures, list), outcomes
    for got, wanted in zip(pictures, walk(None, 0, 1), strict=True):
        assert (got.int() - wanted.int()).abs().max() <= 1


def share_of_fused(*args: int, **named: object) -> object:
    """share_of as on CUDA devices."""
    return share_of(*args, **{**named, "fuses": True})  # type: ignore[arg-type]
