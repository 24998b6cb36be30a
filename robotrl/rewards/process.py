"""Reward from a learned progress: a network says how far each observation has come.

`robotrl reward process` trains one from demonstrations and failures and judges it on held-out episodes. The potential
form is potential-based shaping (Ng, Harada & Russell 1999): see `robotrl.fn.progress.shaping`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import unknown
from robotrl.fn.progress.shaping import FORMS, Form, step_term
from robotrl.rewards.process_model import ProcessReward, check_usable
from robotrl.rewards.process_stored import load_process
from robotrl.rewards.source import RewardSetup, Score, SimTransition
from robotrl.spec import VecSim, reads


@dataclass(frozen=True)
class ProcessRewardCfg:
    """Learned progress of the observation, or its change; refused if it fell short when it was judged."""

    path: str = field(metadata=reads("checkpoint"))
    """Directory of the process reward (`robotrl reward process`)."""
    form: Form = "potential"
    """Form of the reward: "potential", the discounted change of the progress, which keeps the optimal policy; or "raw",
    the progress itself, which pays for waiting just before the end."""

    def build(self, sim: VecSim, setup: RewardSetup) -> ProcessSource:
        """Build the source.

        Raises:
            DataError: the files are missing or damaged.
            ConfigError: see `ProcessSource`.
        """
        return ProcessSource(load_process(self.path), sim, self.form, setup.gamma)


class ProcessSource:
    """Reward from the progress that a network predicts before and after a step; a `RewardSource`.

    Every score is valid. The potential of a terminal state is 0; that of a truncated episode's last observation is its
    progress, because its value is bootstrapped.

    Args:
        reward: the process reward with its held-out metrics.
        sim: the sim whose observations it will get.
        form: see `robotrl.fn.progress.shaping`.
        gamma: the learner's discount per env step: with another one, the potential form would not telescope.

    Raises:
        ConfigError: an unknown form, a reward below its thresholds, or a sim with other observations than it was
            trained on.
    """

    fallback = 0.0
    end_at: float | None = None
    sees_success = True

    def __init__(self, reward: ProcessReward, sim: VecSim, form: Form, gamma: float) -> None:
        if form not in FORMS:
            raise unknown("reward.process.form", str(form), FORMS)
        check_usable(reward, sim, "reward.process.path")
        self._net = reward.net.to(sim.device)
        self._form: Form = form
        self._gamma = gamma
        self.identity = f"{reward.identity}:{form}:{gamma!r}"
        self._progress = torch.zeros(sim.num_envs, device=sim.device)
        self._known = torch.zeros(sim.num_envs, dtype=torch.bool, device=sim.device)

    def score(self, transition: SimTransition) -> Score:
        """See `RewardSource.score`."""
        unseen = ~self._known
        if unseen.any():
            self._progress[unseen] = self._predicted(transition.obs, unseen)
        after = self._predicted(transition.reached, torch.ones_like(self._known))
        value = step_term(self._form, self._progress, after, self._gamma, transition.step.terminated)
        self._progress, self._known = after, torch.ones_like(self._known)
        return Score.of_now(value)

    def _predicted(self, obs: Mapping[str, Tensor], envs: Tensor) -> Tensor:
        return self._net.probability({key: obs[key][envs] for key in self._net.observation_spec}).float()

    def forget(self, envs: Tensor) -> None:
        """See `RewardSource.forget`."""
        self._known[envs] = False

    def state(self) -> dict[str, NDArray[np.generic]]:
        """See `RewardSource.state`."""
        return {"progress": self._progress.cpu().numpy().copy(), "known": self._known.cpu().numpy().copy()}

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See `RewardSource.load`."""
        self._progress = torch.from_numpy(state["progress"].copy()).to(self._progress.device)
        self._known = torch.from_numpy(state["known"].copy()).to(self._known.device)
