"""Trained success classifier, its calibration, and the reward that it gives.

The practice of SERL (Luo et al. 2024, arXiv 2401.16013) and HIL-SERL (Luo et al. 2024, arXiv 2410.21845): a small
binary classifier of observations replaces a reward that a robot cannot measure. `robotrl.rewards.training` trains one,
`robotrl.rewards.stored` saves it to a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import check_at_least, out_of_range
from robotrl.rewards.calibration import Rates
from robotrl.rewards.network import RewardNet, check_shown
from robotrl.rewards.source import Score
from robotrl.spec import Arrays, VecSim


@dataclass(frozen=True)
class Calibration:
    """Decision rule of a success classifier, and its measured error rates."""

    threshold: float
    """Lowest probability that counts as success."""
    steps: int
    """Number of consecutive steps at which it must be reached."""
    grace: int
    """A success reported at most this many steps early counted as a hit."""
    bound: float
    """Bound on the fraction of episodes with a false alarm, for which the threshold was chosen."""
    episodes: int
    """Number of held-out episodes for the choice of the threshold."""
    rates: Rates
    """Error rates on other held-out episodes."""


class TrainedClassifier(NamedTuple):
    """A trained and calibrated success classifier."""

    model: RewardNet
    calibration: Calibration
    about: dict[str, str | int | float]
    """Origin: sim, datasets, updates, seed."""
    identity: str
    """Hexadecimal SHA-256 of weights and calibration."""


class SuccessReward:
    """Reward of 1 after `steps` consecutive steps with a detected success, 0 otherwise; a `RewardSource`.

    It has no delay, so every score is valid and of age 0.

    Args:
        trained: the classifier.
        sim: the sim whose observations it will get.
        threshold: lowest probability that counts as success, instead of the calibrated one, whose bound is then void.
        steps: number of consecutive steps, instead of the calibrated number. In a sim that ends an episode at its
            success, more than 1 is never reached.

    Raises:
        ConfigError: the sim's observations are not those that it was trained on, or a setting is out of range.
    """

    fallback = 0.0

    def __init__(
        self, trained: TrainedClassifier, sim: VecSim, threshold: float | None = None, steps: int | None = None
    ) -> None:
        check_shown("success classifier", trained.model.observation_spec, sim)
        self._model = trained.model.to(sim.device)
        self.threshold = trained.calibration.threshold if threshold is None else threshold
        self.steps = trained.calibration.steps if steps is None else steps
        if not 0 < self.threshold <= 1:
            raise out_of_range("threshold", self.threshold, "above 0, at most 1")
        check_at_least("steps", self.steps, 1)
        self.identity = f"{trained.identity}:{self.threshold!r}:{self.steps}"
        n = sim.num_envs
        self._streak = torch.zeros(n, dtype=torch.int64, device=sim.device)
        self._valid = torch.ones(n, dtype=torch.bool, device=sim.device)
        self._age = torch.zeros(n, dtype=torch.int64, device=sim.device)

    def score(self, reached: Arrays) -> Score:
        """See `RewardSource.score`."""
        above = self._model.probability(reached) >= self.threshold
        self._streak = torch.where(above, self._streak + 1, 0)
        return Score((self._streak >= self.steps).float(), self._valid, self._age)

    def forget(self, envs: Tensor) -> None:
        """See `RewardSource.forget`."""
        self._streak[envs] = 0

    def state(self) -> dict[str, NDArray[np.generic]]:
        """See `RewardSource.state`."""
        return {"streak": self._streak.cpu().numpy().copy()}

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See `RewardSource.load`."""
        self._streak = torch.from_numpy(state["streak"].copy()).to(self._streak.device)
