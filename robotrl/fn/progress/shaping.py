"""Reward terms from a learned progress: potential-based shaping, or the progress itself."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Form = Literal["potential", "raw"]
"""Forms of a reward from progress: its discounted change, which keeps the optimal policy, or the progress itself."""
FORMS: tuple[Form, ...] = ("potential", "raw")


def potential_term(progress: Tensor, next_progress: Tensor, discount: Tensor, terminated: Tensor) -> Tensor:
    """Potential-based shaping: gamma^L phi(s') - phi(s), phi being the progress (Ng, Harada & Russell 1999).

    Over an episode, the terms sum up to -phi of its start for every policy, so the optimal policy does not change. For
    that, the potential of a terminal state must be 0 (Grzes 2017): otherwise an end at high progress, e.g. a failure,
    would gain reward. A truncated episode is not over: its last observation is bootstrapped and keeps its potential.

    Args:
        progress: (M, N) of the observations of decisions.
        next_progress: (M, N) of the observations after them; any number where terminated.
        discount: (M, N) gamma to the power of L, the env steps of a decision: a decision's term is then the
            discounted sum of its steps' terms.
        terminated: (M, N) bool.
    """
    return discount * next_progress.masked_fill(terminated, 0.0) - progress


def raw_term(next_progress: Tensor, gamma: float, length: Tensor) -> Tensor:
    """Progress after a decision, as the reward of its last step (as in VLA-RL, 2505.18719).

    It rewards high progress at every decision, so that a policy may gain by waiting just before the end.

    Args:
        next_progress: (M, N) of the observations after decisions, final ones of episodes included.
        gamma: discount per env step.
        length: (M, N) env steps of a decision, 1 or more.
    """
    return gamma ** (length - 1).to(next_progress.dtype) * next_progress


def step_term(form: Form, progress: Tensor, next_progress: Tensor, gamma: float, terminated: Tensor) -> Tensor:
    """Reward (N,) of one env step from the progress before and after it; see `potential_term`.

    Args:
        form: "raw" is `next_progress` itself.
        progress: (N,) before the step.
        next_progress: (N,) after it; of the last state where the episode ended.
        gamma: discount per env step.
        terminated: (N,) bool.
    """
    if form == "raw":
        return next_progress
    return potential_term(progress, next_progress, torch.full_like(progress, gamma), terminated)
