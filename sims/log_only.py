"""Log-only mode: a wrapper of any sim that gives what a robot gives; see `LogOnlyCfg`.

A robot has a limited number of episodes, begins them where it happens to stand, and is told its success afterwards, by
a person or a classifier. What a simulator knows beyond that is not there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import CapabilityError
from robotrl.fn.random import counter_rng
from robotrl.sims.wrapper import WrappedSim, declared
from robotrl.spec import (
    HasDistance,
    HasExpert,
    HasGroundingTargets,
    HasParams,
    HasPlaces,
    HasPrivileged,
    HasReasons,
    HasScenarios,
    HasState,
    HasStateIds,
    HasSuccessHold,
    HasSymmetries,
    Step,
    SuccessLabel,
    lost,
    privileged,
)
from robotrl.spec.late_rewards import HasLateRewards
from robotrl.spec.sim_options import LogOnlyCfg

_CHOOSES = "in log-only mode nobody chooses where an episode begins, as on a robot"
_KNOWS = "in log-only mode nothing is known that a robot could not measure"
WITHOUT: dict[type[Any], str] = {
    HasStateIds: _CHOOSES,
    HasState: _CHOOSES,
    HasScenarios: _CHOOSES,
    HasPlaces: _CHOOSES,
    HasParams: _CHOOSES,
    HasPrivileged: _KNOWS,
    HasGroundingTargets: _KNOWS,
    HasDistance: _KNOWS,
    HasExpert: _KNOWS,
    HasSuccessHold: _KNOWS,
    HasLateRewards: _KNOWS,
    # they cover every observation, the privileged ones among them
    HasSymmetries: _KNOWS,
}
"""Capabilities that a sim does not have in log-only mode, with the reason."""
_LABELS = 0x1ABE1


def log_only(sim: Any, cfg: LogOnlyCfg, seed: int) -> Any:
    """Put a sim into log-only mode.

    Args:
        sim: any sim.
        cfg: settings; with a budget of 0 the sim is returned as it is.
        seed: seed of the false labels.

    Raises:
        ConfigError: a value out of range.
    """
    cfg.check()
    return declared(LogOnlySim, sim, WITHOUT)(sim, cfg, seed) if cfg.episodes else sim


class LogOnlySim(WrappedSim):
    """A sim in log-only mode; made by `log_only`.

    Episodes are numbered in the order of their first steps. Those that begin once the budget is given out are played,
    but belong to no one: `Step.info["in_budget"]` (N,) is false for them, and their success is not told. A step after
    the last episode of the budget is refused.

    `Step.info["success"]` is the told outcome in the step that ends an episode, where it is told at once, and false
    everywhere else. All outcomes are told by `take_success_labels`.
    """

    def __init__(self, sim: Any, cfg: LogOnlyCfg, seed: int) -> None:
        super().__init__(sim)
        self._cfg, self._seed = cfg, seed ^ _LABELS
        self._hidden = privileged(sim)
        self.observation_spec = {key: spec for key, spec in sim.observation_spec.items() if key not in self._hidden}
        own: Mapping[str, str] = sim.reasons if isinstance(sim, HasReasons) else {}
        self.reasons: dict[str, str] = {**own, **{one.__name__: why for one, why in WITHOUT.items()}}
        self._numbers: NDArray[np.int64] = np.full(self.num_envs, -1)
        """(N,) number of each env's episode; -1 before its first step, and outside of the budget."""
        self._given_out, self._ended = 0, 0
        self._open: deque[SuccessLabel] = deque()
        """Outcomes that are not told yet, in the order in which the episodes ended."""
        self._outcomes: list[SuccessLabel] = []

    @property
    def episodes_left(self) -> int:
        """Number of episodes of the budget that have not ended."""
        return self._cfg.episodes - self._ended

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Begin new episodes in all envs, from starts that nobody chooses; running ones are given up, and count.

        Raises:
            CapabilityError: an option that chooses starts, or no episode is left.
        """
        for option in options or {}:
            if option != "stagger":
                raise CapabilityError(f"reset option {option!r} is given, and {_CHOOSES}: expected 'stagger' or none")
        self._check_left()
        given_up = int((self._numbers >= 0).sum())
        self._numbers[:] = -1
        self._end(given_up)
        self._check_left()
        return self._visible(self.sim.reset(seed=seed, options=options))

    def step(self, actions: Tensor) -> Step:
        """Advance all envs; see the sim's own `step`.

        Raises:
            CapabilityError: no episode is left.
        """
        self._check_left()
        step: Step = self.sim.step(actions)
        fresh = np.flatnonzero(self._numbers < 0)[: self._cfg.episodes - self._given_out]
        self._numbers[fresh] = np.arange(self._given_out, self._given_out + len(fresh))
        self._given_out += len(fresh)
        in_budget = torch.from_numpy(self._numbers >= 0).to(self.device)
        success = torch.zeros_like(step.info["success"])
        gone, true = lost(step), step.info["success"]
        # an episode that was lost is run again, under its number
        ended = [env for env in step.final_ids.tolist() if not gone[env]]
        for env in ended:
            if self._numbers[env] >= 0:
                outcome = SuccessLabel(int(self._numbers[env]), self._labeled(int(self._numbers[env]), bool(true[env])))
                self._open.append(outcome)
                success[env] = outcome.success and self._cfg.success_delay_episodes == 0
                self._end(1)
        self._numbers[ended] = -1
        reward = step.reward if self._cfg.shows_reward else torch.zeros_like(step.reward)
        return step._replace(
            obs=self._visible(step.obs),
            final_obs=self._visible(step.final_obs),
            reward=reward,
            info={**step.info, "success": success, "in_budget": in_budget},
        )

    def on_restart(self, envs: Tensor) -> None:
        """Episodes that are ended from outside, as by a classifier that sees success, count; the sim tells no outcome.

        Raises:
            CapabilityError: no episode is left.
        """
        self._check_left()
        rows = envs.cpu().numpy()
        self._end(int((self._numbers[rows] >= 0).sum()))
        self._numbers[rows] = -1

    def present(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """See `WrappedSim.present`."""
        return self._visible(obs)

    def take_success_labels(self) -> list[SuccessLabel]:
        """See `HasSuccessLabels`."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def _end(self, count: int) -> None:
        """Count episodes that ended, and tell the outcomes that are due."""
        self._ended += count
        late = 0 if self.episodes_left == 0 else self._cfg.success_delay_episodes
        while len(self._open) > late:
            self._outcomes.append(self._open.popleft())

    def _labeled(self, number: int, success: bool) -> bool:
        """The outcome as it is told."""
        drawn = float(counter_rng.uniform(self._seed, np.array([number]), 1)[0, 0])
        rate = self._cfg.false_failure_rate if success else self._cfg.false_success_rate
        return success != (drawn < rate)

    def _visible(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {key: x for key, x in obs.items() if key not in self._hidden}

    def _check_left(self) -> None:
        if self.episodes_left == 0:
            raise CapabilityError(
                f"log_only.episodes is {self._cfg.episodes}, and all of them are used up: expected a larger budget, or"
                " no further episode"
            )
