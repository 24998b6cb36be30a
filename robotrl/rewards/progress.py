"""Reward from the distance to success that a sim states (`HasDistance`).

Progress is exp(-distance / scale), in (0, 1]. As a potential (Ng, Harada & Russell 1999) it leads the policy without
changing the best one: see `robotrl.fn.progress.shaping`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import CapabilityError, check_positive, unknown
from robotrl.fn.progress.shaping import FORMS, Form, step_term
from robotrl.rewards.source import RewardSetup, Score, SimTransition
from robotrl.spec import HasDistance, VecSim, why_lacking


@dataclass(frozen=True)
class ProgressRewardCfg:
    """Progress by the sim's distance from success, or its change; for sims that state one."""

    scale: float = 0.1
    """Distance at which progress is 1/e, above 0, in the sim's unit: meters, or as its page says."""
    form: Form = "potential"
    """Form of the reward: "potential", the discounted change of the progress, which keeps the optimal policy; or "raw",
    the progress itself, which pays for waiting just before the end."""

    def build(self, sim: VecSim, setup: RewardSetup) -> ProgressReward:
        """Build the source.

        Raises:
            CapabilityError: the sim states no distance.
            ConfigError: a setting is out of range.
        """
        return ProgressReward(sim, self.scale, self.form, setup.gamma)


class ProgressReward:
    """Reward from the sim's distance before and after a step; a `RewardSource`.

    A sim that restarts an env within the step no longer states the distance of the last state. A success counts as
    progress 1 and a terminal state's potential is 0, so only the score of a truncated step is unknown, and of a failure
    in the raw form: it is invalid.

    Args:
        sim: the sim.
        scale: distance at which progress is 1/e.
        form: see `robotrl.fn.progress.shaping`.
        gamma: the learner's discount per env step.

    Raises:
        CapabilityError: the sim lacks `HasDistance`.
        ConfigError: a setting is out of range.
    """

    fallback = 0.0
    end_at: float | None = None
    sees_success = True

    def __init__(self, sim: VecSim, scale: float, form: Form, gamma: float) -> None:
        if not isinstance(sim, HasDistance):
            raise CapabilityError(
                f"sim {type(sim).__name__} lacks HasDistance, which reward 'progress' reads: expected a sim that states"
                f" its distance from success, or a learned progress (reward 'process'){why_lacking(sim, 'HasDistance')}"
            )
        check_positive("reward.progress.scale", scale)
        if form not in FORMS:
            raise unknown("reward.progress.form", str(form), FORMS)
        self._sim = sim
        self._scale, self._gamma = scale, gamma
        self._form: Form = form
        self.identity = f"progress:{scale!r}:{form}:{gamma!r}"
        self._progress = torch.zeros(sim.num_envs, device=sim.device)

    def score(self, transition: SimTransition) -> Score:
        """See `RewardSource.score`."""
        step = transition.step
        now = self._stated()
        success = step.terminated & step.info["success"]
        after = torch.where(success, torch.ones_like(now), now)
        value = step_term(self._form, self._progress, after, self._gamma, step.terminated)
        ended = step.terminated | step.truncated
        known = ~ended | (success if self._form == "raw" else step.terminated)
        self._progress = now
        return Score.of_now(value, known)

    def _stated(self) -> Tensor:
        return torch.exp(-self._sim.distance().float() / self._scale)

    def forget(self, envs: Tensor) -> None:
        """See `RewardSource.forget`."""
        self._progress = torch.where(envs, self._stated(), self._progress)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """See `RewardSource.state`."""
        return {"progress": self._progress.cpu().numpy().copy()}

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See `RewardSource.load`."""
        self._progress = torch.from_numpy(state["progress"].copy()).to(self._progress.device)
