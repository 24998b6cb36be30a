"""Targets and losses of off-policy learning, as pure functions of tensors."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


def bootstrap(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """One-step bootstrap target of a chunk, reward + discount * value.

    `discount` is gamma to the number of steps, and 0 if the task terminated the episode; a time limit does not change
    it, so that the value beyond the limit counts. No gradient flows through the next value.

    Args:
        reward: (B,) discounted within the chunk.
        discount: (B,).
        next_value: (B,) of the state after the chunk.
    """
    return reward + discount * next_value.detach()


def discounted_ones(steps: Tensor, gamma: float) -> Tensor:
    """Return of a reward of 1 at each step of a chunk: sum of gamma^k over k = 0 ... steps - 1, (B,) float64."""
    # in float64, because 1 - gamma loses digits; for gamma = 1 the sum is the count
    count = steps.double()
    return count if gamma == 1 else (1 - gamma**count) / (1 - gamma)


def soft_value(value: Tensor, log_prob: Tensor, alpha: Tensor) -> Tensor:
    """Soft value (Haarnoja et al. 2018b, eq. 3): value - alpha * log_prob, (B,) each."""
    return value - alpha * log_prob


def ensemble_mse(values: Tensor, target: Tensor) -> Tensor:
    """Half the squared error, mean over rows and sum over critics.

    The sum keeps each critic's gradient, and so the learning rate, independent of their number.

    Args:
        values: (E, B).
        target: (B,).
    """
    return 0.5 * ((values - target) ** 2).mean(1).sum()


class ActorLoss(NamedTuple):
    """Result of `soft_actor`."""

    loss: Tensor
    entropy: Tensor
    """Estimate of the policy's entropy per chunk."""


def soft_actor(value: Tensor, log_prob: Tensor, alpha: Tensor) -> ActorLoss:
    """SAC's policy loss (Haarnoja et al. 2018b, eq. 7), the mean of alpha * log_prob - value.

    Args:
        value: (B,) of reparametrized actions.
        log_prob: (B,) of these.
        alpha: temperature; no gradient flows into it.
    """
    return ActorLoss((alpha.detach() * log_prob - value).mean(), -log_prob.detach().mean())


def temperature_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Temperature loss (Haarnoja et al. 2018b, eq. 17): raises alpha while the entropy is below its target.

    As in the authors' code, the loss uses log alpha instead of alpha, so that alpha stays positive.
    """
    return -(log_alpha * (log_prob.detach() + target_entropy)).mean()


def expectile_loss(value: Tensor, target: Tensor, expectile: float) -> Tensor:
    """Expectile loss (Kostrikov et al. 2022, eq. 5): 0.5 gives half the squared error, towards 1 the maximum.

    Args:
        value: (B,).
        target: (B,) errors of targets above the value are weighted by `expectile`, those below by 1 - `expectile`.
        expectile: above 0 and below 1.
    """
    error = target - value
    side = torch.where(error > 0, expectile, 1 - expectile)
    return (side * error**2).mean()


def advantage_weight(advantage: Tensor, beta: float, largest: float) -> Tensor:
    """exp(beta * advantage), at most `largest` (Kostrikov et al. 2022, eq. 7), (B,)."""
    # the exponent is clamped first: exp of a large number is infinite, and its gradient NaN
    return (beta * advantage).clamp(max=math.log(largest)).exp()
