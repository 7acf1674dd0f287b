"""How well the model walks: held-out mazes, the sampler that ships, rows of one table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ithaka.workers.families.wan.autoencoder import TinyAutoencoder
from ithaka.workers.families.wan.sampler import FrameSampler, Stream
from ithaka.workers.families.wan.spec import LATENT_SIDE, SamplingSpec, Schedule
from ithaka.workers.families.wan.weights_folder import WorldModel

from .clips import ClipMaker, Walks
from .train_transformer import encode_tokens

HELD_OUT_SEED = 900_001
FREE_CONTEXT, FREE_FRAMES = 4, (5, 11, 23)
RETURN_CONTEXT, RETURN_FRAMES = 9, (1, 4, 7)
LONG_FRAMES = (20, 100, 300, 600)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: numbers by generated frame."""

    measure: str
    values: dict[int, float]

    def __str__(self) -> str:
        numbers = " / ".join(f"{value:.2f}" for value in self.values.values())
        frames = " / ".join(str(frame) for frame in self.values)
        return f"| {self.measure} (frame {frames}) | {numbers} |"


class Evaluator:
    """Walks ``num_mazes`` held-out mazes with one schedule."""

    def __init__(self, model: WorldModel, clips: Callable[[int], ClipMaker], num_mazes: int) -> None:
        self._model = model
        self._clips = clips
        self._num_mazes = num_mazes
        self._device = next(model.autoencoder.parameters()).device

    def table(self, schedule: Schedule, *, long_frames: tuple[int, ...] = LONG_FRAMES) -> list[Row]:
        """All rows: fidelity where the truth is known, sharpness, and the long walk."""
        rows = []
        free = self._clips(HELD_OUT_SEED).walks(self._num_mazes, FREE_CONTEXT + max(FREE_FRAMES))
        fidelity, sharpness = self._compare(free, FREE_CONTEXT, FREE_FRAMES, schedule)
        rows.append(Row("free walk, 4 frames of context: PSNR dB", fidelity))
        for name, forward, turn in (("turn left 8, then back", 0.0, -1.0), ("walk ahead 8, then back", 1.0, 0.0)):
            walks = self._clips(HELD_OUT_SEED + 1).walks(
                self._num_mazes, RETURN_CONTEXT + 8, controls=self._there_and_back(forward, turn)
            )
            rows.append(Row(f"{name}: PSNR dB", self._compare(walks, RETURN_CONTEXT, RETURN_FRAMES, schedule)[0]))
        rows.append(Row("sharpness, free walk", sharpness))
        if long_frames:
            walks = self._clips(HELD_OUT_SEED + 2).walks(self._num_mazes, FREE_CONTEXT + max(long_frames))
            rows.append(Row("sharpness, long walk", self._compare(walks, FREE_CONTEXT, long_frames, schedule)[1]))
        return rows

    def autoencoder_row(self) -> Row:
        """What the autoencoder alone loses."""
        walks = self._clips(HELD_OUT_SEED).walks(self._num_mazes, 4)
        true = self._clips(0).pictures(walks, range(3, 4))[:, 0]
        decoded = decode_tokens(self._model.autoencoder, encode_tokens(self._model.autoencoder, true))
        return Row("autoencoder: PSNR dB, sharpness", {0: _psnr(decoded, true), 1: _sharpness(decoded, true)})

    def _there_and_back(self, forward: float, turn: float) -> torch.Tensor:
        controls = torch.zeros(self._num_mazes, RETURN_CONTEXT + 8, 3, device=self._device)
        controls[:, 1:RETURN_CONTEXT, 0], controls[:, 1:RETURN_CONTEXT, 2] = forward, turn
        controls[:, RETURN_CONTEXT:, 0], controls[:, RETURN_CONTEXT:, 2] = -forward, -turn
        return controls

    def _compare(
        self, walks: Walks, context: int, frames: tuple[int, ...], schedule: Schedule
    ) -> tuple[dict[int, float], dict[int, float]]:
        clips = self._clips(0)
        fidelity, sharpness = {}, {}
        for frame, picture in generate(self._model, clips, walks, context, max(frames), schedule):
            if frame in frames:
                true = clips.pictures(walks, range(context + frame - 1, context + frame))[:, 0]
                fidelity[frame], sharpness[frame] = _psnr(picture, true), _sharpness(picture, true)
        return fidelity, sharpness


def generate(
    model: WorldModel, clips: ClipMaker, walks: Walks, context: int, num_frames: int, schedule: Schedule
) -> Iterator[tuple[int, torch.Tensor]]:
    """Remember ``context`` true frames, then walk on alone: (number from 1, RGB 0..1 [B, 3, 128, 128]) per frame."""
    for number, tokens in enumerate(generate_tokens(model, clips, walks, context, num_frames, schedule), 1):
        yield number, decode_tokens(model.autoencoder, tokens)


def generate_tokens(
    model: WorldModel, clips: ClipMaker, walks: Walks, context: int, num_frames: int, schedule: Schedule
) -> Iterator[torch.Tensor]:
    """``generate`` before the decoder: latent tokens [B, 64, 16] per frame."""
    sampler = make_sampler(model, model.sampling, schedule)
    stream = begin(sampler, model.autoencoder, clips, walks, context)
    for row in range(context, context + num_frames):
        if not torch.equal(walks.prompts[:, row], walks.prompts[:, row - 1]):
            sampler.set_prompt(stream, walks.prompts[:, row])
        yield sampler.sample(stream, walks.controls[:, row])


def make_sampler(model: WorldModel, sampling: SamplingSpec, schedule: Schedule) -> FrameSampler:
    """The sampler that ships, on one rank."""
    return FrameSampler(
        model.transformer,
        model.prompt_encoder,
        latent_height=LATENT_SIDE,
        latent_width=LATENT_SIDE,
        window=sampling.window,
        sink=sampling.sink,
        schedule=schedule,
    )


def begin(sampler: FrameSampler, autoencoder: TinyAutoencoder, clips: ClipMaker, walks: Walks, context: int) -> Stream:
    """A stream that remembers the walks' first true frames."""
    stream = sampler.open(tuple(range(walks.controls.shape[0])), walks.prompts[:, 0])
    pictures = clips.pictures(walks, range(context))
    tokens = encode_tokens(autoencoder, pictures.flatten(0, 1))
    sampler.remember(stream, tokens.view(-1, context, *tokens.shape[1:]), walks.controls[:, :context])
    return stream


@torch.no_grad()
def decode_tokens(autoencoder: TinyAutoencoder, tokens: torch.Tensor) -> torch.Tensor:
    """Latent tokens [B, 64, 16] → RGB 0..1 [B, 3, 128, 128]."""
    latents = tokens.transpose(1, 2).reshape(tokens.shape[0], -1, LATENT_SIDE, LATENT_SIDE)
    pictures = autoencoder.decode(latents.contiguous(memory_format=torch.channels_last))
    return ((pictures + 1) / 2).clamp(0, 1)


def _psnr(picture: torch.Tensor, true: torch.Tensor) -> float:
    """Peak signal to noise in dB, from the squared error over all mazes."""
    return -10 * math.log10((picture - true).square().mean().item())


def _sharpness(picture: torch.Tensor, true: torch.Tensor) -> float:
    """Mean horizontal gradient against the true frames'."""
    return ((picture.diff(dim=-1).abs().mean()) / true.diff(dim=-1).abs().mean()).item()
