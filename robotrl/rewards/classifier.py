"""Trained success classifier and its calibration.

`robotrl.rewards.training` trains one, `robotrl.rewards.stored` saves it to a file, `robotrl.rewards.success` is the
reward that it gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from robotrl.rewards.calibration import Rates
from robotrl.rewards.network import RewardNet


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
