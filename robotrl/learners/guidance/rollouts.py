"""Suggestions beside the decisions of an on-policy rollout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from robotrl.errors import CapabilityError, out_of_range
from robotrl.learners.guidance.build import build_suggester
from robotrl.learners.guidance.cfg import GuidanceCfg
from robotrl.learners.guidance.recorder import SUGGESTED
from robotrl.learners.off_policy import ActionNormalizer
from robotrl.rollout.storage import Rollout
from robotrl.spec import Arrays, VecSim


class RolloutSuggestions:
    """Asks at each decision of a rollout, and adds the answers to its record.

    A rollout is trained on at once and then thrown away: answers that come after its end are dropped.

    Args:
        cfg: settings; somebody suggests.
        sim: the training sim.
        policy: the policy in training.
        seed: seed of the suggester.
        answers: see `build_suggester`.

    Raises:
        ConfigError: a setting is out of range, or the policy decides more than one action at once.
        CapabilityError: the actions are choices, or the sim has no expert or picture.
        DataError: a policy or a directory cannot be read.
    """

    def __init__(self, cfg: GuidanceCfg, sim: VecSim, policy: Any, seed: int, answers: str | None = None) -> None:
        if policy.horizon != 1:
            raise out_of_range("policy.horizon", policy.horizon, "1, as algo.guidance suggests one action to PPO")
        if sim.action_spec.choices is not None:
            raise CapabilityError(f"sim {type(sim).__name__} has choices for actions: expected algo.guidance.by nobody")
        suggester = build_suggester(cfg, sim, seed, answers)
        assert suggester is not None
        self._cfg, self._suggester = cfg, suggester
        self._unit = ActionNormalizer.of_policy(policy)
        self._n = sim.num_envs
        self._base = 0
        self._steps = list[Tensor]()
        self.too_late = 0
        """Suggestions that came after their rollout."""

    def ask(self, obs: Arrays, started: Tensor) -> None:
        """Ask about the observations (N, ...) of the next decision."""
        first = self._base + len(self._steps) * self._n
        tickets = torch.arange(first, first + self._n)
        self._steps.append(self._suggester.suggest(obs, started, tickets))

    def add_to(self, rollout: Rollout) -> None:
        """Add the suggestions (M, N, 1, A) to a rollout's record, normalized; NaN where there is none."""
        tickets, actions = self._suggester.arrived(self._cfg.wait_s)
        stacked = torch.stack(self._steps)
        mine = tickets >= self._base
        self.too_late += int((~mine).sum())
        at = tickets[mine] - self._base
        stacked[at // self._n, at % self._n] = actions[mine]
        self._base += stacked.shape[0] * self._n
        self._steps = []
        reach = self._cfg.reach
        chunk = self._unit(stacked).clamp(-reach, reach)[:, :, None]
        rollout.record[SUGGESTED] = chunk.to(rollout.reward.device)

    def metrics(self) -> dict[str, float]:
        """Scalars to log."""
        found = {f"guidance/{name}": value for name, value in self._suggester.metrics().items()}
        return found | ({"guidance/too_late": float(self.too_late)} if found else {})

    def state(self) -> dict[str, Any]:
        """State to resume from, between two rollouts."""
        return {"suggester": self._suggester.state(), "base": self._base}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self._suggester.load(state["suggester"])
        self._base = int(state["base"])

    def close(self) -> None:
        """Release the suggester."""
        self._suggester.close()
