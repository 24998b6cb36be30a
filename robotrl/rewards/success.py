"""A trained success classifier: what its calibration says, and the reward that it gives.

The practice of SERL (Luo et al. 2024, arXiv 2401.16013) and HIL-SERL (Luo et al. 2024, arXiv 2410.21845): a small
binary classifier of the observation stands in for a reward that a robot cannot measure. `robotrl.rewards.training`
makes one, `robotrl.rewards.stored` keeps it in a file.
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
    """How a classifier's probabilities become a decision, and what is known of its errors."""

    threshold: float
    """Lowest probability that counts as success."""
    steps: int
    """How many steps in a row it must be reached."""
    grace: int
    """A success said so many steps early counted as one that was seen."""
    bound: float
    """Share of episodes with a false alarm that the threshold was chosen for."""
    episodes: int
    """Held-out episodes on which it was chosen."""
    rates: Rates
    """Measured on yet other held-out episodes."""


class TrainedClassifier(NamedTuple):
    """A classifier that is ready for use."""

    model: RewardNet
    calibration: Calibration
    about: dict[str, str | int | float]
    """Where it comes from: sim, datasets, updates, seed."""
    identity: str
    """Hexadecimal SHA-256 of weights and calibration."""


class SuccessReward:
    """1 where the classifier has seen a success in `steps` steps in a row, 0 elsewhere; a `RewardSource`.

    It answers at once, so every score is valid and of age 0.

    Args:
        trained: the classifier.
        sim: whose observations it will be shown.
        threshold: lowest probability that counts, instead of the calibrated one, whose promise then no longer holds.
        steps: how many steps in a row, instead of those that the threshold was calibrated for. In a sim that ends
            an episode at its success more than 1 never comes to pass.

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
