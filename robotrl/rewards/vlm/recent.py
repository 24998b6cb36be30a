"""Recent steps of all envs: which picture each refers to, and the reward that it was given so far."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NONE = -1
"""Number of a picture's step where there is none."""


class Referring(NamedTuple):
    """m steps that refer to answered pictures."""

    answer: NDArray[np.int64]
    """(m,): number of the answer among those given."""
    step: NDArray[np.int64]
    """(m,): number of the step."""
    env: NDArray[np.int64]
    """(m,)."""


class RecentSteps:
    """The last steps of all envs, by number modulo their count.

    In numpy, whose operations on a few dozen numbers take a third of torch's time.

    Args:
        num_envs: N.
        kept: K, number of steps that are kept.
        notes: S, width of the notes of a step.
    """

    def __init__(self, num_envs: int, kept: int, notes: int) -> None:
        self._kept = kept
        self._picture = np.full((kept, num_envs), NONE)
        self.notes = np.zeros((kept, num_envs, notes), np.float32)
        self.reward = np.zeros((kept, num_envs), np.float32)
        """(K, N) reward that each step was given, the fallback where it has no score."""
        self.valid = np.zeros((kept, num_envs), np.bool_)
        """(K, N) whether it has a score."""

    def push(self, step: int, picture: NDArray[np.int64], notes: NDArray[np.float32]) -> None:
        """Add a step.

        Args:
            step: its number, one more than that of the last call.
            picture: (N,) number of the step whose picture it refers to, or `NONE`.
            notes: (N, S) what its reward depends on besides the picture.
        """
        row = step % self._kept
        self._picture[row], self.notes[row] = picture, notes

    def give(self, step: int, reward: NDArray[np.float32], valid: NDArray[np.bool_]) -> None:
        """Set the reward (N,) that a step was given, and whether it has a score (N,)."""
        row = step % self._kept
        self.reward[row], self.valid[row] = reward, valid

    def clear(self) -> None:
        """Forget all steps; the next one may have any higher number."""
        self._picture[:], self.notes[:], self.reward[:], self.valid[:] = NONE, 0.0, 0.0, False

    def row(self, step: NDArray[np.int64]) -> NDArray[np.int64]:
        """Row of steps (m,)."""
        return step % self._kept

    def referring(self, picture: NDArray[np.int64], env: NDArray[np.int64], max_age: int, end: int) -> Referring:
        """Steps that refer to pictures.

        Args:
            picture: (n,) numbers of the steps whose pictures they are.
            env: (n,).
            max_age: largest number of steps after the picture.
            end: number of the first step that is left out; those before it were pushed.
        """
        step = picture[:, None] + np.arange(min(max_age, self._kept - 1) + 1)
        there = (step < end) & (step > end - self._kept)
        there &= self._picture[step % self._kept, env[:, None]] == picture[:, None]
        answer, offset = np.nonzero(there)
        return Referring(answer, step[answer, offset], env[answer])
