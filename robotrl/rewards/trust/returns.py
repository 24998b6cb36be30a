"""The sim's own return beside that of reward sources, for a run's log."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from robotrl.rewards.means import RewardMeans
from robotrl.sims.wrapper import State, WrappedSim
from robotrl.spec import Step, lost
from robotrl.spec.episode_log import HasEpisodeLog

SIM_RETURN = "sim_return"
"""Scalar: mean return of the sim's own reward over the episodes that ended."""


class RewardLog:
    """Means of the reward sources, and returns of the sim's own reward, between two lines of a log."""

    def __init__(self) -> None:
        self.means = RewardMeans()
        self._sum, self._ended = 0.0, 0
        self.episode_log: HasEpisodeLog | None = None
        """Sim whose environment logs numbers of its own, which are named "sim/...": set by whoever makes the sim."""

    def add_returns(self, returns: Tensor) -> None:
        """Add the sim's own returns (n,) of episodes that ended."""
        self._sum, self._ended = self._sum + float(returns.sum()), self._ended + len(returns)

    def take(self) -> dict[str, float]:
        """Return the scalars since the last call, by name."""
        found = self.means.take()
        if self.episode_log is not None:
            found |= {f"sim/{name}": value for name, value in self.episode_log.take_episode_log().items()}
        if self._ended:
            found[SIM_RETURN] = self._sum / self._ended
            self._sum, self._ended = 0.0, 0
        return found


class LoggedSim(WrappedSim):
    """Wrapper of the sim of an actor process, which gives the scalars to log to the run; made by `declared`.

    Args:
        sim: the sim.
        log: what the sim's sources log.
    """

    def __init__(self, sim: Any, log: RewardLog) -> None:
        super().__init__(sim)
        self._log = log

    def take_run_scalars(self) -> dict[str, float]:
        """See `HasRunScalars`."""
        return self._log.take()


class ReturnsSim(WrappedSim):
    """Wrapper that sums the sim's own rewards over each episode; made by `robotrl.sims.wrapper.declared`.

    It stands below the reward sources, which replace the reward.

    Args:
        sim: the sim.
        log: gets the returns; None in a process that logs nothing.
    """

    prefix = "sim_return/"

    def __init__(self, sim: Any, log: RewardLog | None) -> None:
        super().__init__(sim)
        self._log = log
        self._sums = torch.zeros(self.num_envs, dtype=torch.float64, device=self.device)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Start new episodes in all envs; those that ran are not counted."""
        self._sums.zero_()
        return super().reset(seed, options)

    def step(self, actions: Tensor) -> Step:
        """Step the sim, and count the episodes that it ends."""
        step = super().step(actions)
        self._sums += step.reward
        over = step.terminated | step.truncated
        self._ended(over, ~lost(step))
        return step

    def _ended(self, over: Tensor, counted: Tensor) -> None:
        if self._log is not None and over.any():
            self._log.add_returns(self._sums[over & counted])
        self._sums[over] = 0.0

    def on_restart(self, envs: Tensor) -> None:
        """Count the episodes that a reward source ends."""
        over = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        over[envs] = True
        self._ended(over, over)

    def own_state(self) -> State:
        """Sums of the running episodes."""
        return {"sums": self._sums.cpu().numpy().copy()}

    def load_own(self, state: State) -> None:
        """Restore the result of `own_state`; a run of an earlier version has none."""
        sums = state.get("sums", np.zeros(self.num_envs))
        self._sums = torch.from_numpy(sums.copy()).to(self.device)
