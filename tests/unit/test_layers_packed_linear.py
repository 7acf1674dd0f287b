from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ithaka.workers.families.base import Controls, StepInput
from ithaka.workers.families.wan import family
from ithaka.workers.layers.packed_linear import PackedLinear, can_pack


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_products_are_those_of_the_plain_layer(bias: bool, dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(96, 160, bias=bias).to(dtype)
    x = torch.randn(2, 33, 96).to(dtype)
    with torch.inference_mode():
        plain, packed = PackedLinear(linear)(x), linear(x)
        torch.testing.assert_close(packed, plain, atol=tolerance, rtol=tolerance)
        rounded_last = F.gelu(linear.float()(x.float()), approximate="tanh").to(dtype)
        torch.testing.assert_close(PackedLinear(linear.to(dtype), gelu=True)(x), rounded_last, atol=tolerance, rtol=tolerance)


def test_only_the_cpu_packs() -> None:
    assert can_pack(torch.device("cpu"))
    assert not can_pack(torch.device("cuda"))


def _walk() -> list[torch.Tensor]:
    options = {"dtype": "float32"}
    world = family.load(model="labyrinth", options=options, device=torch.device("cpu"), rank=0, num_ranks=1, communicator=None)
    session = world.open_session("s", seed=7, prompt="night", options={})
    frames = [world.step(session, StepInput("s", chunk, Controls(frozenset({"KeyW"}))), lambda: None) for chunk in range(12)]
    return [frame for frame in frames if frame is not None]


def test_a_packed_model_makes_the_pictures_of_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = _walk()
    monkeypatch.setattr(family, "can_pack", lambda device: False)
    plain = _walk()
    assert len(packed) == len(plain) == 12
    for mine, theirs in zip(packed, plain, strict=True):
        assert (mine.int() - theirs.int()).abs().max() <= 2
