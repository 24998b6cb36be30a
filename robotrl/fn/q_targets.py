"""Targets and losses of off-policy learning: pure functions of tensors, checked against numbers worked by hand."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


def bootstrap(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """The one-step target of a chunk, reward + discount * value.

    `discount` is gamma to the number of steps, and 0 where the task ended the episode; a time limit leaves it as it is,
    so that a value beyond the limit counts. Bootstrapping itself carries no gradient.

    Args:
        reward: (B,) discounted within the chunk.
        discount: (B,).
        next_value: (B,) of the state after the chunk.
    """
    return reward + discount * next_value.detach()


def discounted_ones(steps: Tensor, gamma: float) -> Tensor:
    """Sum of gamma^k over k = 0 ... steps - 1, (B,) float64: what a reward of 1 at each step of a chunk is worth."""
    # in float64: 1 - gamma loses digits. A gamma of 1 has no closed form but the count
    count = steps.double()
    return count if gamma == 1 else (1 - gamma**count) / (1 - gamma)


def soft_value(value: Tensor, log_prob: Tensor, alpha: Tensor) -> Tensor:
    """Value with the entropy that follows (Haarnoja et al. 2018b, eq. 3): value - alpha * log_prob, (B,) each."""
    return value - alpha * log_prob


def ensemble_mse(values: Tensor, target: Tensor) -> Tensor:
    """Half the squared error, a mean over rows and a sum over members.

    Every member learns as if alone, so the learning rate does not depend on their number.

    Args:
        values: (E, B).
        target: (B,).
    """
    return 0.5 * ((values - target) ** 2).mean(1).sum()


class ActorLoss(NamedTuple):
    """What `soft_actor` returns."""

    loss: Tensor
    entropy: Tensor
    """Estimate of the policy's entropy, of a chunk."""


def soft_actor(value: Tensor, log_prob: Tensor, alpha: Tensor) -> ActorLoss:
    """SAC's policy loss (Haarnoja et al. 2018b, eq. 7), the mean of alpha * log_prob - value.

    Args:
        value: (B,) of reparametrised actions.
        log_prob: (B,) of these.
        alpha: temperature; no gradient flows into it.
    """
    return ActorLoss((alpha.detach() * log_prob - value).mean(), -log_prob.detach().mean())


def temperature_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Raises the temperature while the entropy is below its target, else lowers it (Haarnoja et al. 2018b, eq. 17).

    The logarithm takes the place of the temperature, as in the authors' code: it cannot leave its range.
    """
    return -(log_alpha * (log_prob.detach() + target_entropy)).mean()


def expectile_loss(value: Tensor, target: Tensor, expectile: float) -> Tensor:
    """Asymmetric squared error (Kostrikov et al. 2022, eq. 5): 0.5 is half the mean, towards 1 it nears the maximum.

    Args:
        value: (B,).
        target: (B,) what is above the value counts `expectile`, what is below the rest.
        expectile: above 0 and below 1.
    """
    error = target - value
    side = torch.where(error > 0, expectile, 1 - expectile)
    return (side * error**2).mean()


def advantage_weight(advantage: Tensor, beta: float, largest: float) -> Tensor:
    """exp(beta * advantage), at most `largest` (Kostrikov et al. 2022, eq. 7), (B,)."""
    # the exponent is bounded first: exp of a large one is infinite, and its gradient is not a number
    return (beta * advantage).clamp(max=math.log(largest)).exp()
