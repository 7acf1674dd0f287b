"""The transformer over whole clips, as training runs it: every frame twice, remembered and being made.

A clip enters as two streams over the same frames. The remembered stream holds the frames nearly clean; each of its frames
sees itself and what came before. The stream being made holds noisy frames; each sees the remembered frames before it and
itself. So every noisy frame trains under exactly the view that it has when a session streams.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ithaka.workers.families.wan.model import BlockConditions, CausalWanModel, ControlledWanBlock
from ithaka.workers.layers.attention import ClipSelfAttention
from ithaka.workers.layers.rope import FrameRope

TOKENS = 64

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class ClipInput:
    """B clips of F frames, both streams: ``made`` and ``remembered`` are latents [B, F, TOKENS, 16] at their levels [B, F]."""

    made: torch.Tensor
    made_levels: torch.Tensor
    remembered: torch.Tensor
    remembered_levels: torch.Tensor
    controls: torch.Tensor
    """[B, F, 3]"""
    words: torch.Tensor
    """Vectors of the prompt encoder, [B, F, W, text_dim]."""


def sees(query: Any, key: Any, num_frames: int, window: int) -> Any:
    """Whether a query token sees a key token; tokens count through the remembered stream, then the one being made."""
    query_frame, key_frame = query // TOKENS, key // TOKENS
    query_made, key_made = query_frame >= num_frames, key_frame >= num_frames
    query_time, key_time = query_frame % num_frames, key_frame % num_frames
    remembered = ~key_made & (key_time + window > query_time)
    before = remembered & (key_time < query_time)
    itself = (key_time == query_time) & (query_made == key_made)
    return before | itself


class ClipBlock(nn.Module):
    """One block with its conditions, compiled as a unit."""

    def __init__(self, block: ControlledWanBlock, num_rows: int) -> None:
        super().__init__()
        self.block = block
        self._num_rows = num_rows

    def forward(
        self,
        x: torch.Tensor,
        time_proj: torch.Tensor,
        control: torch.Tensor,
        words: torch.Tensor,
        cosine: torch.Tensor,
        sine: torch.Tensor,
        mask: Any,
    ) -> torch.Tensor:
        """``x`` [N, S, C]; the rest as in ``ControlledWanBlock``; ``mask`` a BlockMask, or bool [T, T] without a compiler."""
        conditions = BlockConditions(
            tuple(part.to(x.dtype) for part in self.block.time_conditions(time_proj)),
            tuple(part.to(x.dtype) for part in self.block.control_conditions(control)),
            self.block.prompt_conditions(words),
        )
        attention = {
            "num_frames": self._num_rows,
            "rotate": lambda qk: _rotate_real(qk, cosine, sine),
            "kernel": lambda q, k, v: _masked_attention(q, k, v, mask),
        }
        out: torch.Tensor = self.block(x, conditions, attention)
        return out


class ClipModel(nn.Module):
    """Runs a ``CausalWanModel`` over clips of a fixed number of frames."""

    def __init__(self, model: CausalWanModel, num_frames: int, window: int, *, compiled: bool) -> None:
        super().__init__()
        device = next(model.parameters()).device
        self.model = model
        self._num_frames = num_frames
        for block in model.layers:
            block.attn1.set_processor(ClipSelfAttention())
        self._blocks = [ClipBlock(block, 2 * num_frames) for block in model.layers]
        if compiled:
            for clip_block in self._blocks:
                clip_block.compile(dynamic=False)
        rope = FrameRope(model.head_dim, 8, 8, device=device)
        phases = rope.phases(tuple(range(num_frames)) * 2)[:, :, None, None]
        self._cosine, self._sine = phases.real.contiguous(), phases.imag.contiguous()
        self._mask = _make_mask(num_frames, window, device, compiled)

    def forward(self, clip: ClipInput) -> tuple[torch.Tensor, torch.Tensor]:
        """Velocities of both streams: made, remembered; [B, F, TOKENS, 16] each."""
        model = self.model
        both = torch.cat([clip.remembered, clip.made], 1)
        levels = torch.cat([clip.remembered_levels, clip.made_levels], 1).flatten()
        time_proj, embedded = model.embed_time(levels)
        control = model.control_embedder(clip.controls.repeat(1, 2, 1).flatten(0, 1))
        words = model.embed_words(clip.words.repeat(1, 2, 1, 1).flatten(0, 1))
        x = model.embed_patches(both.flatten(0, 1))
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        for clip_block in self._blocks:
            x = clip_block(x, time_proj, control, words, self._cosine, self._sine, self._mask)
        shift, scale = model.output_conditions(embedded)
        velocity = model.predict(x.float(), (shift.float(), scale.float())).float()
        remembered, made = velocity.view(both.shape).chunk(2, 1)
        return made, remembered


def _rotate_real(qk: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """The compiler's twin of ``rotate_pairs``: ``qk`` [B * R, S, 2, H, D], cosine and sine [R, S, 1, 1, D / 2]."""
    even, odd = qk.view(-1, cosine.shape[0], *qk.shape[1:-1], qk.shape[-1] // 2, 2).unbind(-1)
    turned = torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1)
    return turned.flatten(-2).flatten(0, 1)


def _masked_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
    if isinstance(mask, torch.Tensor):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    from torch.nn.attention.flex_attention import flex_attention

    seen = flex_attention(q, k, v, block_mask=mask)
    assert isinstance(seen, torch.Tensor)
    return seen


def _make_mask(num_frames: int, window: int, device: torch.device, compiled: bool) -> Any:
    length = 2 * num_frames * TOKENS
    if not compiled:
        index = torch.arange(length, device=device)
        return sees(index[:, None], index[None, :], num_frames, window)
    from torch.nn.attention.flex_attention import create_block_mask

    def mask_mod(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return sees(query, key, num_frames, window)

    return create_block_mask(mask_mod, None, None, length, length, device=str(device))
