"""The KV ring against a plain list of frames."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ithaka.workers.layers.attention import attend
from ithaka.workers.layers.kv_ring import KVRing
from ithaka.workers.layers.rope import FrameRope, rotate_pairs

HEADS, HEAD_DIM, TOKENS, BATCH = 2, 16, 4, 2
ROPE = FrameRope(HEAD_DIM, 2, 2)


def _ring(window: int, sink: int, layers: int = 1) -> KVRing:
    return KVRing(
        num_layers=layers,
        batch=BATCH,
        tokens_per_frame=TOKENS,
        num_heads=HEADS,
        head_dim=HEAD_DIM,
        window=window,
        sink=sink,
        sink_shift=ROPE.shift,
    )


def _frame(frame: int, draw: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(frame * 10 + draw)
    return torch.randn(BATCH, TOKENS, HEADS, HEAD_DIM, generator=generator)


def _turned(x: torch.Tensor, position: int) -> torch.Tensor:
    return rotate_pairs(x, ROPE.phases((position,))[0][:, None])


@settings(deadline=None, max_examples=40)
@given(window=st.integers(1, 5), sink=st.integers(0, 3), num_frames=st.integers(1, 16))
def test_attention_over_the_ring_equals_attention_over_the_kept_frames(window: int, sink: int, num_frames: int) -> None:
    ring = _ring(window, sink)
    for frame in range(num_frames):
        ring.write(0, frame, _turned(_frame(frame, 0), frame), _frame(frame, 1))
        query = _turned(_frame(frame, 2), frame)
        seen = attend(query, *ring.visible(0, frame))

        rolling = list(range(max(sink, frame - window + 1), frame + 1)) if frame >= sink else []
        fixed = list(range(min(sink, frame + 1)))
        moved = max(0, frame + 1 - sink - window)
        keys = [_turned(_frame(f, 0), f + moved) for f in fixed] + [_turned(_frame(f, 0), f) for f in rolling]
        values = [_frame(f, 1) for f in fixed + rolling]
        assert ring.num_visible(frame) == len(keys)
        expected = attend(query, torch.cat(keys, 1).transpose(1, 2), torch.cat(values, 1).transpose(1, 2))
        torch.testing.assert_close(seen, expected, rtol=0, atol=2e-5)


@given(window=st.integers(1, 9), sink=st.integers(0, 4), frame=st.integers(0, 10**12))
def test_every_frame_has_a_slot_and_the_sink_keeps_its_own(window: int, sink: int, frame: int) -> None:
    ring = _ring(window, sink)
    slot = ring.slot(frame)
    assert 0 <= slot < sink + window
    assert (slot < sink) == (frame < sink)
    assert ring.slot(frame + window) == slot or frame < sink


def test_a_frame_written_again_replaces_itself() -> None:
    ring = _ring(window=3, sink=1)
    for frame in range(3):
        ring.write(0, frame, _frame(frame, 5), _frame(frame, 6))
        ring.write(0, frame, _frame(frame, 0), _frame(frame, 1))
    keys, values = ring.visible(0, 2)
    torch.testing.assert_close(keys, torch.cat([_frame(f, 0) for f in range(3)], 1).transpose(1, 2))
    torch.testing.assert_close(values, torch.cat([_frame(f, 1) for f in range(3)], 1).transpose(1, 2))


def test_layers_are_apart_and_memory_does_not_grow() -> None:
    ring = _ring(window=2, sink=1, layers=2)
    num_bytes = ring.num_bytes
    for frame in range(50):
        ring.write(0, frame, _frame(frame, 0), _frame(frame, 1))
    assert ring.num_bytes == num_bytes
    keys, _ = ring.visible(1, 49)
    assert not keys.any()


@pytest.mark.parametrize(("window", "sink"), [(0, 0), (1, -1)])
def test_impossible_windows_are_refused(window: int, sink: int) -> None:
    with pytest.raises(ValueError, match="window must be at least 1"):
        _ring(window, sink)


def test_a_sink_without_a_way_to_move_it_is_refused() -> None:
    with pytest.raises(ValueError, match="sink_shift"):
        KVRing(num_layers=1, batch=1, tokens_per_frame=1, num_heads=1, head_dim=2, window=1, sink=1)
