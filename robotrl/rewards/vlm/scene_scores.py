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
    """Outputs of n scenes, and m that could not be scored."""

    step: NDArray[np.int64]
    """(n,): number of the step that reached the scene."""
    env: NDArray[np.int64]
    """(n,)."""
    outputs: NDArray[np.float32]
    """(n, K), finite."""
    unscored: NDArray[np.int64]
    """(m, 2): step and env of each scene that could not be scored."""

    @classmethod
    def of(cls, answers: Answers, num_envs: int) -> SceneAnswers:
        """Answers whose tickets are step * N + env."""
        if not len(answers.tickets):
            return cls(answers.tickets, answers.tickets, answers.outputs, np.zeros((0, 2), np.int64))
        step, env = np.divmod(answers.tickets, num_envs)
        valid = answers.valid
        unscored = np.stack([step[~valid], env[~valid]], axis=1)
        return cls(step[valid], env[valid], answers.outputs[valid], unscored)

    def rows(self, chosen: NDArray[np.bool_]) -> SceneAnswers:
        """Those of the n scenes that are chosen, (n,)."""
        return self._replace(step=self.step[chosen], env=self.env[chosen], outputs=self.outputs[chosen])


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
        self.lost = 0
        """Number of scenes whose score came when nothing wanted it any more; counted by the caller."""

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
        """Scalars to log, of the service, and how many scores came too late for any step; none without a service."""
        found = self._scores.metrics()
        return found | {"lost": float(self.lost)} if found else found

    def close(self) -> None:
        """End the workers."""
        self._scores.close()
