"""Queries, keys and values with norms and positions, and what each rank must receive: for all backends and engines."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ithaka.comm_ext.ulysses.fused_transform import Pairing, QkNorm, QkRope, QkTransform, Span

Splits = tuple[int, ...]
INTEGERS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Case:
    """One fused call, in whole shapes."""

    seq_splits: Splits
    head_splits: Splits
    kv_head_splits: Splits
    dim: int
    dtype: torch.dtype
    span: Span | None
    pairing: Pairing | None
    batch: int = 1
    arrangement: str = "contiguous"


@dataclass(frozen=True, slots=True)
class Drawn:
    """One rank's view of a case."""

    qkv: tuple[torch.Tensor, ...]
    transform: QkTransform
    wanted: tuple[torch.Tensor, ...]


def draw(case: Case, rank: int, device: torch.device, seed: int) -> Drawn:
    """The rank's inputs and its wanted results; the whole is equal on all ranks for a seed."""
    generator = torch.Generator(device=device).manual_seed(seed)
    tokens, dim = sum(case.seq_splits), case.dim
    heads = (sum(case.head_splits), sum(case.kv_head_splits), sum(case.kv_head_splits))
    whole = [
        (3 * torch.randn(case.batch, tokens, count, dim, device=device, generator=generator)).to(case.dtype) for count in heads
    ]
    norm = None
    if case.span is not None:
        counts = (1, 1) if case.span == "head" else heads[:2]
        q_weight, k_weight = (1 + torch.randn(count * dim, device=device, generator=generator) / 4 for count in counts)
        norm = QkNorm(q_weight, k_weight, EPS, case.span)
    angles = 6.3 * torch.rand(case.batch, tokens, dim // 2, device=device, generator=generator)
    phases = torch.polar(torch.ones_like(angles), angles)
    rope = None if case.pairing is None else QkRope(phases, case.pairing)
    q, k = reference(whole[0], whole[1], norm, rope)
    wanted = tuple(
        torch.split(x, list(splits), 2)[rank].contiguous()
        for x, splits in zip((q, k, whole[2]), (case.head_splits, case.kv_head_splits, case.kv_head_splits), strict=True)
    )
    shards = [torch.split(x, list(case.seq_splits), 1)[rank] for x in whole]
    own = None if rope is None else QkRope(torch.split(phases, list(case.seq_splits), 1)[rank], rope.pairing)
    return Drawn(tuple(_arranged(shards, case.arrangement)), QkTransform(norm, own), wanted)


def reference(q: torch.Tensor, k: torch.Tensor, norm: QkNorm | None, rope: QkRope | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Norm and positions from their definitions, in float64, by complex numbers."""
    turned = []
    for which, x in enumerate((q, k)):
        wide = x.double()
        if norm is not None:
            weight = (norm.q_weight, norm.k_weight)[which].double()
            flat = wide.flatten(2) if norm.span == "row" else wide
            wide = (flat / torch.sqrt(flat.square().mean(-1, keepdim=True) + norm.eps) * weight).view(x.shape)
        if rope is not None:
            halves = rope.pairing == "halves"
            pairs = torch.stack(wide.chunk(2, -1), -1) if halves else wide.view(*x.shape[:-1], -1, 2)
            spun = torch.view_as_complex(pairs.contiguous()) * rope.phases.to(torch.complex128)[:, :, None]
            wide = torch.cat([spun.real, spun.imag], -1) if halves else torch.view_as_real(spun).flatten(-2)
        turned.append(wide.to(x.dtype))
    return turned[0], turned[1]


def furthest(got: torch.Tensor, wanted: torch.Tensor) -> int:
    """The largest distance in units of the dtype's last place; one below 2⁻²⁰ of the largest value counts for nothing."""
    near = (got.double() - wanted.double()).abs() <= wanted.double().abs().max() * 2**-20
    apart = (_ordered(got) - _ordered(wanted)).abs()
    return int(torch.where(near, 0, apart).max())


def _ordered(x: torch.Tensor) -> torch.Tensor:
    """Neighbouring numbers become neighbouring integers."""
    kind = INTEGERS[x.dtype]
    bits = x.contiguous().view(kind).long()
    return torch.where(bits < 0, torch.iinfo(kind).min - bits, bits)


def _arranged(qkv: list[torch.Tensor], arrangement: str) -> list[torch.Tensor]:
    if arrangement == "parts":  # of one projection's rows
        widths = [x.shape[2] for x in qkv]
        return list(torch.split(torch.cat(qkv, 2), widths, 2))
    if arrangement == "permuted":  # as attention leaves it: [B, H, S, D] in memory
        return [x.transpose(1, 2).contiguous().transpose(1, 2) for x in qkv]
    return [x.contiguous() for x in qkv]
