"""The transformer: diffusers' Wan with blocks that also obey the walker's controls, run frame by frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from ithaka.workers.families.wan.diffusers_import import WanTransformer3DModel, WanTransformerBlock, register_to_config
from ithaka.workers.layers.attention import PromptAttention, RingSelfAttention
from ithaka.workers.layers.norm import modulate, rms_norm
from ithaka.workers.layers.packed_linear import PackedLinear

# Shapes: N rows (a row is one frame of one batch entry), s tokens of the frame on this rank, C channels, W prompt tokens.
TIME_SCALE = 1000.0
"""Wan counts noise levels from 0 to 1000; here they run from 0 (clean) to 1."""


@dataclass(frozen=True, slots=True)
class BlockConditions:
    """What one block is told about its rows; ``scale`` is the whole factor."""

    time: tuple[torch.Tensor, ...]
    """shift, scale, gate of self-attention, then of the feed-forward: [N, 1, C] each."""
    control: tuple[torch.Tensor, ...]
    """scale and shift, [N, 1, C] each."""
    prompt: tuple[torch.Tensor, ...]
    """keys and values, [N, H, W, D] each."""


class ControlledWanBlock(WanTransformerBlock):  # type: ignore[misc]
    """Wan's block with a scale and a shift of the stream by the controls, after LingBot-World's camera layers.

    They act before the self-attention, so that the first one already knows where the walker goes.
    """

    def __init__(self, dim: int, ffn_dim: int, num_heads: int, control_dim: int, **wan: Any) -> None:
        super().__init__(dim, ffn_dim, num_heads, **wan)
        self.control_scale = nn.Linear(control_dim, dim)
        self.control_shift = nn.Linear(control_dim, dim)
        for layer in (self.control_scale, self.control_shift):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    @property
    def product_dtype(self) -> torch.dtype:
        """The dtype in which matrix products run, and keys and values are kept."""
        weight: torch.Tensor = self.attn2.to_out[0].weight
        return weight.dtype

    def pack_products(self) -> None:
        """Lay the weights of the stream's products out for the CPU, for good: afterwards the block only infers."""
        up, _, down = self.ffn.net
        self.ffn.net = nn.ModuleList([PackedLinear(up.proj, gelu=True), PackedLinear(down)])
        self.attn1.to_qkv = PackedLinear(self.attn1.to_qkv)
        self.attn2.to_q = PackedLinear(self.attn2.to_q)
        for attn in (self.attn1, self.attn2):
            attn.to_out[0] = PackedLinear(attn.to_out[0])

    def time_conditions(self, time_proj: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """``time_proj`` [N, 6, C] → six of [N, 1, C]."""
        shift1, scale1, gate1, shift2, scale2, gate2 = (self.scale_shift_table + time_proj).chunk(6, dim=1)
        return shift1, 1 + scale1, gate1, shift2, 1 + scale2, gate2

    def control_conditions(self, control: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """``control`` [N, control_dim] → scale and shift, [N, 1, C] each; ``ControlHeads`` does it for all blocks."""
        return 1 + self.control_scale(control)[:, None], self.control_shift(control)[:, None]

    def prompt_conditions(self, words: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """``words`` [N, W, C] → keys and values, [N, H, W, D] each."""
        attn = self.attn2
        words = words.to(self.product_dtype)
        values = attn.to_v(words)
        keys = rms_norm(attn.to_k(words), attn.norm_k.weight, attn.norm_k.eps).to(values.dtype)
        return tuple(x.unflatten(-1, (attn.heads, -1)).transpose(1, 2) for x in (keys, values))

    def forward(self, x: torch.Tensor, conditions: BlockConditions, attention: dict[str, Any]) -> torch.Tensor:
        """``x`` [N, s, C] → the same; ``attention`` is handed on to the self-attention's processor.

        The stream, the norms and the conditions keep the dtype of ``x``; products run in that of the weights.
        """
        dtype = x.dtype if torch.is_autocast_enabled(x.device.type) else self.product_dtype
        shift1, scale1, gate1, shift2, scale2, gate2 = conditions.time
        control_scale, control_shift = conditions.control
        keys, values = conditions.prompt
        x = torch.addcmul(control_shift, x, control_scale)
        seen = self.attn1(modulate(x, scale1, shift1, self.norm1.eps).to(dtype), **attention)
        x = torch.addcmul(x, seen.to(x.dtype), gate1)
        norm = self.norm2
        told = F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps)
        x = x + self.attn2(told.to(dtype), keys=keys, values=values)
        made = self.ffn(modulate(x, scale2, shift2, self.norm3.eps).to(dtype))
        return torch.addcmul(x, made.to(x.dtype), gate2)


class ControlHeads:
    """``control_conditions`` of all blocks in one product, with the weights that they have now."""

    def __init__(self, blocks: list[ControlledWanBlock]) -> None:
        heads = [head for block in blocks for head in (block.control_scale, block.control_shift)]
        weight, bias = torch.stack([head.weight for head in heads]), torch.stack([head.bias for head in heads])
        bias[::2] += 1
        self._weight, self._bias = weight.flatten(0, 1), bias.flatten()
        self._shape = (len(blocks), 2, 1, bias.shape[1])

    def __call__(self, control: torch.Tensor) -> torch.Tensor:
        """``control`` [N, control_dim] → scale and shift of each block, [N, blocks, 2, 1, C]."""
        return F.linear(control, self._weight, self._bias).view(len(control), *self._shape)


class CausalWanModel(WanTransformer3DModel):  # type: ignore[misc]
    """``WanTransformer3DModel`` for streams: noise levels per frame, controls, our attention processors.

    Frames come as tokens, [N, s, in_channels * patch area]; the prediction is the flow's velocity in the same layout.
    """

    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(
        self,
        patch_size: tuple[int, ...] = (1, 1, 1),
        num_attention_heads: int = 4,
        attention_head_dim: int = 64,
        in_channels: int = 16,
        out_channels: int = 16,
        text_dim: int = 64,
        freq_dim: int = 128,
        ffn_dim: int = 768,
        num_layers: int = 8,
        cross_attn_norm: bool = True,
        eps: float = 1e-6,
        control_inputs: int = 3,
        control_dim: int = 64,
    ) -> None:
        super().__init__(
            patch_size=patch_size,
            num_attention_heads=num_attention_heads,
            attention_head_dim=attention_head_dim,
            in_channels=in_channels,
            out_channels=out_channels,
            text_dim=text_dim,
            freq_dim=freq_dim,
            ffn_dim=ffn_dim,
            num_layers=0,
            cross_attn_norm=cross_attn_norm,
            eps=eps,
            rope_max_seq_len=1,
        )
        dim = num_attention_heads * attention_head_dim
        self.register_to_config(num_layers=num_layers)
        self.blocks = nn.ModuleList(
            ControlledWanBlock(dim, ffn_dim, num_attention_heads, control_dim, cross_attn_norm=cross_attn_norm, eps=eps)
            for _ in range(num_layers)
        )
        self.control_embedder = nn.Sequential(
            nn.Linear(control_inputs, control_dim), nn.SiLU(), nn.Linear(control_dim, control_dim), nn.SiLU()
        )
        for layer, block in enumerate(self.layers):
            block.attn1.set_processor(RingSelfAttention(layer))
            block.attn2.set_processor(PromptAttention())

    @property
    def layers(self) -> list[ControlledWanBlock]:
        """The blocks, in order."""
        return cast("list[ControlledWanBlock]", list(self.blocks))

    @property
    def num_heads(self) -> int:
        """Attention heads of a block."""
        return int(self.config["num_attention_heads"])

    @property
    def head_dim(self) -> int:
        """Channels of a head."""
        return int(self.config["attention_head_dim"])

    @property
    def num_channels(self) -> int:
        """Channels of a latent token."""
        return int(self.config["in_channels"])

    def embed_time(self, levels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Noise ``levels`` float32 [N], 0..1 → projections for the blocks [N, 6, C] and the embedding [N, C]."""
        embedder = self.condition_embedder
        embedded = embedder.time_embedder(embedder.timesteps_proj(levels * TIME_SCALE))
        projected = embedder.time_proj(F.silu(embedded)).unflatten(1, (6, -1))
        return projected, embedded

    def embed_words(self, words: torch.Tensor) -> torch.Tensor:
        """Vectors of the prompt encoder [N, W, text_dim] → [N, W, C]."""
        embedded: torch.Tensor = self.condition_embedder.text_embedder(words)
        return embedded

    def embed_patches(self, tokens: torch.Tensor) -> torch.Tensor:
        """Latent tokens [N, s, in_channels * patch area] → [N, s, C]."""
        convolution = self.patch_embedding
        return F.linear(tokens, convolution.weight.flatten(1), convolution.bias)

    def output_conditions(self, time_embedded: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[N, C] → shift and scale of the last norm, [N, 1, C] each."""
        shift, scale = (self.scale_shift_table + time_embedded[:, None]).chunk(2, dim=1)
        return shift, 1 + scale

    def predict(self, x: torch.Tensor, output: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """The stream after the last block [N, s, C] → velocity, [N, s, out_channels * patch area]."""
        shift, scale = output
        velocity: torch.Tensor = self.proj_out(modulate(x, scale, shift, self.norm_out.eps))
        return velocity

    def use_products_in(self, dtype: torch.dtype) -> None:
        """Let the blocks' matrix products, and so keys and values, run in ``dtype``; everything else stays as it is."""
        for block in self.layers:
            for module in (block.attn1, block.attn2, block.ffn):
                for layer in module.modules():
                    if isinstance(layer, nn.Linear):
                        layer.to(dtype)

    def run(
        self,
        tokens: torch.Tensor,
        conditions: tuple[BlockConditions, ...],
        output: tuple[torch.Tensor, torch.Tensor],
        attention: dict[str, Any],
    ) -> torch.Tensor:
        """One forward: latent tokens [N, s, in] → velocity [N, s, out]; see the parts above."""
        x = self.embed_patches(tokens)
        for block, told in zip(self.blocks, conditions, strict=True):
            x = block(x, told, attention)
        return self.predict(x, output)
