"""A critic of pictures: it learns to tell made ones from true ones patch by patch, and so says how to look true.

Relativistic pairing and gradient penalties on both sides after Huang et al., 2024, "The GAN is dead; long live the GAN!".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PENALTY = 0.2
"""Weight of the squared gradient of a patch's score by the pixels, -1..1."""


class Critic(nn.Module):
    """Scores of overlapping patches of 54×54 pixels."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 4 * width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(4 * width, 4 * width, 3, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(4 * width, 1, 3, padding=1),
        )

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """RGB -1..1 [N, 3, H, W] → scores [N, 1, H / 8, W / 8], higher for true ones."""
        scores: torch.Tensor = self.layers(pictures)
        return scores


class CriticTrainer:
    """A critic, and how it learns and judges."""

    def __init__(self, critic: Critic, learning_rate: float = 3e-4) -> None:
        self.critic = critic
        self._optimizer = torch.optim.Adam(critic.parameters(), lr=learning_rate, betas=(0.0, 0.99))

    def learn(self, true: torch.Tensor, made: torch.Tensor) -> tuple[float, float]:
        """One step on pairs of pictures, -1..1 [N, 3, H, W]; returns the mean lead of true ones and the penalty."""
        true, made = (x.detach().float().requires_grad_() for x in (true, made))
        true_scores, made_scores = self.critic(true), self.critic(made)
        lead = true_scores - made_scores
        penalty = _steepness(true_scores, true) + _steepness(made_scores, made)
        loss = F.softplus(-lead).mean() + 0.5 * PENALTY * penalty
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return lead.mean().item(), penalty.item()

    def push(self, true: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
        """The loss of made pictures: low where the critic takes them for truer than the true ones."""
        with torch.no_grad():
            true_scores = self.critic(true)
        loss: torch.Tensor = F.softplus(true_scores - self.critic(made)).mean()
        return loss


def balanced(pull: torch.Tensor, push: torch.Tensor, share: float) -> torch.Tensor:
    """Scale a gradient: ``push`` with ``share`` times the length of ``pull``."""
    scale: torch.Tensor = share * pull.norm() / push.norm().clamp_min(1e-20)
    return push * scale


def _steepness(scores: torch.Tensor, pictures: torch.Tensor) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(scores.sum(), pictures, create_graph=True)
    steepness: torch.Tensor = gradient.square().sum() / scores.numel()
    return steepness
