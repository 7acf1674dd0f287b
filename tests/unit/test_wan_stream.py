"""Streaming frame by frame against the whole clip at once, and what a stream promises."""

from __future__ import annotations

import pytest
import torch
from training.labyrinth.clip_model import ClipInput, ClipModel

from ithaka.workers.families.wan.model import CausalWanModel
from ithaka.workers.families.wan.noise import frame_noise
from ithaka.workers.families.wan.prompt import PROMPT_TOKENS, PromptEncoder
from ithaka.workers.families.wan.sampler import FrameSampler
from ithaka.workers.families.wan.spec import Schedule

FRAMES, TOKENS, CHANNELS = 6, 64, 16
CONTEXT = 0.1


def _model(seed: int = 0) -> CausalWanModel:
    torch.manual_seed(seed)
    model: CausalWanModel = CausalWanModel(
        num_attention_heads=2, attention_head_dim=16, num_layers=3, ffn_dim=64, text_dim=8, freq_dim=32, control_dim=8
    )
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.requires_grad_(False).eval()
    return model


def _sampler(
    model: CausalWanModel, words: PromptEncoder, levels: tuple[float, ...], window: int, sink: int = 0
) -> FrameSampler:
    return FrameSampler(
        model, words, latent_height=8, latent_width=8, window=window, sink=sink, schedule=Schedule(levels, CONTEXT)
    )


def _words() -> PromptEncoder:
    torch.manual_seed(1)
    words = PromptEncoder(8)
    words.requires_grad_(False)
    return words


@pytest.mark.parametrize("window", [3, 16])
def test_streaming_equals_the_masked_clip_of_training(window: int) -> None:
    generator = torch.Generator().manual_seed(5)
    clean = torch.randn(1, FRAMES, TOKENS, CHANNELS, generator=generator)
    controls = torch.randn(1, FRAMES, 3, generator=generator)
    words, seed = _words(), 9
    ids = torch.tensor([[3, 8, 0, 0, 0, 0]])
    made_noise = torch.stack([frame_noise(seed, f, 0, (TOKENS, CHANNELS)) for f in range(FRAMES)])[None]
    memory_noise = torch.stack([frame_noise(seed, f, 1, (TOKENS, CHANNELS)) for f in range(FRAMES)])[None]

    streaming = _sampler(_model(), words, (1.0,), window)
    velocities = []
    for frame in range(FRAMES):
        stream = streaming.open((seed,), ids)
        streaming.remember(stream, clean[:, :frame], controls[:, :frame])
        made = streaming.sample(stream, controls[:, frame])
        velocities.append(made_noise[:, frame] - made)

    clip_model = ClipModel(_model(), FRAMES, window, compiled=False)
    level = torch.full((1, FRAMES), CONTEXT)
    clip = ClipInput(
        made=made_noise,
        made_levels=torch.ones(1, FRAMES),
        remembered=torch.lerp(clean, memory_noise, CONTEXT),
        remembered_levels=level,
        controls=controls,
        words=words(ids)[:, None].expand(-1, FRAMES, -1, -1),
    )
    expected, _ = clip_model(clip)
    torch.testing.assert_close(torch.stack(velocities, 1), expected, rtol=0, atol=2e-4)


def test_writing_along_with_the_next_frame_equals_writing_before_it() -> None:
    words, ids, controls = _words(), torch.zeros(1, PROMPT_TOKENS, dtype=torch.long), torch.ones(1, 3)
    sampler = _sampler(_model(), words, (1.0, 0.6), window=3)
    together, apart = sampler.open((4,), ids), sampler.open((4,), ids)
    for _ in range(7):
        expected = sampler.sample(together, controls)
        sampler._write_finished(apart)
        torch.testing.assert_close(sampler.sample(apart, controls), expected, rtol=0, atol=1e-4)


def test_a_stream_is_a_function_of_its_seed_and_inputs() -> None:
    words, ids = _words(), torch.zeros(1, PROMPT_TOKENS, dtype=torch.long)
    sampler = _sampler(_model(), words, (1.0, 0.8), window=4, sink=1)

    def walk(seed: int, forward: float, word: int) -> torch.Tensor:
        stream = sampler.open((seed,), ids)
        sampler.sample(stream, torch.zeros(1, 3))
        sampler.set_prompt(stream, ids + word)
        return torch.stack([sampler.sample(stream, torch.tensor([[forward, 0.0, 0.0]])) for _ in range(6)])

    first = walk(1, 1.0, 0)
    assert torch.equal(first, walk(1, 1.0, 0))
    assert (first - walk(2, 1.0, 0)).abs().max() > 1e-3
    assert (first - walk(1, -1.0, 0)).abs().max() > 1e-3
    assert (first - walk(1, 1.0, 5)).abs().max() > 1e-3


def test_a_batch_of_streams_equals_each_alone() -> None:
    words, ids = _words(), torch.tensor([[1, 0, 0, 0, 0, 0], [9, 2, 0, 0, 0, 0]])
    sampler = _sampler(_model(), words, (1.0, 0.8), window=3)
    controls = torch.tensor([[1.0, 0.0, 0.0], [0.0, -1.0, 0.5]])
    both = sampler.open((1, 2), ids)
    alone = [sampler.open((seed,), ids[row : row + 1]) for row, seed in enumerate((1, 2))]
    for _ in range(5):
        made = sampler.sample(both, controls)
        single = [sampler.sample(stream, controls[row : row + 1]) for row, stream in enumerate(alone)]
        torch.testing.assert_close(made, torch.cat(single), rtol=0, atol=1e-4)


def test_noise_is_a_function_of_seed_frame_and_draw() -> None:
    noise = frame_noise(7, 3, 0, (4, 2))
    assert torch.equal(noise, frame_noise(7, 3, 0, (4, 2)))
    others = [frame_noise(8, 3, 0, (4, 2)), frame_noise(7, 4, 0, (4, 2)), frame_noise(7, 3, 1, (4, 2))]
    assert not any(torch.equal(noise, other) for other in others)
    assert frame_noise((1 << 63) - 1, 10**9, 1, (1,)).isfinite().all()


def test_progress_is_told_at_every_forward() -> None:
    sampler = _sampler(_model(), _words(), (1.0, 0.8, 0.5), window=3)
    stream = sampler.open((1,), torch.zeros(1, PROMPT_TOKENS, dtype=torch.long))
    calls: list[None] = []
    sampler.progress = lambda: calls.append(None)
    sampler.sample(stream, torch.zeros(1, 3))
    assert len(calls) == 3
