"""Reward of a trained success classifier: 1 where it detects that the task is solved.

The practice of SERL (Luo et al. 2024, arXiv 2401.16013) and HIL-SERL (Luo et al. 2024, arXiv 2410.21845): a small
binary classifier of observations replaces a reward that a robot cannot measure. `robotrl reward train` trains one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import check_at_least, out_of_range
from robotrl.rewards.classifier import TrainedClassifier
from robotrl.rewards.network import check_shown
from robotrl.rewards.source import RewardSetup, Score, SimTransition
from robotrl.rewards.stored import load_classifier
from robotrl.spec import VecSim, reads


@dataclass(frozen=True)
class SuccessRewardCfg:
    """1 where a trained classifier detects a success in the observation, else 0."""

    path: str = field(metadata=reads("checkpoint"))
    """Directory of the success classifier (`robotrl reward train`)."""
    threshold: float | None = None
    """Lowest probability that counts as success, above 0, at most 1. None takes the calibrated one; the bound on false
    alarms is void for any other."""
    steps: int | None = None
    """Number of consecutive steps at which it must be reached, 1 or more. None takes the calibrated number."""
    ends: bool = False
    """End a training episode at a detected success."""

    def build(self, sim: VecSim, setup: RewardSetup) -> SuccessReward:
        """Build the source.

        Raises:
            DataError: the classifier's files are missing or damaged.
            ConfigError: see `SuccessReward`.
        """
        return SuccessReward(load_classifier(self.path), sim, self.threshold, self.steps, self.ends)


class SuccessReward:
    """Reward of 1 after `steps` consecutive steps with a detected success, 0 otherwise; a `RewardSource`.

    It has no delay, so every score is valid and of age 0.

    Args:
        trained: the classifier.
        sim: the sim whose observations it will get.
        threshold: lowest probability that counts as success, instead of the calibrated one, whose bound is then void.
        steps: number of consecutive steps, instead of the calibrated number. In a sim that ends an episode at its
            success, more than 1 is never reached.
        ends: end an episode at a detected success.

    Raises:
        ConfigError: the sim's observations are not those that it was trained on, or a setting is out of range.
    """

    fallback = 0.0
    sees_success = True

    def __init__(
        self,
        trained: TrainedClassifier,
        sim: VecSim,
        threshold: float | None = None,
        steps: int | None = None,
        ends: bool = False,
    ) -> None:
        check_shown("success classifier", trained.model.observation_spec, sim)
        self._model = trained.model.to(sim.device)
        self.threshold = trained.calibration.threshold if threshold is None else threshold
        self.steps = trained.calibration.steps if steps is None else steps
        if not 0 < self.threshold <= 1:
            raise out_of_range("reward.success.threshold", self.threshold, "above 0, at most 1")
        check_at_least("reward.success.steps", self.steps, 1)
        self.end_at = 1.0 if ends else None
        self.identity = f"{trained.identity}:{self.threshold!r}:{self.steps}"
        self._streak = torch.zeros(sim.num_envs, dtype=torch.int64, device=sim.device)

    def score(self, transition: SimTransition) -> Score:
        """See `RewardSource.score`."""
        obs = {key: transition.reached[key] for key in self._model.observation_spec}
        above = self._model.probability(obs) >= self.threshold
        self._streak = torch.where(above, self._streak + 1, 0)
        return Score.of_now((self._streak >= self.steps).float())

    def forget(self, envs: Tensor) -> None:
        """See `RewardSource.forget`."""
        self._streak[envs] = 0

    def state(self) -> dict[str, NDArray[np.generic]]:
        """See `RewardSource.state`."""
        return {"streak": self._streak.cpu().numpy().copy()}

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See `RewardSource.load`."""
        self._streak = torch.from_numpy(state["streak"].copy()).to(self._streak.device)
