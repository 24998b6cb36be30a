"""What a learned progress adds to the reward of decisions: as a potential, which keeps the optimum, or as it is."""

from __future__ import annotations

from torch import Tensor


def potential_term(progress: Tensor, next_progress: Tensor, discount: Tensor, terminated: Tensor) -> Tensor:
    """gamma^L phi(s') - phi(s), phi being the progress (Ng, Harada & Russell 1999, potential-based shaping).

    Over an episode the terms sum up to -phi of its start whatever was done, so that no policy gains by them but through
    what they say earlier. For that the potential of a terminal state must be 0 (Grzes 2017): else an end at high
    progress, a failure for example, would be a gain. An episode that is cut off is not over: what follows is worth the
    value of its last observation, and that has its potential.

    Args:
        progress: (M, N) of the observations of decisions.
        next_progress: (M, N) of the observations after them; anything at all where terminated.
        discount: (M, N) gamma to the power of L, the env steps that a decision took: a decision's term is then the
            discounted sum of its steps' terms.
        terminated: (M, N) bool.
    """
    return discount * next_progress.masked_fill(terminated, 0.0) - progress


def raw_term(next_progress: Tensor, gamma: float, length: Tensor) -> Tensor:
    """The progress that a decision came to, as the reward of its last step (as VLA-RL adds it, 2505.18719).

    It rewards being far on at every decision, so that a policy may gain by standing still just before the end.

    Args:
        next_progress: (M, N) of the observations after decisions, final ones of episodes included.
        gamma: discount of an env step.
        length: (M, N) env steps that a decision took, 1 or more.
    """
    return gamma ** (length - 1).to(next_progress.dtype) * next_progress
