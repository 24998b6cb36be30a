"""The critics of IQL (Kostrikov et al. 2022): a state value without actions beyond the data, and critics of chunks.

The state value is an upper expectile of the values of the data's chunks, and the critics bootstrap from it. So no chunk
of a policy is valued in training, and neither half depends on how the policy acts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from robotrl.fn.q_targets import bootstrap, ensemble_mse, expectile_loss
from robotrl.policies.networks.value import ValueNet
from robotrl.policies.q import QEnsemble, smallest


class IqlValues(NamedTuple):
    """Values of a minibatch of the data."""

    values: Tensor
    """(E, B) of the chunks, by the critics in training."""
    value: Tensor
    """(B,) of the states, by the state value in training."""
    target_q: Tensor
    """(B,) of the chunks, the smallest of the averaged critics; without gradient."""
    next_value: Tensor
    """(B,) of the states after the chunks; without gradient."""


def iql_values(
    critic: QEnsemble,
    value: ValueNet,
    averaged: Mapping[str, Tensor],
    ctx: Tensor,
    next_ctx: Tensor,
    chunk: Tensor,
) -> IqlValues:
    """Evaluate the networks on a minibatch.

    Args:
        critic: the critics in training.
        value: the state value in training.
        averaged: weights of the averaged critics.
        ctx: (B, D) contexts before the chunks, without gradient.
        next_ctx: (B, D) contexts after them.
        chunk: (B, H, A) chunks as they were executed.
    """
    with torch.no_grad():
        next_value = value(next_ctx).to(ctx.dtype)
        target_q = smallest(functional_call(critic, dict(averaged), (ctx, chunk)))
    return IqlValues(critic(ctx, chunk), value(ctx).to(ctx.dtype), target_q, next_value)


def iql_critic_loss(
    found: IqlValues, reward: Tensor, discount: Tensor, expectile: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Expectile loss of the state value, and squared error of the critics (eq. 5 and 6); with scalars to log.

    Args:
        found: values of the minibatch.
        reward: (B,) discounted within the chunk.
        discount: (B,) gamma to the number of env steps of the chunk, 0 where the task ended the episode.
        expectile: above 0 and below 1.
    """
    value_loss = expectile_loss(found.value, found.target_q, expectile)
    critic_loss = ensemble_mse(found.values, bootstrap(reward, discount, found.next_value))
    info = {
        "value_loss": value_loss,
        "critic_loss": critic_loss,
        "v": found.value.mean(),
        "q": found.values.mean(),
    }
    return value_loss + critic_loss, info
