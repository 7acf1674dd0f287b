"""Frame by frame: noise becomes the next latent in a few steps, and clean frames go into the memory.

The write of a frame's clean keys and values rides along with the first step of the next frame: one forward over two rows
gives exactly what two forwards would, for less than the price of two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ithaka.workers.families.wan.model import BlockConditions, CausalWanModel, ControlHeads
from ithaka.workers.families.wan.noise import frame_noise
from ithaka.workers.families.wan.prompt import PromptEncoder
from ithaka.workers.families.wan.spec import Schedule
from ithaka.workers.layers.attention import FrameMemory, HeadShards
from ithaka.workers.layers.kv_ring import KVRing
from ithaka.workers.layers.rope import FrameRope

Times = tuple[tuple[torch.Tensor, ...], ...]
"""One tuple of conditions per block."""


@dataclass(frozen=True, slots=True)
class _Told:
    """A frame's controls and prompt, as every block sees them."""

    control: torch.Tensor
    """Scale and shift, [B, blocks, 2, 1, channels]."""
    prompt: torch.Tensor
    """Keys and values, [blocks, 2, B, heads, words, head_dim]."""


@dataclass(slots=True)
class Stream:
    """A session's state on one rank."""

    ring: KVRing
    seeds: tuple[int, ...]
    prompt: torch.Tensor
    next_frame: int = 0
    finished: torch.Tensor | None = None
    """The last frame at the context level, this rank's tokens [B, s, C]; not yet in the ring."""
    finished_told: _Told | None = None
    time_tables: dict[tuple[float, ...], tuple[Times, tuple[torch.Tensor, torch.Tensor]]] = field(default_factory=dict)


