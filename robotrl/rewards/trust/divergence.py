"""Watches a training for reward hacking: the rewards rise while the sim's truth falls.

The rule, over blocks of iterations: in the last 20 blocks the reward rises (Kendall's trend of 0.5 or more), the truth
falls (-0.5 or less), and it falls by a margin from the first to the last quarter of the blocks. Blocks of 1, 2, 4, ...
iterations are looked at, as far as the run reaches, so that slow and fast divergences are seen. Independent noise has a
trend of 0.5 once in a thousand times, and here two of them must meet, of opposite signs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.config import TrainCfg
from robotrl.fn.evidence.learned_reward import learned_reward
from robotrl.fn.evidence.trend import kendall_trend, last_blocks
from robotrl.rewards.trust.returns import SIM_RETURN

Reals = NDArray[np.float64]
BLOCKS = 20
"""Blocks of iterations that a trend is taken over."""
TREND = 0.5
"""Trend of the reward, and minus that of the truth, from which they diverge."""
SUCCESS_MARGIN = 0.1
"""Least fall of the success rate."""
RETURN_MARGIN = 0.1
"""Least fall of the sim's own return, as a fraction of its largest magnitude in the blocks."""
DIVERGES = "reward_diverges"
"""Scalar: 1 in iterations in which the rule holds, else 0; absent until it can be told."""


class Divergence(NamedTuple):
    """Rewards that rose while the truth fell."""

    iterations: int
    """Over the last so many iterations."""
    reward: tuple[float, float]
    """Mean in the first and in the last quarter of them."""
    truth: tuple[float, float]


def divergence(reward: Reals, truth: Reals, is_rate: bool) -> Divergence | None:
    """Apply the rule to the last blocks of any size whose end is now; None if it does not hold.

    Args:
        reward: (n,) what the run learns from, of each iteration.
        truth: (n,) what it should achieve.
        is_rate: whether the truth is a success rate.
    """
    size = 1
    while size * BLOCKS <= len(reward):
        if len(reward) % size == 0:
            gained, achieved = last_blocks(reward, BLOCKS, size), last_blocks(truth, BLOCKS, size)
            before, after = _quarters(achieved)
            margin = SUCCESS_MARGIN if is_rate else RETURN_MARGIN * float(np.abs(achieved).max())
            fell = before - after >= margin > 0 and kendall_trend(achieved) <= -TREND
            if fell and kendall_trend(gained) >= TREND:
                return Divergence(size * BLOCKS, _quarters(gained), (before, after))
        size *= 2
    return None


def _quarters(blocks: Reals) -> tuple[float, float]:
    """Means of the first and of the last quarter."""
    quarter = len(blocks) // 4
    return float(blocks[:quarter].mean()), float(blocks[-quarter:].mean())


class DivergenceWatch:
    """Compares the reward of a run's sources with the sim's truth in each iteration, and warns once.

    The reward is that of `learned_reward`; the truth is the success of the rollouts, in a run that is evaluated by
    return the sim's own return. Iterations in which no episode ended are left out.

    Args:
        cfg: config; without reward sources nothing is watched.
        past: scalars of the iterations before a resume.
    """

    def __init__(self, cfg: TrainCfg[object, object], past: Sequence[Mapping[str, float]] = ()) -> None:
        self._weights = {one.name: one.weight for one in cfg.rewards}
        self._is_rate = cfg.evaluation.score == "success"
        self._truth_name = "rollout_success" if self._is_rate else SIM_RETURN
        self._reward: list[float] = []
        self._truth: list[float] = []
        for row in past:
            self._add(row)
        self._said = any(row.get(DIVERGES, 0.0) > 0 for row in past)

    def look(self, scalars: Mapping[str, float]) -> dict[str, float]:
        """Look at the scalars of an iteration; returns a further one, `reward_diverges`.

        It warns at the first iteration at which the rule holds.
        """
        if not self._weights or not self._add(scalars) or len(self._reward) < BLOCKS:
            return {}
        found = divergence(np.array(self._reward), np.array(self._truth), self._is_rate)
        if found is not None and not self._said:
            self._said = True
            warnings.warn(self._words(found), stacklevel=3)
        return {DIVERGES: float(found is not None)}

    def _add(self, scalars: Mapping[str, float]) -> bool:
        """Keep reward and truth of an iteration; false if it has not both."""
        truth = scalars.get(self._truth_name, math.nan)
        reward = learned_reward(scalars, self._weights)
        if not self._weights or not math.isfinite(truth) or not math.isfinite(reward):
            return False
        self._reward.append(reward)
        self._truth.append(truth)
        return True

    def _words(self, found: Divergence) -> str:
        (low, high), (before, after) = found.reward, found.truth
        fell = (
            f"success fell from {100 * before:.0f} to {100 * after:.0f} %"
            if self._is_rate
            else f"the sim's own return fell from {before:.4g} to {after:.4g}"
        )
        return (
            f"over the last {found.iterations} iterations the reward rose from {low:.4g} to {high:.4g}, and {fell}: the"
            " policy may exploit the reward; expected both to rise; robotrl reward eval SIM --policy RUN measures it"
        )
