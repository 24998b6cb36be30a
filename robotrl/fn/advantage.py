"""Advantage estimators: GAE, V-trace, normalization, group-relative advantages."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Gae(NamedTuple):
    """Result of `gae`."""

    advantage: Tensor
    """(T, N) advantages; 0 where not valid."""
    value_target: Tensor
    """(T, N) advantage plus value."""


def gae(
    reward: Tensor, value: Tensor, next_value: Tensor, discount: Tensor, ended: Tensor, valid: Tensor, gae_lambda: float
) -> Gae:
    """Generalized advantage estimation (Schulman et al. 2016), chunk-aware.

    A row is a decision. `next_value` must be 0 after a termination, the value of the final observation after a
    time-out, and otherwise the value of the next decision's observation; `ended` only cuts the sum.

    Args:
        reward: (T, N) reward of the decision, discounted inside its chunk.
        value: (T, N) critic before the decision.
        next_value: (T, N) critic after it, see above.
        discount: (T, N) gamma to the power of the decision's number of steps.
        ended: (T, N) bool, the episode ended with this decision, by termination or time-out.
        valid: (T, N) bool; rows that are not valid are padding and change nothing.
        gae_lambda: lambda of the exponential average, 0 to 1.

    Returns:
        Advantages and value targets.
    """
    delta = reward + discount * next_value - value
    carry = discount * gae_lambda * (~ended).to(reward.dtype)
    running = torch.zeros_like(reward[0])
    advantage = torch.zeros_like(reward)
    for t in range(len(reward) - 1, -1, -1):
        running = torch.where(valid[t], delta[t] + carry[t] * running, running)
        advantage[t] = torch.where(valid[t], running, torch.zeros_like(running))
    return Gae(advantage, advantage + value)


class VTrace(NamedTuple):
    """Result of `vtrace`."""

    advantage: Tensor
    """(T, N) advantages of the policy gradient; 0 where not valid."""
    value_target: Tensor
    """(T, N) targets of the critic; the value itself where not valid."""


def vtrace(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    discount: Tensor,
    ended: Tensor,
    valid: Tensor,
    log_ratio: Tensor,
    lam: float = 1.0,
    most_rho: float = 1.0,
    most_c: float = 1.0,
) -> VTrace:
    """V-trace targets and advantages of decisions of an older policy (Espeholt et al. 2018, 1802.01561, eq. 1 and 4).

    Rows are those of `gae`. Where the policies agree, the targets are those of GAE.

    Args:
        reward: (T, N) see `gae`.
        value: (T, N) see `gae`.
        next_value: (T, N) see `gae`.
        discount: (T, N) see `gae`.
        ended: (T, N) see `gae`.
        valid: (T, N) see `gae`.
        log_ratio: (T, N) log-probability under the present policy minus that under the policy that acted.
        lam: factor of the traces c, 0 to 1.
        most_rho: largest rho, the weight of a step's error; it decides which policy's values are the fixed point.
        most_c: largest c, the weight with which later errors reach back.
    """
    ratio = log_ratio.exp()
    rho, trace = ratio.clamp(max=most_rho), lam * ratio.clamp(max=most_c)
    follows = discount * (~ended).to(reward.dtype)
    delta = rho * (reward + discount * next_value - value)
    # value target minus value, of the decision after the present one
    later = torch.zeros_like(reward[0])
    advantage, above = torch.zeros_like(reward), torch.zeros_like(reward)
    for t in range(len(reward) - 1, -1, -1):
        here = rho[t] * (reward[t] + discount[t] * next_value[t] + follows[t] * later - value[t])
        advantage[t] = torch.where(valid[t], here, advantage[t])
        later = torch.where(valid[t], delta[t] + follows[t] * trace[t] * later, later)
        above[t] = torch.where(valid[t], later, above[t])
    return VTrace(advantage, value + above)


def normalize(advantage: Tensor, valid: Tensor, among: Tensor | None = None) -> Tensor:
    """Normalize to mean 0 and standard deviation 1 over the valid entries; equal advantages give exactly 0.

    Args:
        advantage: any shape.
        valid: bool of the same shape.
        among: (n,) the advantages that define mean and standard deviation, if `advantage` is only a part of them.
    """
    chosen = advantage[valid] if among is None else among
    if not len(chosen):
        return torch.zeros_like(advantage)
    centerd = advantage - chosen.mean()
    std = chosen.std(unbiased=False)
    # equal advantages have no information; the rounding error of their mean must not be scaled up
    rounding = 16 * torch.finfo(chosen.dtype).eps * chosen.abs().max()
    if std <= rounding:
        return torch.zeros_like(advantage)
    return torch.where(valid, centerd / (std + 1e-8), torch.zeros_like(centerd))


def group_relative(reward: Tensor, valid: Tensor | None = None) -> Tensor:
    """Group-relative advantages (P, G) of P groups of G members: (reward - group mean) / group std.

    Equal rewards give exactly zero (Shao et al. 2024, 2402.03300, with the unbiased std of SimpleVLA-RL).

    Args:
        reward: (P, G), G 2 or more.
        valid: (P, G) bool; members that are not valid are padding: they change nothing, and have advantage 0. Groups
            with one valid member have advantage 0. None: all are.
    """
    if valid is None:
        centerd = reward - reward.mean(dim=1, keepdim=True)
        return centerd / (reward.std(dim=1, keepdim=True) + 1e-6)
    count = valid.sum(dim=1, keepdim=True)
    centerd = (reward - masked_sum(reward, valid) / count.clamp(min=1)).masked_fill(~valid, 0.0)
    return centerd / (_spread(centerd, count) + 1e-6)


def masked_sum(values: Tensor, valid: Tensor) -> Tensor:
    """Sums (P, 1) of the valid members of each group."""
    return values.masked_fill(~valid, 0.0).sum(dim=1, keepdim=True)


def group_std(reward: Tensor, valid: Tensor) -> Tensor:
    """Unbiased standard deviation (P,) of the valid (P, G) members of each group; 0 with fewer than two."""
    count = valid.sum(dim=1, keepdim=True)
    return _spread((reward - masked_sum(reward, valid) / count.clamp(min=1)).masked_fill(~valid, 0.0), count)[:, 0]


def _spread(centerd: Tensor, count: Tensor) -> Tensor:
    """Unbiased std (P, 1) of groups of `count` (P, 1) members; of deviations that are 0 for padding."""
    return (centerd.square().sum(dim=1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()


def spread_groups(reward: Tensor, least_std: float, valid: Tensor | None = None) -> Tensor:
    """Indices (k,) of the groups whose rewards tell their members apart; the others teach nothing (RAD-2).

    Args:
        reward: (P, G), G 2 or more.
        least_std: least standard deviation (unbiased) of a kept group, 0 or more; groups of equal rewards are never
            kept.
        valid: (P, G) bool, see `group_relative`.
    """
    std = reward.std(dim=1) if valid is None else group_std(reward, valid)
    return torch.nonzero((std >= least_std) & (std > 0))[:, 0]
