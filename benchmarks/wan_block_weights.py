"""The parts of benchmarks/wan_block.py that no exchange touches: sizes, random weights, inputs, compiled element-wise steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

HIDDEN, HEADS, DIM, FEED_FORWARD = 5120, 40, 128, 13824
CHUNK, MEMORY, WORDS = 4 * 1560, 18 * 1560, 512
EARLY = 8
"""Heads of all ranks whose queries go first in the overlapped order."""


@dataclass(frozen=True, slots=True)
class Block:
    """Matrices in bf16, [out, in]; ``told`` float32 [6, hidden]: shift, scale, gate of attention, then of the feed-forward."""

    qkv: torch.Tensor
    out: torch.Tensor
    cross_q: torch.Tensor
    cross_out: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    told: torch.Tensor

    @classmethod
    def draw(cls, device: torch.device) -> Block:
        """Random, scaled so that the stream keeps its size."""

        def matrix(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, device=device).mul(columns**-0.5).bfloat16()

        return cls(
            matrix(3 * HIDDEN, HIDDEN),
            matrix(HIDDEN, HIDDEN),
            matrix(HIDDEN, HIDDEN),
            matrix(HIDDEN, HIDDEN),
            matrix(FEED_FORWARD, HIDDEN),
            matrix(HIDDEN, FEED_FORWARD),
            torch.randn(6, HIDDEN, device=device) / 4,
        )


@dataclass(frozen=True, slots=True)
class Inputs:
    """The stream [1, s, hidden] and what goes with its tokens; the memory and the prompt of all heads."""

    x: torch.Tensor
    phases: torch.Tensor
    q_weight: torch.Tensor
    k_weight: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    prompt_keys: torch.Tensor
    prompt_values: torch.Tensor

    @classmethod
    def draw(cls, device: torch.device) -> Inputs:
        """Of all ranks."""
        angles = 6.3 * torch.rand(CHUNK, DIM // 2, device=device)

        def heads(tokens: int) -> torch.Tensor:
            return torch.randn(1, tokens, HEADS, DIM, device=device).bfloat16()

        def weight() -> torch.Tensor:
            return 1 + torch.randn(HIDDEN, device=device) / 8

        return cls(
            torch.randn(1, CHUNK, HIDDEN, device=device).bfloat16(),
            torch.polar(torch.ones_like(angles), angles),
            weight(),
            weight(),
            heads(MEMORY),
            heads(MEMORY),
            heads(WORDS),
            heads(WORDS),
        )

    def share(self, rank: int, num_ranks: int) -> Inputs:
        """Of one rank: its tokens."""
        x, phases = self.x.chunk(num_ranks, 1)[rank].contiguous(), self.phases.chunk(num_ranks)[rank].contiguous()
        return replace(self, x=x, phases=phases)


class Compiled:
    """Element-wise steps, each in as few kernels as the compiler makes of them."""

    def __init__(self) -> None:
        def compiled(function: Any) -> Any:
            return torch.compile(function, dynamic=False)

        self._modulated, self._normed_turned = compiled(_modulated), compiled(_norm_turned)
        self._both, self._parts, self._placed = compiled(_both), compiled(_parts), compiled(_placed)
        self._gated, self._gated_normed = compiled(_gated), compiled(_gated_normed)
        self._gelu, self._row_norm = compiled(_gelu), compiled(_row_norm)

    def modulated(self, x: torch.Tensor, block: Block, first: int) -> torch.Tensor:
        """Layer norm, then shift and scale numbers ``first`` and ``first`` + 1."""
        out: torch.Tensor = self._modulated(x, block.told[first], block.told[first + 1])
        return out

    def norm_turn(self, q: torch.Tensor, k: torch.Tensor, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        """[1, s, H, D] twice, contiguous."""
        q, k = self._both(q, k, inputs.q_weight, inputs.k_weight, _angles(inputs))
        return q, k

    def norm_turn_place(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, inputs: Inputs, num_ranks: int
    ) -> tuple[torch.Tensor, ...]:
        """[1, s, H, D] three times → [1, S, h, D], all of them from this rank."""
        out: tuple[torch.Tensor, ...] = self._placed(q, k, v, inputs.q_weight, inputs.k_weight, _angles(inputs), num_ranks)
        return out

    def norm_turn_keys(self, k: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """[1, s, H, D]."""
        out: torch.Tensor = self._normed_turned(k, inputs.k_weight, _angles(inputs))
        return out

    def norm_turn_queries(self, q: torch.Tensor, inputs: Inputs, num_ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The first heads of every rank, then the others."""
        early, late = self._parts(q, inputs.q_weight, _angles(inputs), num_ranks)
        return early, late

    def rest(self, x: torch.Tensor, seen: torch.Tensor, block: Block, inputs: Inputs) -> torch.Tensor:
        """Behind self-attention: residual, attention to the prompt, feed-forward."""
        x, told = self._gated_normed(x, seen, block.told[2])
        q = by_heads(self._row_norm(F.linear(told, block.cross_q), inputs.q_weight))
        x = x + F.linear(attend(q, inputs.prompt_keys, inputs.prompt_values).flatten(2), block.cross_out)
        up = self._gelu(F.linear(self.modulated(x, block, 3), block.up))
        out: torch.Tensor = self._gated(x, F.linear(up, block.down), block.told[5])
        return out


