"""What a reward source promises."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.spec import Arrays


class Score(NamedTuple):
    """What a source says of the state that each env has just reached."""

    value: Tensor
    """(N,) float32; anything at all where not valid."""
    valid: Tensor
    """(N,) bool: a score that has not arrived, or cannot be had, is invalid, and never a sentinel number."""
    age: Tensor
    """(N,) int64, control steps since the scored observation was made; 0 for a source that answers at once."""


class RewardSource(Protocol):
    """Scores observations, all envs at once."""

    fallback: float
    """What an invalid score contributes to the reward."""
    identity: str
    """Hexadecimal digest of all that decides the scores: weights, threshold, settings."""

    def score(self, reached: Arrays) -> Score:
        """Scores of the observations (N, ...) that a step reached, those that ended an episode included."""
        ...

    def forget(self, envs: Tensor) -> None:
        """Drop what is remembered of the envs (N,) bool, whose episodes are over."""
        ...

    def state(self) -> dict[str, NDArray[np.generic]]:
        """What it remembers of running episodes, as named arrays, for an exact resume."""
        ...

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore what `state` gave."""
        ...


def contribution(score: Score, fallback: float) -> Tensor:
    """(N,) float32 reward of a score: its value, or the source's declared fallback where it is invalid."""
    return torch.where(score.valid, score.value, torch.full_like(score.value, fallback))
