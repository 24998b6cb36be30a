"""Our sim as rsl_rl's `VecEnv`, for the bench that compares the two learners on one sim."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

GROUP = "policy"
"""rsl_rl's usual name for the observation."""


def rsl_rl_env(sim: Any, limit_steps: int) -> Any:
    """Wrap a sim with a single observation array.

    rsl_rl keeps an observation until after the next step, and our buffers are reused, so observations are copied.
    Time-outs are reported separately from failures, and rsl_rl bootstraps from them in its own way.

    Args:
        sim: a `VecSim` on the CPU.
        limit_steps: time limit of an episode.
    """
    from rsl_rl.env import VecEnv
    from tensordict import TensorDict

    class Env(VecEnv):
        """See `rsl_rl_env`."""

        def __init__(self) -> None:
            self.num_envs = sim.num_envs
            self.num_actions = sim.action_spec.shape[0]
            self.max_episode_length = limit_steps
            self.episode_length_buf = torch.zeros(sim.num_envs, dtype=torch.long)
            self.device = "cpu"
            self.cfg = {}
            self._obs = self._packed(sim.reset(0, {"stagger": True}))

        def _packed(self, obs: dict[str, Tensor]) -> TensorDict:
            (value,) = obs.values()
            return TensorDict({GROUP: value.clone()}, batch_size=[sim.num_envs])

        def get_observations(self) -> TensorDict:
            """The newest observation."""
            return self._obs

        def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
            """One control step of all envs."""
            step = sim.step(actions)
            self._obs = self._packed(step.obs)
            dones = (step.terminated | step.truncated).long()
            return self._obs, step.reward, dones, {"time_outs": step.truncated & ~step.terminated}

    return Env()
