"""Asks a model about the scenes of a sim: which picture belongs to which step of which env."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.rewards.scoring.ledger import Answers
from robotrl.rewards.source import SimTransition
from robotrl.rewards.vlm.pictures import PictureFeed
from robotrl.rewards.vlm.similarity import PictureScores


class SceneAnswers(NamedTuple):
    """Outputs of n scenes; those that could not be scored are left out."""

    step: NDArray[np.int64]
    """(n,): number of the step that reached the scene."""
    env: NDArray[np.int64]
    """(n,)."""
    outputs: NDArray[np.float32]
    """(n, K), finite."""

    @classmethod
    def of(cls, answers: Answers, num_envs: int) -> SceneAnswers:
        """The valid ones of answers whose tickets are step * N + env."""
        if not len(answers.tickets):
            return cls(answers.tickets, answers.tickets, answers.outputs)
        step, env = np.divmod(answers.tickets[answers.valid], num_envs)
        return cls(step, env, answers.outputs[answers.valid])


class SceneScores:
    """Submits the pictures of steps, and gives the answers by step and env.

    Args:
        feed: pictures of a step.
        scores: scores pictures.
        num_envs: N.
    """

    def __init__(self, feed: PictureFeed, scores: PictureScores, num_envs: int) -> None:
        self._feed, self._scores, self._num_envs = feed, scores, num_envs
        self._turn = 0
        self.failed = 0
        """Number of scenes that could not be scored."""

    @property
    def pending(self) -> int:
        """Number of scenes whose answer is on its way."""
        return self._scores.pending

    def ask(self, step: int, transition: SimTransition) -> Tensor:
        """Submit pictures of a step, as many as there is room for.

        Args:
            step: its number, which rises from call to call.
            transition: the step.

        Returns:
            (n,) int64: the envs whose picture was accepted.
        """
        envs = torch.nonzero(self._feed.visible(transition)).squeeze(1).cpu()
        room = self._scores.room
        if len(envs) > room:  # the envs that were left out come first the next time
            at = int(torch.searchsorted(envs, self._turn))
            envs = torch.roll(envs, -at)[:room]
            self._turn = int(envs[-1]) + 1 if room else self._turn
        if not len(envs):
            return envs
        pixels = self._feed.pixels(transition, envs)
        tickets = step * self._num_envs + envs
        return envs[torch.from_numpy(self._scores.submit(tickets.numpy(), pixels))]

    def collect(self, wait_s: float = 0.0) -> SceneAnswers:
        """Answers since the last call; waits for those on their way, `wait_s` seconds at most."""
        found = self._scores.wait(wait_s) if wait_s else self._scores.collect()
        if len(found.tickets):
            self.failed += int(np.count_nonzero(~found.valid))
        return SceneAnswers.of(found, self._num_envs)

    @property
    def paid(self) -> int:
        """Number of pictures that were paid for."""
        return self._scores.paid

    @property
    def cost(self) -> float:
        """Money that was paid."""
        return self._scores.cost

    def charge(self, count: int, cost: float) -> None:
        """Count pictures and money that were paid before the run was resumed, less those of before that are counted."""
        self._scores.charge(max(0, count - self.paid), max(0.0, cost - self.cost))

    def metrics(self) -> dict[str, float]:
        """Scalars to log, of the service."""
        return self._scores.metrics()

    def close(self) -> None:
        """End the workers."""
        self._scores.close()
