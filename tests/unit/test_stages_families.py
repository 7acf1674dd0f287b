"""What families offer to be split, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest
import torch

from ithaka.workers.families import registry
from ithaka.workers.families.base import Controls, FamilyLoadError, StepInput
from ithaka.workers.families.stages import Chunk

CPU = torch.device("cpu")
OPTIONS: dict[str, dict[str, Any]] = {
    "synthetic": {"width": 128, "height": 64, "chunk_frames": 3, "frames": 8},
    "labyrinth": {"dtype": "float32"},
}


def both_ways(family: str, options: dict[str, Any], carry: Callable[[Chunk], Chunk]) -> tuple[list[Any], list[Any]]:
    """Six steps as one, and as two stages with ``carry`` between them."""
    alone: dict[str, Any] = {"device": CPU, "rank": 0, "num_ranks": 1, "communicator": None}
    loaders = registry.resolve_stages(family)
    whole = registry.resolve(family)(model="m", options=options, **alone)
    denoiser = loaders.denoiser(model="m", options=options, **alone)
    decoder = loaders.decoder(model="m", options=options, device=CPU)
    assert decoder.spec.chunk_frames == denoiser.spec.chunk_frames == whole.spec.chunk_frames
    about: dict[str, Any] = {"seed": 5, "prompt": "night", "options": {}}
    session, latents = whole.open_session("s", **about), denoiser.open_session("s", **about)
    drawn = decoder.open_session("s", **about)
    ones: list[Any] = []
    twos: list[Any] = []
    for chunk in range(6):
        controls = Controls(held=frozenset({"KeyW"}), pointer_dx=7.0 * chunk, prompt="ice" if chunk == 2 else None)
        step = StepInput("s", chunk, controls)
        ones.append(whole.step(session, step, lambda: None))
        made = denoiser.denoise(latents, step, lambda: None)
        if made is not None:
            assert sum(tensor.nbytes for tensor in made.tensors) <= denoiser.latents_bytes
        twos.append(None if made is None else decoder.decode(drawn, carry(made), lambda: None))
    return ones, twos


@pytest.mark.parametrize("family", OPTIONS)
def test_a_step_is_its_two_stages_in_a_row(family: str) -> None:
    ones, twos = both_ways(
        family, OPTIONS[family], lambda chunk: Chunk(tuple(x.clone() for x in chunk.tensors), chunk.num_frames)
    )
    assert any(one is not None for one in ones)
    for one, two in zip(ones, twos, strict=True):
        assert (one is None) == (two is None)
        assert one is None or torch.equal(one, two)


def test_a_family_without_stages_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints(
        [
            EntryPoint("whole", "ithaka.workers.i420:rgb_to_i420", registry.ENTRY_POINT_GROUP),
            EntryPoint("broken", "ithaka.no_such_module:load", registry.ENTRY_POINT_GROUP),
            EntryPoint("theirs", "ithaka.workers.families.synthetic.family:load", registry.ENTRY_POINT_GROUP),
        ]
    )
    monkeypatch.setattr(registry, "entry_points", lambda **selection: points.select(**selection))
    with pytest.raises(FamilyLoadError, match="'whole' can't be split into stages: its module has no load_denoiser") as refused:
        registry.resolve_stages("whole")
    assert refused.value.field == "stages"
    for family, reason in (("broken", "no_such_module"), ("nothing", "no family is named")):
        with pytest.raises(FamilyLoadError, match=reason):
            registry.resolve_stages(family)
    assert registry.resolve_stages("theirs") == registry.resolve_stages("synthetic")