def by_heads(x: torch.Tensor) -> torch.Tensor:
    """[1, s, H * D] → [1, s, H, D]."""
    return x.view(*x.shape[:-1], HEADS, DIM)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """[1, tokens, heads, D] three times, on views."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def reference(block: Block, whole: Inputs) -> torch.Tensor:
    """The block on one device, all tokens and heads, nothing compiled."""
    x = _modulated(whole.x, block.told[0], block.told[1])
    q, k, v = (by_heads(part) for part in F.linear(x, block.qkv).chunk(3, -1))
    q, k = _both(q, k, whole.q_weight, whole.k_weight, _angles(whole))
    keys, values = (torch.cat([old[:, :-CHUNK], new], 1) for old, new in ((whole.keys, k), (whole.values, v)))
    x, told = _gated_normed(whole.x, F.linear(attend(q, keys, values).flatten(2), block.out), block.told[2])
    q = by_heads(_row_norm(F.linear(told, block.cross_q), whole.q_weight))
    x = x + F.linear(attend(q, whole.prompt_keys, whole.prompt_values).flatten(2), block.cross_out)
    up = _gelu(F.linear(_modulated(x, block.told[3], block.told[4]), block.up))
    return _gated(x, F.linear(up, block.down), block.told[5])


def _angles(inputs: Inputs) -> torch.Tensor:
    return torch.view_as_real(inputs.phases)[:, None]


def _modulated(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (F.layer_norm(x.float(), (HIDDEN,)) * (1 + scale) + shift).to(x.dtype)


def _norm_turned(x: torch.Tensor, weight: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    wide = x.float().flatten(2)
    normed = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight).view(x.shape)
    real, imaginary = normed.view(*x.shape[:-1], -1, 2).unbind(-1)
    cos, sin = angles[..., 0], angles[..., 1]
    return torch.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], -1).flatten(-2).to(x.dtype)


def _both(
    q: torch.Tensor, k: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, angles: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return _norm_turned(q, q_weight, angles), _norm_turned(k, k_weight, angles)


def _placed(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    angles: torch.Tensor,
    num_ranks: int,
) -> tuple[torch.Tensor, ...]:
    shape = (q.shape[1], num_ranks, HEADS // num_ranks, DIM)
    turned = (_norm_turned(q, q_weight, angles), _norm_turned(k, k_weight, angles), v)
    return tuple(x.reshape(shape).transpose(0, 1).reshape(1, -1, *shape[2:]).contiguous() for x in turned)


def _parts(q: torch.Tensor, weight: torch.Tensor, angles: torch.Tensor, num_ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    turned = _norm_turned(q, weight, angles).view(1, q.shape[1], num_ranks, HEADS // num_ranks, DIM)
    early = EARLY // num_ranks
    parts = (turned[:, :, :, :early], turned[:, :, :, early:])
    first, second = (part.reshape(1, q.shape[1], -1, DIM) for part in parts)
    return first.contiguous(), second.contiguous()


def _row_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight).to(x.dtype)


def _gated(x: torch.Tensor, made: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return (x.float() + made.float() * gate).to(x.dtype)


def _gated_normed(x: torch.Tensor, made: torch.Tensor, gate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = _gated(x, made, gate)
    return x, F.layer_norm(x.float(), (HIDDEN,)).to(x.dtype)


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")
