"""Preference models: probability that one of two segments of behavior is preferred, and their losses.

Partial return (Christiano et al. 2017, arXiv 1706.03741, eq. 1): a person prefers the segment with the larger sum of
rewards. Regret (Knox et al. 2022, arXiv 2206.02231, eq. 4): a person prefers the segment with the smaller regret, which
is how much worse than the best its actions were. Both are logistic in the difference of a score of each segment
(Bradley & Terry 1952).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def segment_score(step: Tensor, valid: Tensor) -> Tensor:
    """Sum over the valid steps of segments; steps after the end of a task count 0.

    Args:
        step: (..., L) a number for each step.
        valid: (..., L) bool.

    Returns:
        (...,).
    """
    return torch.where(valid, step, torch.zeros_like(step)).sum(-1)


def preference_probability(logit: Tensor, error: float = 0.0) -> Tensor:
    """Probability (...,) that an answer names the second segment.

    Args:
        logit: (...,) score of the second segment less that of the first.
        error: fraction of the answers that are drawn at random, 0 to 1, half of which are wrong (Christiano et al.
            2017, section 2.2.3, assume 0.1).
    """
    return (1 - error) * torch.sigmoid(logit) + error / 2


def preference_loss(logit: Tensor, second: Tensor, error: float = 0.0) -> Tensor:
    """Cross-entropy (...,) of answers.

    Args:
        logit: (...,) score of the second segment less that of the first.
        second: (...,) 1 where the second segment was preferred, 0 where the first was.
        error: see `preference_probability`.
    """
    if error == 0:
        return F.binary_cross_entropy_with_logits(logit, second, reduction="none")
    probability = preference_probability(logit, error)
    return F.binary_cross_entropy(probability, second, reduction="none")


def step_regret(output: Tensor) -> Tensor:
    """Regret of steps, above 0, of a network's outputs (...,): no action is better than the best one."""
    return F.softplus(output)


def deterministic_regret(reward: Tensor, valid: Tensor, value_start: Tensor, value_end: Tensor, gamma: float) -> Tensor:
    """Regret (M,) of segments where transitions are deterministic (Knox et al. 2022, eq. 3, here with a discount).

    The value of the first state, less what the segment got and the value that is left after it.

    Args:
        reward: (M, L).
        valid: (M, L) bool, False after the end of the task; the valid steps of a row come first.
        value_start: (M,) optimal value of the first state.
        value_end: (M,) optimal value of the state after the last valid step; 0 where the task has ended.
        gamma: discount per step.
    """
    discounts = gamma ** torch.arange(reward.shape[1], device=reward.device, dtype=reward.dtype)
    gained = segment_score(discounts * reward, valid)
    return value_start - gained - gamma ** valid.sum(1).to(reward.dtype) * value_end


def best_temperature(logits: Tensor, second: Tensor, error: float = 0.0) -> float:
    """Temperature that makes an ensemble's probabilities fit held-out answers best (Guo et al. 2017, 1706.04599).

    Searched over 121 values from 1/30 to 30, evenly spaced in their logarithm.

    Args:
        logits: (E, P) of E members.
        second: (P,) 1 where the second segment was preferred, 0 where the first was.
        error: see `preference_probability`.
    """
    candidates = torch.logspace(-1.4771, 1.4771, 121, dtype=torch.float64)
    losses = [
        F.binary_cross_entropy(ensemble_probability(logits.double(), float(t), error), second.double())
        for t in candidates
    ]
    return float(candidates[int(torch.stack(losses).argmin())])


def ensemble_probability(logits: Tensor, temperature: float, error: float = 0.0) -> Tensor:
    """Mean probability (P,) over the members of an ensemble.

    Args:
        logits: (E, P).
        temperature: divides the logits.
        error: see `preference_probability`.
    """
    return preference_probability(logits / temperature, error).mean(0)
