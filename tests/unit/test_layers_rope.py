"""Rotary positions against diffusers' own, and without an end."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ithaka.workers.families.wan.diffusers_import import WanTransformer3DModel
from ithaka.workers.layers.rope import FrameRope, rotate_pairs

HEAD_DIM = 64


def test_phases_equal_those_of_diffusers() -> None:
    model = WanTransformer3DModel(patch_size=(1, 1, 1), num_attention_heads=1, attention_head_dim=HEAD_DIM, num_layers=0)
    cosine, sine = model.rope(torch.zeros(1, 16, 7, 3, 5))
    phases = FrameRope(HEAD_DIM, 3, 5).phases(tuple(range(7))).flatten(0, 1)
    torch.testing.assert_close(phases.real, cosine[0, :, 0, 0::2].float(), rtol=0, atol=1e-6)
    torch.testing.assert_close(phases.imag, sine[0, :, 0, 1::2].float(), rtol=0, atol=1e-6)


@settings(deadline=None, max_examples=25)
@given(offset=st.integers(0, 10**9), distance=st.integers(0, 40))
def test_attention_depends_on_distance_alone_however_long_the_session(offset: int, distance: int) -> None:
    rope = FrameRope(HEAD_DIM, 2, 2)
    generator = torch.Generator().manual_seed(distance)
    query, key = torch.randn(2, 4, HEAD_DIM, generator=generator)

    def score(first: int) -> torch.Tensor:
        turned_query = rotate_pairs(query, rope.phases((first + distance,))[0])
        turned_key = rotate_pairs(key, rope.phases((first,))[0])
        return turned_query @ turned_key.T

    torch.testing.assert_close(score(offset), score(0), rtol=0, atol=2e-4)


def test_shift_moves_a_rotated_key_by_frames() -> None:
    rope = FrameRope(HEAD_DIM, 2, 3)
    key = torch.randn(6, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    moved = rotate_pairs(rotate_pairs(key, rope.phases((4,))[0]), rope.shift(1000))
    torch.testing.assert_close(moved, rotate_pairs(key, rope.phases((1004,))[0]), rtol=0, atol=1e-5)
