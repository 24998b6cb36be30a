"""Rollout storage: decisions of all envs, padded to equal length, ready for advantages and minibatches."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from robotrl.spec import Arrays


class Rollout(NamedTuple):
    """Decisions (M, N): row m of column n is the m-th decision of env n; rows after its last one are padding."""

    obs: Arrays
    """(M, N, ...) observation at the decision."""
    record: Arrays
    """(M, N, ...) values that the decider recorded, e.g. its denoising chain."""
    reward: Tensor
    """(M, N) sum of the rewards of the decision's steps, discounted from its first step."""
    length: Tensor
    """(M, N) int64: number of env steps of the decision."""
    terminated: Tensor
    """(M, N) bool."""
    truncated: Tensor
    """(M, N) bool."""
    valid: Tensor
    """(M, N) bool: the decision is complete."""
    next_obs: Arrays
    """(M, N, ...) observation after a valid decision: the final one if its episode ended, else that of the next
    decision."""
    env_steps: int
    """Env steps taken while collecting, summed over envs."""
    episodes: Tensor
    """(E,) bool: success of each episode that ended, in order."""
    returns: Tensor
    """(E,) undiscounted return of each of these episodes."""
    scored: Tensor | None = None
    """(M, N) bool: the reward is known; None: all of them. Where it is not, a reward source had no score for a step."""


class GrowingRollout:
    """Arrays (M, N, ...) whose M grows as rows are written."""

    def __init__(self, num_envs: int, rows: int) -> None:
        self._num_envs = num_envs
        self._rows = rows
        self.arrays: Arrays = {}

    def put(self, name: str, rows: Tensor, envs: Tensor, values: Tensor) -> None:
        """Write `values` (n, ...) at (rows (n,), envs (n,))."""
        array = self._array(name, values, int(rows.max()) + 1 if len(rows) else 1)
        array[rows, envs] = values

    def add(self, name: str, rows: Tensor, envs: Tensor, values: Tensor) -> None:
        """Add `values` at (rows, envs), each pair occurring once."""
        array = self._array(name, values, int(rows.max()) + 1 if len(rows) else 1)
        array[rows, envs] += values

    def cut(self, name: str, rows: int, like: Tensor | None = None) -> Tensor:
        """First `rows` rows of an array; zeros of `like`'s shape if nothing was written."""
        array = self._array(name, like, rows) if like is not None else self.arrays[name]
        return self._grown(name, array, rows)[:rows]

    def _array(self, name: str, like: Tensor, rows: int) -> Tensor:
        if name not in self.arrays:
            self.arrays[name] = torch.zeros(
                (max(rows, self._rows), self._num_envs, *like.shape[1:]), dtype=like.dtype, device=like.device
            )
        return self._grown(name, self.arrays[name], rows)

    def _grown(self, name: str, array: Tensor, rows: int) -> Tensor:
        if rows > len(array):
            bigger = torch.zeros((max(rows, 2 * len(array)), *array.shape[1:]), dtype=array.dtype, device=array.device)
            bigger[: len(array)] = array
            self.arrays[name] = array = bigger
        return array
