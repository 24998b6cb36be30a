"""Risk critic: the probability that a servo tick's action leads to a violation soon."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from robotrl.policies.networks.mlp import Mlp
from robotrl.spec import Spec

FIRST_LOGIT = -4.0
"""Logit of an untrained critic, a risk of 2 %: its targets start from its own opinion, and violations are rare."""
FURTHEST = 10.0
"""Normalized measurements are cut off at this many standard deviations."""


class RiskCritic(nn.Module):
    """Discounted probability of a violation, Q(s, a), from what a servo measures and the action that it would send.

    Small, so that a servo evaluates it at each of its ticks.

    Args:
        measured: S, width of a measurement.
        action_spec: the action, with finite bounds.
        hidden: widths of the hidden layers.
    """

    offset: Tensor
    scale: Tensor
    action_offset: Tensor
    action_scale: Tensor

    def __init__(self, measured: int, action_spec: Spec, hidden: Sequence[int]) -> None:
        super().__init__()
        low, high = (torch.tensor(x, dtype=torch.float32) for x in (action_spec.low, action_spec.high))
        self.register_buffer("offset", torch.zeros(measured))
        self.register_buffer("scale", torch.ones(measured))
        self.register_buffer("action_offset", (low + high) / 2, persistent=False)
        self.register_buffer("action_scale", 2 / (high - low), persistent=False)
        self.net = Mlp(measured + len(low), hidden, 1, last_gain=0.1, activation="relu")
        last = self.net.layers[-1]
        assert isinstance(last, nn.Linear)
        nn.init.constant_(last.bias, FIRST_LOGIT)

    def normalize_by(self, obs: Tensor) -> None:
        """Set the normalization from measurements (B, S): their mean and standard deviation."""
        self.offset.copy_(obs.mean(0))
        self.scale.copy_(1 / obs.std(0).clamp(min=1e-6))

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Logits (B,) of the probability, from measurements (B, S) and actions (B, A) in the sim's units."""
        seen = ((obs - self.offset) * self.scale).clamp(-FURTHEST, FURTHEST)
        asked = (action - self.action_offset) * self.action_scale
        return self.net(torch.cat([seen, asked], dim=1)).squeeze(1)

    def risk(self, obs: Tensor, action: Tensor) -> Tensor:
        """The probability (B,) itself."""
        return torch.sigmoid(self(obs, action))
