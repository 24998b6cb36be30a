"""Answers of one path: which step of which env each stands for, also where it comes late."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.rewards.vlm.recent import NONE


class Cells(NamedTuple):
    """m steps of envs."""

    step: Tensor
    """(m,) int64."""
    env: Tensor
    """(m,) int64."""


class StandingAnswers:
    """Answers by the picture that they are about, and the steps that refer to a picture.

    A step refers to the newest picture of its episode that was asked about, for `max_age` steps. Until that one is
    answered, the newest answer that is known stands for it.

    Args:
        num_envs: N.
        kept: K, number of steps that are kept.
        max_age: steps after the picture for which an answer stands.
    """

    def __init__(self, num_envs: int, kept: int, max_age: int) -> None:
        self._kept, self._max_age = kept, max_age
        self._refers = torch.full((kept, num_envs), NONE)
        self._began_at = torch.full((kept, num_envs), NONE)
        self.value = torch.full((kept, num_envs), torch.nan)
        """(K, N) answer that stands for each step; NaN for none."""
        self.source = torch.full((kept, num_envs), NONE)
        """(K, N) step of the picture that the answer is about, `NONE` for none."""
        self.asked = torch.full((num_envs,), NONE)
        """(N,) step of the newest picture that was asked about, of the running episode."""
        self._known = torch.full((num_envs,), NONE)
        self._answer = torch.full((num_envs,), torch.nan)
        self._began = torch.zeros(num_envs, dtype=torch.int64)

    def push(self, step: int) -> None:
        """Add a step, with what is known and asked."""
        row = step % self._kept
        self._refers[row], self._began_at[row] = self._fresh(self.asked, step), self._began
        known = self._fresh(self._known, step)
        self.value[row] = self._answer.where(known != NONE, torch.nan)
        self.source[row] = known

    def _fresh(self, picture: Tensor, step: int) -> Tensor:
        return picture.where(step - picture <= self._max_age, NONE)

    def ask(self, picture: Tensor, env: Tensor, end: int) -> None:
        """Let steps refer to pictures that were asked about.

        Args:
            picture: (n,) int64, steps of the pictures; they may be over for a while.
            env: (n,) int64.
            end: number of the first step that was not pushed.
        """
        current = picture >= self._began[env]
        self.asked.scatter_reduce_(0, env[current], picture[current], "amax")
        offset = torch.arange(min(self._max_age, self._kept - 1) + 1)
        step = picture[:, None] + offset
        cell = (step % self._kept, env[:, None].expand_as(step))
        there = (step < end) & (step > end - 1 - self._kept)
        there &= self._began_at[cell] == self._began_at[picture % self._kept, env][:, None]
        # several pictures may come at once, in any order: the newest of a step counts
        place = cell[0][there] * self._refers.shape[1] + cell[1][there]
        self._refers.view(-1).scatter_reduce_(0, place, picture[:, None].expand_as(step)[there], "amax")

    def take(self, picture: Tensor, env: Tensor, answer: Tensor, end: int) -> Cells:
        """Take answers (n,) about pictures, and give them to the steps before `end` that refer to these."""
        current = (picture >= self._began[env]) & (picture > self._known[env])
        newest = self._known.scatter_reduce(0, env[current], picture[current], "amax")
        current &= picture == newest[env]
        self._known[env[current]], self._answer[env[current]] = picture[current], answer[current]
        step = picture[:, None] + torch.arange(min(self._max_age, self._kept - 1) + 1)
        there = (step < end) & (step > end - 1 - self._kept)
        there &= self._refers[step % self._kept, env[:, None]] == picture[:, None]
        number, offset = torch.nonzero(there, as_tuple=True)
        cells = Cells(step[number, offset], env[number])
        rows = cells.step % self._kept
        self.value[rows, cells.env], self.source[rows, cells.env] = answer[number], picture[number]
        return cells

    def refers(self, cells: Cells) -> Tensor:
        """(m,) bool: whether steps refer to a picture that was asked about."""
        return self._refers[cells.step % self._kept, cells.env] != NONE

    def at(self, cells: Cells) -> Tensor:
        """(m,) answers that stand for steps; NaN for none."""
        return self.value[cells.step % self._kept, cells.env]

    def age(self, cells: Cells) -> Tensor:
        """(m,) steps from the picture of the answer to the step; 0 where none stands."""
        source = self.source[cells.step % self._kept, cells.env]
        return torch.where(source == NONE, 0, cells.step - source)

    def forget(self, envs: Tensor, clock: int) -> None:
        """The episodes of the envs (N,) are over; the next ones begin at step `clock`."""
        self._began[envs] = clock
        self.asked[envs] = NONE
        self._known[envs] = NONE

    def state(self) -> dict[str, NDArray[np.generic]]:
        """State of the running episodes; steps keep their numbers."""
        own = {"asked": self.asked, "known": self._known, "answer": self._answer, "began": self._began}
        return {key: x.numpy().copy() for key, x in own.items()}

    def load(self, state: dict[str, NDArray[np.generic]], shift: int) -> None:
        """Restore the result of `state`, with `shift` added to the numbers of steps; steps of before are forgotten."""
        for table in (self._refers, self._began_at, self.source):
            table[:] = NONE
        self.value[:] = torch.nan
        for key, place in (("asked", self.asked), ("known", self._known), ("began", self._began)):
            steps = torch.from_numpy(state[key].copy())
            place[:] = torch.where(steps == NONE, NONE, steps + shift)
        self._answer[:] = torch.from_numpy(state["answer"].copy())
