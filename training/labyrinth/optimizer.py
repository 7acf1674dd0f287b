"""Muon for the blocks' matrices, AdamW for the rest; equal shapes are orthogonalised together."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration by K. Jordan, 2024 (Muon)."""
NEWTON_SCHULZ_STEPS = 5


class Muon:
    """Momentum, orthogonalised: the update of a matrix has singular values near one, scaled to the size of AdamW's."""

    def __init__(self, matrices: list[nn.Parameter], *, momentum: float = 0.95, weight_decay: float = 0.05) -> None:
        groups: dict[torch.Size, list[torch.Tensor]] = defaultdict(list)
        for matrix in matrices:
            groups[matrix.shape].append(matrix)
        self._groups = list(groups.values())
        self._momenta = [torch.zeros(len(g), *g[0].shape, device=g[0].device) for g in self._groups]
        self._momentum = momentum
        self._weight_decay = weight_decay

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Apply the gradients."""
        for group, momentum in zip(self._groups, self._momenta, strict=True):
            gradient = torch.stack([p.grad if p.grad is not None else torch.zeros_like(p) for p in group])
            momentum.lerp_(gradient, 1 - self._momentum)
            update = orthogonalise(gradient.lerp(momentum, self._momentum)).to(momentum.dtype)
            size = 0.2 * max(group[0].shape) ** 0.5
            torch._foreach_mul_(group, 1 - learning_rate * self._weight_decay)
            torch._foreach_add_(group, list(update.unbind(0)), alpha=-learning_rate * size)


def orthogonalise(matrices: torch.Tensor) -> torch.Tensor:
    """Push the singular values of [N, rows, columns] towards one, in bf16 on a GPU and float32 on a CPU."""
    a, b, c = NEWTON_SCHULZ
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: torch.Tensor = x.mT if tall else x
    return result


class TwoOptimizers:
    """What trains the transformer: Muon for its blocks' matrices, AdamW for everything else."""

    def __init__(self, model: nn.Module, others: list[nn.Parameter]) -> None:
        blocks = [p for name, p in model.named_parameters() if name.startswith("blocks.") and p.ndim == 2]
        chosen = {id(p) for p in blocks}
        rest = [p for p in model.parameters() if id(p) not in chosen] + others
        self._muon = Muon(blocks)
        self._adamw = torch.optim.AdamW(rest, lr=1.0, betas=(0.9, 0.98), weight_decay=0.01)
        self._all = blocks + rest

    def step(self, muon_rate: float, adamw_rate: float) -> None:
        """Clip, apply and clear the gradients."""
        torch.nn.utils.clip_grad_norm_(self._all, 1.0)
        for group in self._adamw.param_groups:
            group["lr"] = adamw_rate
        self._muon.step(muon_rate)
        self._adamw.step()
        for parameter in self._all:
            parameter.grad = None
