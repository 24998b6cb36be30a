"""Environments with Isaac's surfaces that do no physics: they count steps, end episodes, and return reused buffers."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

POLICY, CRITIC, ACTION = 48, 235, 12
"""Widths of the policy's and the critic's observation and of the action: a legged robot on rough ground."""
LIMIT = 200
LOGGED = 20
"""Numbers that a step logs in which episodes end."""
JOINTS = [f"joint_{i}" for i in range(ACTION)]
DESCRIPTORS: Mapping[str, Any] = {
    "observations": {},
    "actions": [
        {
            "name": "joints",
            "full_path": "JointPositionAction",
            "shape": [ACTION],
            "joint_names": JOINTS,
            "scale": 0.25,
            "offset": [0.1] * ACTION,
        }
    ],
}
"""Description by which actions are joint targets, which the adapter converts."""


def _box(width: int) -> gym.spaces.Box:
    return gym.spaces.Box(-np.inf, np.inf, (width,))


class IdleLab:
    """Isaac Lab's surface; episodes time out at different steps, so that some end in most steps of many envs."""

    def __init__(self, num_envs: int, final_obs: bool) -> None:
        self.num_envs, self.device, self.step_dt, self.max_episode_length = num_envs, "cpu", 0.02, LIMIT
        self.cfg = SimpleNamespace(is_finite_horizon=False, compute_final_obs=final_obs)
        self.single_observation_space = gym.spaces.Dict({"policy": _box(POLICY), "critic": _box(CRITIC)})
        self.single_action_space = _box(ACTION)
        self.episode_length_buf = torch.arange(num_envs) * LIMIT // num_envs
        self.obs = {"policy": torch.zeros(num_envs, POLICY), "critic": torch.zeros(num_envs, CRITIC)}
        self.final = {key: value.clone() for key, value in self.obs.items()}
        self.reward, self.none = torch.zeros(num_envs), torch.zeros(num_envs, dtype=torch.bool)
        self.log = {f"Episode_Reward/term_{i}": torch.tensor(float(i)) for i in range(LOGGED)}
        self.extras: dict[str, Any] = {"log": self.log}
        self.get_IO_descriptors = DESCRIPTORS

    def reset(self, *, seed: int | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The buffers; nothing is reset."""
        del seed
        return self.obs, self.extras

    def step(self, action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Count, and restart the counters at the limit."""
        del action
        self.episode_length_buf += 1
        time_outs = self.episode_length_buf >= LIMIT
        self.episode_length_buf.masked_fill_(time_outs, 0)
        if self.cfg.compute_final_obs:
            self.extras["final_obs"] = self.final
        return self.obs, self.reward, self.none, time_outs, self.extras

    def close(self) -> None:
        """Do nothing."""


class IdleTask:
    """Isaac Gym's surface; see `IdleLab`."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.num_states, self.rl_device, self.max_episode_length = num_envs, CRITIC, "cpu", LIMIT
        self.obs_space, self.act_space = _box(POLICY), _box(ACTION)
        self.progress_buf = torch.arange(num_envs) * LIMIT // num_envs
        self.reset_buf = torch.zeros(num_envs, dtype=torch.long)
        self.obs = {"obs": torch.zeros(num_envs, POLICY), "states": torch.zeros(num_envs, CRITIC)}
        self.reward = torch.zeros(num_envs)
        self.extras: dict[str, Any] = {}

    def reset(self) -> dict[str, Tensor]:
        """The buffers; nothing is reset."""
        return self.obs

    def step(self, actions: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, dict[str, Any]]:
        """Count, and restart the counters of the envs that ended in the step before."""
        del actions
        self.progress_buf += 1
        self.progress_buf.masked_fill_(self.reset_buf != 0, 0)
        time_outs = self.progress_buf >= LIMIT - 1
        self.reset_buf[:] = time_outs
        self.extras["time_outs"] = time_outs
        return self.obs, self.reward, self.reset_buf, self.extras
