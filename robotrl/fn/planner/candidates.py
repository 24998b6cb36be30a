"""Groups of candidates of which some are padding: log-probabilities, and the dual-clipped surrogate loss (RIFT)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MASKED = -1e9
"""Score in place of a padded candidate's; its probability is exactly 0."""


def masked_log_softmax(scores: Tensor, valid: Tensor) -> Tensor:
    """Log-probabilities (B, G) by the softmax over the valid candidates; 0 for the others, which have no probability.

    Args:
        scores: (B, G); those of padded candidates change nothing.
        valid: (B, G) bool; one or more of each row.
    """
    log_probs = scores.masked_fill(~valid, MASKED).log_softmax(dim=-1)
    return log_probs.masked_fill(~valid, 0.0)


class CandidateLoss(NamedTuple):
    """Result of `dual_clip`."""

    loss: Tensor
    clip_fraction: Tensor
    """Fraction of the valid candidates with a ratio outside the clip range."""
    ratio_error: Tensor
    """Largest |ratio - 1|; 0 before the first update."""


def dual_clip(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, valid: Tensor, low: float, high: float, dual: float
) -> CandidateLoss:
    """Dual-clipped surrogate loss over all candidates, to be minimized.

    The objective of a candidate is min(r A, clip(r) A), and for a negative advantage no less than `dual` A, so that one
    large ratio does not decide the step (Ye et al. 2020, 1912.09729, eq. 8). It is averaged over the valid candidates.

    Args:
        log_prob: (B, G) under the policy in training.
        old_log_prob: the same under the policy that made the rollouts.
        advantage: (B, G).
        valid: (B, G) bool.
        low: the ratio r is clipped to at least 1 - low.
        high: the ratio is clipped to at most 1 + high.
        dual: factor of a negative advantage, above 1.
    """
    ratio = (log_prob - old_log_prob).exp()
    objective = torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    objective = torch.where(advantage < 0, torch.maximum(objective, dual * advantage), objective)
    count = valid.sum().clamp(min=1)
    loss = -objective.masked_fill(~valid, 0.0).sum() / count
    with torch.no_grad():
        outside = ((ratio < 1 - low) | (ratio > 1 + high)) & valid
        error = (ratio - 1).abs().masked_fill(~valid, 0.0)
    return CandidateLoss(loss, outside.sum() / count, error.max())
