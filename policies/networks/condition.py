"""Condition of a policy: two numbers beside a context, which shift it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from robotrl.policies.networks.mlp import Mlp

WIDTH = 2
"""Numbers of a condition."""
POSITIVE, NEGATIVE, DROPPED = (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)
"""An action that is better than usual, one that is not, and a condition that is not stated."""


class ConditionNet(nn.Module):
    """Adds a shift to a context, one for each number of the condition; it begins as no shift at all.

    A condition of zeros adds exact zeros, whatever the weights. So a policy without its condition is the policy itself.

    Args:
        context_width: D of the context.
        hidden: widths of the hidden layers.
    """

    def __init__(self, context_width: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.net = Mlp(context_width, hidden, WIDTH * context_width, last_gain=0.0)

    def forward(self, ctx: Tensor, condition: Tensor) -> Tensor:
        """Context (B, D) of a context (B, D) and its condition (B, 2)."""
        shifts = self.net(ctx).unflatten(1, (WIDTH, -1))
        return ctx + (condition[:, :, None] * shifts).sum(1)


def appended(ctx: Tensor, condition: Sequence[float]) -> Tensor:
    """Context (B, D + 2): a context (B, D) with the same condition in each row."""
    return torch.cat([ctx, ctx.new_tensor(condition).expand(len(ctx), WIDTH)], dim=1)
