"""Losses as pure functions of tensors, with scalars to log."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class PolicyLoss(NamedTuple):
    """Result of `ppo_clip`."""

    loss: Tensor
    approx_kl: Tensor
    """Mean of (ratio - 1) - log ratio (Schulman's estimator), 0 or more."""
    clip_fraction: Tensor
    """Fraction of ratios outside the clip range."""
    ratio_error: Tensor
    """Largest |ratio - 1|; 0 before the first update."""


def ppo_clip(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip_coef: float | Tensor) -> PolicyLoss:
    """Clipped surrogate loss of PPO (Schulman et al. 2017, eq. 7), to be minimized.

    Args:
        log_prob: (B,) log-probability under the policy in training, or (B, K) with one ratio per denoising step.
        old_log_prob: the same under the policy that acted.
        advantage: (B,) or (B, K).
        clip_coef: the ratio is clipped to [1 - clip_coef, 1 + clip_coef]; a number, or (K,) one per step.
    """
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    low: Any = 1 - clip_coef
    high: Any = 1 + clip_coef
    clipped = ratio.clamp(low, high)
    loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
    with torch.no_grad():
        error = (ratio - 1).abs()
        kl = ((ratio - 1) - log_ratio).mean()
        outside = (error > clip_coef).to(ratio.dtype).mean()
    return PolicyLoss(loss, kl, outside, error.max())


def behavior_weight(log_prob: Tensor, behavior_log_prob: Tensor, most: float) -> Tensor:
    """Weights (B, ...) of an older policy's decisions in PPO's decoupled objective (Hilton et al. 2021, 2110.00641).

    The clip range of PPO is around the policy before the update, the proximal policy. The decisions are those of the
    policy that acted, and are weighted by the ratio of the two. A positive weight may be multiplied into the advantage.

    Args:
        log_prob: (B, ...) under the proximal policy, one for each ratio.
        behavior_log_prob: the same under the policy that acted.
        most: largest weight; AReaL (Fu et al. 2025, 2505.24298) leaves out what is above it instead.
    """
    return (log_prob - behavior_log_prob).exp().clamp(max=most)


def weighted_clip(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, weight: Tensor, low: float, high: float
) -> PolicyLoss:
    """Weighted clipped surrogate loss with an asymmetric clip range (Yu et al. 2025), to be minimized.

    Args:
        log_prob: (B, ...) under the policy in training.
        old_log_prob: the same under the policy that acted.
        advantage: (B, ...).
        weight: (B, ...) weight of each term in the sum that is averaged over B; terms with 0 are not logged either.
        low: the ratio is clipped to at least 1 - low.
        high: the ratio is clipped to at most 1 + high.
    """
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    worse = torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    loss = -(weight * worse).flatten(1).sum(dim=1).mean()
    with torch.no_grad():
        there = (weight > 0).to(ratio.dtype)
        count = there.sum().clamp(min=1)
        kl = (((ratio - 1) - log_ratio) * there).sum() / count
        outside = (((ratio < 1 - low) | (ratio > 1 + high)) * there).sum() / count
        error = ((ratio - 1).abs() * there).max()
    return PolicyLoss(loss, kl, outside, error)


def value_mse(value: Tensor, target: Tensor) -> Tensor:
    """Half the mean squared error of the critic."""
    return 0.5 * ((value - target) ** 2).mean()


def value_clipped_mse(value: Tensor, old_value: Tensor, target: Tensor, clip: float) -> Tensor:
    """Half the mean squared error of the critic, with value clipping (PPO2 of OpenAI Baselines, 2017).

    Each row counts with the larger of two squared errors: of its value, and of its value clipped to `clip` around the
    old value. So a row that has moved further than `clip` towards its target has no gradient.

    Args:
        value: (B,) of the critic in training.
        old_value: (B,) of the critic before the iteration's updates.
        target: (B,).
        clip: largest change, in units of the value.
    """
    held = old_value + (value - old_value).clamp(-clip, clip)
    return 0.5 * torch.maximum((value - target) ** 2, (held - target) ** 2).mean()


def explained_variance(value: Tensor, target: Tensor) -> Tensor:
    """1 when the critic predicts its targets, 0 when it does no better than their mean; 0 for constant targets."""
    variance = target.var(unbiased=False)
    explained = 1 - (target - value).var(unbiased=False) / variance.clamp(min=1e-12)
    return torch.where(variance > 1e-12, explained, torch.zeros_like(explained))


def masked_mse(prediction: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """Mean squared error over the valid entries.

    Args:
        prediction: (B, H, A).
        target: (B, H, A).
        valid: (B, H) bool; False for padding beyond the end of the episode.
    """
    weight = valid.unsqueeze(-1).to(prediction.dtype)
    return (((prediction - target) ** 2) * weight).sum() / (weight.sum() * prediction.shape[-1]).clamp(min=1)
