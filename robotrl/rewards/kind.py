"""Says when a recipe that was tuned on 0/1 rewards meets rewards of another kind."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from robotrl.config import TrainCfg

ROUNDING = 1e-4


class RewardKindCheck:
    """Compares the first episodes of training with the kind of reward that the settings were tuned on.

    Where the reward is 1 at a success that ends the episode, and else 0, an episode's return is 1 or 0 as it succeeded
    or not. Returns of another mean are of another kind: shaped, a cost for each step, or 1 for each step at the goal.

    Args:
        cfg: config with the field `tuned_on`; rewards of other sources (`rewards`) are not checked.
    """

    def __init__(self, cfg: TrainCfg[Any, Any]) -> None:
        self._sim = cfg.sim.name
        self._gamma: Mapping[str, object] = vars(cfg.algo)
        self._open = cfg.tuned_on == "success" and not cfg.rewards

    def look(self, scalars: Mapping[str, float]) -> None:
        """Look at the scalars of an iteration; warns once, at the first iteration in which episodes ended."""
        if not self._open or "rollout_return" not in scalars or "rollout_success" not in scalars:
            return
        self._open = False
        gained, solved = scalars["rollout_return"], scalars["rollout_success"]
        if abs(gained - solved) <= ROUNDING:
            return
        gamma = (
            f", or algo.gamma, which is {self._gamma['gamma']}, and the learning rates,"
            if "gamma" in self._gamma
            else ""
        )
        options = (
            "--sim.reward success --sim.success info:KEY --sim.end-at-success"
            if self._sim.startswith("gym/")
            else "--sim.reward sparse"
        )
        warnings.warn(
            f"these settings were tuned on rewards of 1 at a success that ends the episode, else 0; sim {self._sim!r}"
            f" gave a mean return of {gained:.4g} at {100 * solved:.0f} % success, so its rewards are of another kind:"
            f" expected {options}{gamma} tuned anew",
            stacklevel=3,
        )
