"""Adds late rewards to the decisions and episodes of a rollout, by the step that they belong to."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from robotrl.spec.late_rewards import LateRewards

NO_EPISODE, LOST_EPISODE = -1, -2


class LoggedStep(NamedTuple):
    """Decision and episode that a step of a rollout belongs to."""

    row: Tensor
    """(N,) int64: row of its decision in the rollout."""
    discount: Tensor
    """(N,) float32: discount of its reward in its decision."""
    ended: Tensor
    """(N,) int64: number of the episode that it ended, `LOST_EPISODE`, or `NO_EPISODE`."""


class StepLog:
    """Decision and episode of each step of a rollout.

    Args:
        num_envs: N.
        device: device of the rollout.
    """

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self._num_envs, self._device = num_envs, device
        self._steps: list[LoggedStep] = []
        self._episodes = 0

    def add(self, row: Tensor, discount: Tensor, done: Tensor, kept: Tensor) -> None:
        """Add the next step; see `LoggedStep`.

        Args:
            row: (N,).
            discount: (N,).
            done: (n,) int64, envs whose episodes it ended.
            kept: (k,) those of them that were not lost; they have the next k numbers of episodes.
        """
        ended = torch.full((self._num_envs,), NO_EPISODE, device=self._device)
        ended[done] = LOST_EPISODE
        ended[kept] = torch.arange(self._episodes, self._episodes + len(kept), device=self._device)
        self._episodes += len(kept)
        self._steps.append(LoggedStep(row.clone(), discount.clone(), ended))

    def apply(self, late: LateRewards, reward: Tensor, missing: Tensor, returns: Tensor, running: Tensor) -> int:
        """Add changes to the steps that they belong to; returns the number of those before the rollout, left out.

        Args:
            late: the changes.
            reward: (M, N) reward of each decision; changed.
            missing: (M, N) int64 number of scores that each decision lacks, summed over its steps; changed.
            returns: (E,) return of each episode that ended; changed.
            running: (N,) return so far of each running episode; changed.
        """
        step = len(self._steps) - 1 - late.back
        here = step >= 0
        step, env, change = step[here], late.env[here], late.change[here]
        if len(step):
            row, discount, ended = (torch.stack(x) for x in zip(*self._steps, strict=True))
            reward.index_put_((row[step, env], env), change * discount[step, env], accumulate=True)
            missing.index_put_((row[step, env], env), -late.fresh[here].to(missing.dtype), accumulate=True)
            episode = _episodes_of(ended)[step, env]
            in_one = episode >= 0
            returns.index_put_((episode[in_one],), change[in_one], accumulate=True)
            still = episode == NO_EPISODE
            running.index_put_((env[still],), change[still], accumulate=True)
        return int((~here).sum())


def _episodes_of(ended: Tensor) -> Tensor:
    """Number (T, N) of the episode that each step was part of; `NO_EPISODE` for one that still runs."""
    out = ended.clone()
    for step in range(len(out) - 2, -1, -1):
        out[step] = torch.where(out[step] == NO_EPISODE, out[step + 1], out[step])
    return out