class FrameSampler:
    """Runs one model over any number of streams. Shapes: B batch, s this rank's tokens, S all tokens of a frame."""

    def __init__(
        self,
        model: CausalWanModel,
        prompt_encoder: PromptEncoder,
        *,
        latent_height: int,
        latent_width: int,
        window: int,
        sink: int = 0,
        schedule: Schedule,
        token_share: slice | None = None,
        num_local_heads: int | None = None,
        shards: HeadShards | None = None,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        parameter = next(model.parameters())
        self.schedule = schedule
        self.num_tokens = latent_height * latent_width
        self._model = model
        self._prompt_encoder = prompt_encoder
        self._device, self._dtype = parameter.device, parameter.dtype
        self._ring_dtype = model.layers[0].product_dtype
        self._window, self._sink = window, sink
        self._share = token_share if token_share is not None else slice(0, self.num_tokens)
        self._num_local_heads = num_local_heads or model.num_heads
        self._shards = shards
        with torch.inference_mode():
            self._control_heads = ControlHeads(model.layers)
        self._rope = FrameRope(model.head_dim, latent_height, latent_width, device=self._device)
        self.progress = progress

    @property
    def session_bytes(self) -> int:
        """Bytes that a stream of one keeps on this rank: keys and values of all visible frames."""
        tokens = (self._sink + self._window) * self.num_tokens
        size = self._ring_dtype.itemsize
        per_layer = 2 * tokens * self._num_local_heads * self._model.head_dim * size
        return int(len(self._model.layers) * per_layer)

    def open(self, seeds: Sequence[int], word_ids: torch.Tensor) -> Stream:
        """A stream per seed, as one batch; ``word_ids`` int64 [B, PROMPT_TOKENS]."""
        ring = KVRing(
            num_layers=len(self._model.layers),
            batch=len(seeds),
            tokens_per_frame=self.num_tokens,
            num_heads=self._num_local_heads,
            head_dim=self._model.head_dim,
            window=self._window,
            sink=self._sink,
            dtype=self._ring_dtype,
            device=self._device,
            sink_shift=self._rope.shift,
        )
        return Stream(ring, tuple(seeds), self._prompt_conditions(word_ids))

    @torch.inference_mode()
    def set_prompt(self, stream: Stream, word_ids: torch.Tensor) -> None:
        """Frames from the next on follow these words."""
        stream.prompt = self._prompt_conditions(word_ids)

    @torch.inference_mode()
    def remember(self, stream: Stream, latents: torch.Tensor, controls: torch.Tensor) -> None:
        """Put given frames into the memory.

        ``latents`` [B, F, S, C] clean, ``controls`` [B, F, 3]; frame f was reached by row f.
        """
        latents = latents.to(self._device, self._dtype)
        for index in range(latents.shape[1]):
            self._write_finished(stream)
            self._finish(stream, latents[:, index, self._share], self._told(stream, controls[:, index]))

    @torch.inference_mode()
    def sample(self, stream: Stream, controls: torch.Tensor) -> torch.Tensor:
        """Make the next frame: ``controls`` float [B, 3] → this rank's clean tokens [B, s, C]."""
        told = self._told(stream, controls)
        frame = stream.next_frame
        x = self._noise(stream, frame, draw=0)
        levels = (*self.schedule.levels, 0.0)
        for step, level in enumerate(self.schedule.levels):
            if step == 0 and stream.finished is not None and stream.finished_told is not None:
                rows = (self.schedule.context_level, level)
                both = torch.cat([stream.finished, x])
                predicted = self._forward(stream, both, rows, (frame - 1, frame), (stream.finished_told, told))
                velocity = predicted[len(stream.seeds) :]
                stream.finished = None
            else:
                velocity = self._forward(stream, x, (level,), (frame,), (told,))
            x = x + (levels[step + 1] - level) * velocity
        self._finish(stream, x, told)
        return x

    def gather(self, tokens: torch.Tensor) -> torch.Tensor:
        """This rank's tokens [B, s, C] → all tokens [B, S, C], on every rank."""
        if self._shards is None:
            return tokens
        return self._shards.gather_sequence(tokens)

    def _finish(self, stream: Stream, clean: torch.Tensor, told: _Told) -> None:
        level = self.schedule.context_level
        stream.finished = clean
        if level > 0:
            stream.finished = torch.lerp(clean, self._noise(stream, stream.next_frame, draw=1), level)
        stream.finished_told = told
        stream.next_frame += 1

    def _write_finished(self, stream: Stream) -> None:
        if stream.finished is None or stream.finished_told is None:
            return
        level = self.schedule.context_level
        self._forward(stream, stream.finished, (level,), (stream.next_frame - 1,), (stream.finished_told,))
        stream.finished = None

    def _forward(
        self,
        stream: Stream,
        tokens: torch.Tensor,
        levels: tuple[float, ...],
        frames: tuple[int, ...],
        told: tuple[_Told, ...],
    ) -> torch.Tensor:
        self.progress()
        batch = len(stream.seeds)
        if levels not in stream.time_tables:
            stream.time_tables[levels] = self._time_tables(levels, batch)
        time, output = stream.time_tables[levels]
        control = torch.cat([row.control for row in told]).unbind(1)
        prompt = torch.cat([row.prompt for row in told], 2).unbind()
        conditions = tuple(
            BlockConditions(block_time, block_control.unbind(1), block_prompt.unbind())
            for block_time, block_control, block_prompt in zip(time, control, prompt, strict=True)
        )
        phases = self._rope.phases(frames)[:, self._share].repeat_interleave(batch, 0)[:, :, None, None]
        memory = FrameMemory(stream.ring, frames, phases, self._shards)
        return self._model.run(tokens, conditions, output, {"memory": memory})

    def _time_tables(self, levels: tuple[float, ...], batch: int) -> tuple[Times, tuple[torch.Tensor, torch.Tensor]]:
        rows = torch.tensor(levels, device=self._device).repeat_interleave(batch)
        projected, embedded = self._model.embed_time(rows)
        blocks = tuple(block.time_conditions(projected) for block in self._model.layers)
        return blocks, self._model.output_conditions(embedded)

    def _told(self, stream: Stream, controls: torch.Tensor) -> _Told:
        embedded = self._model.control_embedder(controls.to(self._device, self._dtype))
        return _Told(self._control_heads(embedded), stream.prompt)

    @torch.inference_mode()
    def _prompt_conditions(self, word_ids: torch.Tensor) -> torch.Tensor:
        words = self._model.embed_words(self._prompt_encoder(word_ids.to(self._device)))
        return torch.stack([torch.stack(block.prompt_conditions(words)) for block in self._model.layers])

    def _noise(self, stream: Stream, frame: int, draw: int) -> torch.Tensor:
        shape = (self.num_tokens, self._model.num_channels)
        noise = torch.stack([frame_noise(seed, frame, draw, shape) for seed in stream.seeds])
        return noise[:, self._share].to(self._device, self._dtype)
