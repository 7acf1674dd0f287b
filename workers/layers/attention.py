"""Attention processors for Wan's blocks: self-attention over a KV ring or over a masked clip, attention to the prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from ithaka.comm_ext.ulysses.fused_transform import QkNorm, QkRope
from ithaka.workers.layers.head_exchange import HeadExchange
from ithaka.workers.layers.kv_ring import KVRing
from ithaka.workers.layers.norm import rms_norm
from ithaka.workers.layers.rope import rotate_pairs

_FEW_KEYS = 32
"""So few are quickest in one call, whatever it computes in."""

# Shapes: N rows (a row is one frame of one batch entry), S tokens of a frame (s: this rank's share), H heads (h: this
# rank's share), D channels of a head.


@dataclass(frozen=True, slots=True)
class HeadShards:
    """How this rank shares one tensor with the others; splits are None where all shares are equal."""

    exchange: HeadExchange
    num_ranks: int
    seq_splits: list[int] | None = None
    head_splits: list[int] | None = None
    fuses: bool = False
    """Whether queries and keys are normed and turned by the exchange, which pays between GPUs."""

    def scatter_values_first(
        self, v: torch.Tensor, make_qk: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Values leave before queries and keys are made; one wait for the three. [N, s, H, D] → [N, S, h, D], three times."""
        splits = self._splits()
        self.exchange.scatter_heads_async(v, "values", **splits)
        q, k = make_qk()
        self.exchange.scatter_heads_async(q, "queries", **splits)
        self.exchange.scatter_heads_async(k, "keys", **splits)
        q, k, v = self.exchange.wait(("queries", "keys", "values"))
        return q, k, v

    def norm_turn_scatter(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, norm: QkNorm, rope: QkRope
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """All three at once, queries and keys as they were projected: they are normed and turned on their way."""
        return self.exchange.fused_qk_norm_rope_scatter(q, k, v, norm=norm, rope=rope, **self._splits())

    def gather_heads(self, x: torch.Tensor) -> torch.Tensor:
        """[N, S, h, D] → [N, s, H, D]."""
        return self.exchange.gather_heads(x, **self._splits())

    def gather_sequence(self, x: torch.Tensor) -> torch.Tensor:
        """[N, s, C] → [N, S, C] on every rank: scattering one copy per rank as if copies were heads."""
        copies = self.num_ranks
        splits = {} if self.seq_splits is None else {"seq_splits": self.seq_splits, "head_splits": [1] * copies}
        tiled = x[:, :, None].expand(-1, -1, copies, -1).contiguous()
        return self.exchange.scatter_heads(tiled, **splits)[:, :, 0]

    def _splits(self) -> dict[str, list[int]]:
        named = {"seq_splits": self.seq_splits, "head_splits": self.head_splits}
        return {name: splits for name, splits in named.items() if splits is not None}


@dataclass(frozen=True, slots=True)
class FrameMemory:
    """Where the rows of one forward stand in the session.

    Rows come frame by frame: ``frames[g]`` owns rows ``g * batch`` to ``(g + 1) * batch``. Later frames see earlier ones.
    """

    ring: KVRing
    frames: tuple[int, ...]
    phases: torch.Tensor
    """complex64 [N, s, 1, 1, D / 2], for queries and keys of this rank's tokens."""
    shards: HeadShards | None = None


class RingSelfAttention:
    """Self-attention of a streaming session: keys and values go into the ring, queries look at what is visible there."""

    def __init__(self, layer: int) -> None:
        self._layer = layer

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: None = None,
        attention_mask: None = None,
        rotary_emb: None = None,
        *,
        memory: FrameMemory,
    ) -> torch.Tensor:
        """``hidden_states`` [N, s, H * D] → the same shape."""
        seen = self._attend(*self._project(attn, hidden_states, memory), memory)
        if memory.shards is not None:
            seen = memory.shards.gather_heads(seen)
        out: torch.Tensor = attn.to_out[0](seen.flatten(2))
        return out

    def _project(
        self, attn: Any, hidden_states: torch.Tensor, memory: FrameMemory
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of all tokens and this rank's heads, [N, S, h, D]."""
        if memory.shards is not None and memory.shards.fuses:
            q, k, v = (_by_heads(x, attn.heads) for x in _projected(attn, hidden_states))
            norm = QkNorm.of(attn.norm_q.weight, attn.norm_k.weight, eps=attn.norm_q.eps, span="row")
            return memory.shards.norm_turn_scatter(q, k, v, norm, QkRope(memory.phases[:, :, 0, 0]))
        qk, v = _projected_qk(attn, hidden_states)

        def make_qk() -> tuple[torch.Tensor, torch.Tensor]:
            return _norm_turn(attn, qk, lambda normed: rotate_pairs(normed, memory.phases), v.dtype)

        if memory.shards is not None:
            return memory.shards.scatter_values_first(v, make_qk)
        return *make_qk(), v

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        batch = q.shape[0] // len(memory.frames)
        seen = []
        for index, frame in enumerate(memory.frames):
            rows = slice(index * batch, (index + 1) * batch)
            memory.ring.write(self._layer, frame, k[rows], v[rows])
            keys, values = memory.ring.visible(self._layer, frame)
            seen.append(attend(q[rows], keys, values))
        return seen[0] if len(seen) == 1 else torch.cat(seen)


class ClipSelfAttention:
    """Self-attention of a whole clip at once, as in training: ``kernel`` knows the mask.

    ``kernel(q, k, v)`` takes and returns [B, H, F * S, D].
    """

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: None = None,
        attention_mask: None = None,
        rotary_emb: None = None,
        *,
        num_frames: int,
        rotate: Callable[[torch.Tensor], torch.Tensor],
        kernel: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """``hidden_states`` [B * F, S, H * D] → the same shape."""
        q, k, v = project_qkv(attn, hidden_states, rotate)
        q, k, v = (x.reshape(-1, num_frames * x.shape[1], *x.shape[2:]).transpose(1, 2) for x in (q, k, v))
        seen = kernel(q, k, v.to(q.dtype)).transpose(1, 2)
        out: torch.Tensor = attn.to_out[0](seen.reshape(hidden_states.shape))
        return out


class PromptAttention:
    """Attention to the prompt, whose keys and values were projected once."""

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: None = None,
        attention_mask: None = None,
        rotary_emb: None = None,
        *,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        """``hidden_states`` [N, s, H * D]; ``keys`` and ``values`` [N, H, words, D]."""
        q = rms_norm(attn.to_q(hidden_states), attn.norm_q.weight, attn.norm_q.eps)
        seen = attend(_by_heads(q.to(values.dtype), attn.heads), keys, values)
        out: torch.Tensor = attn.to_out[0](seen.flatten(2))
        return out


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Softmax attention: queries [B, S, H, D] on keys and values [B, H, K, D] → [B, S, H, D], without copies."""
    q = q.transpose(1, 2)
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and k.shape[-2] > _FEW_KEYS:
        # The CPU's fused attention computes bfloat16 slower than float32; of many keys, two plain products are twice as fast.
        weights = torch.softmax((q * q.shape[-1] ** -0.5) @ k.mT, dim=-1)
        return (weights @ v).transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def project_qkv(
    attn: Any, hidden_states: torch.Tensor, rotate: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries and keys, normed and rotated, and values: [N, s, H * D] → [N, s, H, D] three times.

    ``rotate`` takes queries and keys together, float32 [N, s, 2, H, D].
    """
    qk, v = _projected_qk(attn, hidden_states)
    return *_norm_turn(attn, qk, rotate, v.dtype), v


def _projected_qk(attn: Any, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[N, s, H * D] → queries and keys side by side [N, s, 2 * H * D], and values [N, s, H, D]."""
    if attn.fused_projections:
        qk, v = attn.to_qkv(hidden_states).split([2 * attn.inner_dim, attn.inner_dim], dim=-1)
    else:
        qk = torch.cat([attn.to_q(hidden_states), attn.to_k(hidden_states)], -1)
        v = attn.to_v(hidden_states)
    return qk, _by_heads(v, attn.heads)


def _norm_turn(
    attn: Any, qk: torch.Tensor, rotate: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys [N, s, H, D] of what ``_projected_qk`` left side by side."""
    weight = torch.stack([attn.norm_q.weight, attn.norm_k.weight])
    normed = rms_norm(_by_heads(qk, 2), weight, attn.norm_q.eps)
    q, k = rotate(_by_heads(normed, attn.heads)).to(dtype).unbind(2)
    return q, k


def _projected(attn: Any, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[N, s, H * D] three times; parts of one tensor where the projections are fused."""
    if attn.fused_projections:
        q, k, v = attn.to_qkv(hidden_states).chunk(3, dim=-1)
        return q, k, v
    return attn.to_q(hidden_states), attn.to_k(hidden_states), attn.to_v(hidden_states)


def _by_heads(x: torch.Tensor, num_heads: int) -> torch.Tensor:
    return x.view(*x.shape[:-1], num_heads, -1)
