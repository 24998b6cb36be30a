"""VLA-RL's process term: a process reward added to each decision of a rollout (Lu et al. 2025, 2505.18719).

The reward source `process` adds the same progress to each env step. The two differ: here the network reads one
observation for each decision, not for each step, which a large one needs; "raw" adds the progress once a decision; and
the learner keeps the network in its checkpoints. The potential form is the same up to rounding, because the discounted
terms of a decision's steps sum up to that of the decision.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from robotrl.errors import check_number, unknown
from robotrl.fn.progress.shaping import FORMS, Form, potential_term, raw_term
from robotrl.rewards.process_model import ProcessReward, check_usable
from robotrl.rollout.storage import Rollout
from robotrl.spec import Arrays, VecSim


class Term(NamedTuple):
    """Reward term of a process reward for a rollout's decisions."""

    reward: Tensor
    """(M, N) scaled reward; 0 where a decision is not valid."""
    progress: Tensor
    """(M, N) progress in [0, 1] of the decisions' observations; 0 where not valid."""


class ProcessTerm:
    """Adds a process reward to each decision of a rollout.

    Args:
        reward: the process reward with its held-out metrics.
        sim: the sim whose observations it will get.
        form: "potential" keeps the optimal policy, "raw" is the progress itself; see `robotrl.fn.progress.shaping`.
        scale: factor of the term.
        gamma: the learner's discount per env step: with another one, the potential form would not telescope.
        name: name of the setting, for errors.

    Raises:
        ConfigError: a setting out of range, a reward below its thresholds, or a sim with other observations than it was
            trained on.
    """

    def __init__(
        self, reward: ProcessReward, sim: VecSim, form: Form, scale: float, gamma: float, name: str = "process_reward"
    ) -> None:
        if form not in FORMS:
            raise unknown(name.replace("reward", "form"), str(form), FORMS)
        check_number(name.replace("reward", "scale"), scale, 1e-6, 1e3)
        check_usable(reward, sim, name)
        self.reward = reward._replace(net=reward.net.to(sim.device))
        self._form: Form = form
        self._scale, self._gamma = scale, gamma

    def term(self, rollout: Rollout) -> Term:
        """Compute the term of each decision; see `Rollout`."""
        now, after = (self._progress(obs, rollout.valid) for obs in (rollout.obs, rollout.next_obs))
        if self._form == "raw":
            added = raw_term(after, self._gamma, rollout.length)
        else:
            discount = self._gamma ** rollout.length.to(now.dtype)
            added = potential_term(now, after, discount, rollout.terminated)
        return Term(self._scale * added.masked_fill(~rollout.valid, 0.0), now)

    def _progress(self, obs: Arrays, valid: Tensor) -> Tensor:
        found = torch.zeros(valid.shape, dtype=torch.float32, device=valid.device)
        if valid.any():
            shown = {key: obs[key][valid] for key in self.reward.net.observation_spec}
            found[valid] = self.reward.net.probability(shown).float()
        return found
