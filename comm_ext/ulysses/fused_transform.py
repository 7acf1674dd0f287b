"""What happens to queries and keys before attention: a root-mean-square norm and rotary positions, as numbers and in torch.

Legend: B batch, s tokens of this rank, H heads of all ranks, D channels of a head. All of it is computed in float32 and rounded
once, whatever carries it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ithaka.comm_ext.ulysses.errors import UlyssesErrorCode, UlyssesInputError

Span = Literal["head", "row"]
Pairing = Literal["interleaved", "halves"]


@dataclass(frozen=True, slots=True)
class QkNorm:
    """Weights are float32 and contiguous: [D] for ``span`` "head" (each head by itself), [H * D] for "row" (all together)."""

    q_weight: torch.Tensor
    k_weight: torch.Tensor
    eps: float
    span: Span

    @classmethod
    def of(cls, q_weight: torch.Tensor, k_weight: torch.Tensor, *, eps: float, span: Span) -> QkNorm:
        """From weights of any dtype."""
        return cls(q_weight.detach().float().contiguous(), k_weight.detach().float().contiguous(), eps, span)


@dataclass(frozen=True, slots=True)
class QkRope:
    """``phases`` complex64 [B, s, D / 2], or [s, D / 2] for all of a batch, turn channel pairs: neighbours (``interleaved``),
    or channels half a head apart (``halves``)."""

    phases: torch.Tensor
    pairing: Pairing = "interleaved"


@dataclass(frozen=True, slots=True)
class QkTransform:
    """First the norm, then the positions; either may be missing."""

    norm: QkNorm | None
    rope: QkRope | None

    def apply(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[B, s, H, D] twice → the same shapes and dtypes."""
        weights = (None, None) if self.norm is None else (self.norm.q_weight, self.norm.k_weight)
        q, k = (self._apply(x, weight) for x, weight in zip((q, k), weights, strict=True))
        return q, k

    def check(self, q: torch.Tensor, k: torch.Tensor) -> None:
        """Raises UlyssesInputError where weights or phases don't fit these queries and keys."""
        if self.norm is not None:
            for x, weight in ((q, self.norm.q_weight), (k, self.norm.k_weight)):
                channels = x.shape[3] if self.norm.span == "head" else x.shape[2] * x.shape[3]
                _check(weight, (channels,), torch.float32, x.device, f"the weight of a norm over a {self.norm.span}")
                if not weight.is_contiguous():
                    raise UlyssesInputError(UlyssesErrorCode.BAD_ARGUMENT, "the weight of a norm must be contiguous")
            if self.norm.span not in ("head", "row") or not self.norm.eps >= 0:
                raise UlyssesInputError(UlyssesErrorCode.BAD_ARGUMENT, f"a norm over head or row, eps >= 0, not {self.norm}")
        if self.rope is not None:
            phases = self.rope.phases
            batch = () if phases.dim() == 2 else (q.shape[0],)
            _check(phases, (*batch, q.shape[1], q.shape[3] // 2), torch.complex64, q.device, "phases")
            if q.shape[3] % 2 or self.rope.pairing not in ("interleaved", "halves"):
                raise UlyssesInputError(
                    UlyssesErrorCode.BAD_ARGUMENT,
                    f"interleaved or halves, of an even head dim: got {self.rope.pairing!r}, {q.shape[3]}",
                )

    def _apply(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        wide = x.float()
        if self.norm is not None and weight is not None:
            rows = wide.flatten(2) if self.norm.span == "row" else wide
            rows = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + self.norm.eps) * weight
            wide = rows.reshape(x.shape)
        if self.rope is not None:
            wide = _turned(wide, self.rope)
        return wide.to(x.dtype)


def _turned(x: torch.Tensor, rope: QkRope) -> torch.Tensor:
    phases = torch.view_as_real(rope.phases).unsqueeze(-3)  # [.., s, 1, D / 2, 2]
    cos, sin = phases[..., 0], phases[..., 1]
    if rope.pairing == "halves":
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    first, second = x.view(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(-2)


def _check(x: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, what: str) -> None:
    if tuple(x.shape) != shape or x.dtype != dtype or x.device != device:
        raise UlyssesInputError(
            UlyssesErrorCode.BAD_ARGUMENT,
            f"{what}: expected {list(shape)} {dtype} on {device}, got {list(x.shape)} {x.dtype} on {x.device}",
        )
