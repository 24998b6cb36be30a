"""Reward that a run learns from in an iteration, by its log."""

from __future__ import annotations

import math
from collections.abc import Mapping


def learned_reward(scalars: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Return of the rollouts; where scores may come later than their steps, the weighted mean over scored steps.

    Of an episode that ended before its scores came no return is known, and a mean over such episodes says nothing.

    Args:
        scalars: those of an iteration; NaN comes back where they have neither.
        weights: weight of each reward source, by name.
    """
    returned = scalars.get("rollout_return", math.nan)
    late = any(key.startswith(f"scoring/{name}/") for key in scalars for name in weights)
    if math.isfinite(returned) and not late:
        return returned
    return sum(weight * _of_a_step(name, scalars) for name, weight in weights.items())


def _of_a_step(name: str, scalars: Mapping[str, float]) -> float:
    """Mean reward of a source over the steps that have a score; NaN if none has."""
    valid = scalars.get(f"reward_valid/{name}", 1.0)
    return scalars.get(f"reward/{name}", math.nan) / valid if valid > 0 else math.nan
