"""Interface of reward sources."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.spec import Arrays


class Score(NamedTuple):
    """Scores of a source for the states that the envs have just reached."""

    value: Tensor
    """(N,) float32 scores; arbitrary where not valid."""
    valid: Tensor
    """(N,) bool: False for a score that is late or cannot be computed; no sentinel numbers are used."""
    age: Tensor
    """(N,) int64, control steps since the scored observation; 0 for a source without delay."""


class RewardSource(Protocol):
    """Scores observations, all envs at once."""

    fallback: float
    """Reward for an invalid score."""
    identity: str
    """Hexadecimal hash of everything that determines the scores: weights, threshold, settings."""

    def score(self, reached: Arrays) -> Score:
        """Score the observations (N, ...) that a step reached, including those that ended an episode."""
        ...

    def forget(self, envs: Tensor) -> None:
        """Reset the state of the envs (N,) bool whose episodes are over."""
        ...

    def state(self) -> dict[str, NDArray[np.generic]]:
        """State of running episodes, as named arrays, for an exact resume."""
        ...

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore the result of `state`."""
        ...


def contribution(score: Score, fallback: float) -> Tensor:
    """Return the float32 reward (N,) of a score: its value, or the source's fallback where it is invalid."""
    return torch.where(score.valid, score.value, torch.full_like(score.value, fallback))
