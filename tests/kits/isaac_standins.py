"""Stand-ins for Isaac's environments, on this repository's batched MuJoCo and without physics; with hostile modes.

`lab` and `vec_task` have the surfaces of Isaac Lab's `DirectRLEnv` and Isaac Gym's `VecTask` and the order of their
steps, written from their documentation and from reading their sources: same-step reset, persistent `extras`, reused
buffers and an optional `final_obs` here; one flag, a reset in the next step and `time_outs` there. They are factories
for `isaac/tests.kits.isaac_standins:lab`. `CountingLab` and `CountingTask` have numbers that a test can work by hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

import robotrl

DT_S = 0.008
FALLEN_M = 0.7
"""Height of the hopper's torso at which its episode ends."""
HOSTILE = (
    "overwrite",  # what was returned is overwritten with NaN when the next step begins
    "new_extras",  # another `extras` in every step
    "log_in_place",  # the log's tensors are overwritten in the next step
    "late_log",  # the log gets a new number late
    "float_flags",  # flags are floats
    "long_flags",
    "double",  # observations and rewards are float64
    "nan_rows",  # env 1 shows NaN from step 5 on
    "lost_group",  # the critic's group is missing from step 3 on
    "wrong_shape",  # the reward is (N, 1) from step 3 on
    "raise",  # step 3 raises
    "cpu_time",  # nothing, but the log holds what is no number
)


JOINTS = ["thigh", "leg", "foot"]
HOPPER = {
    "observations": {
        "policy": [
            {"name": "height", "shape": [1], "overloads": {}, "extras": {"units": "m"}},
            {"name": "pitch", "shape": [1], "overloads": {}, "extras": {"units": "rad"}},
            {"name": "joint_pos", "shape": [3], "joint_names": JOINTS, "overloads": {}, "extras": {"units": "rad"}},
            {"name": "vel", "shape": [6], "overloads": {"scale": 0.5}, "extras": {"units": "rad/s"}},
        ]
    },
    "actions": [
        {
            "name": "joint_position_action",
            "full_path": "isaaclab.envs.mdp.actions.joint_actions.JointPositionAction",
            "shape": [3],
            "joint_names": JOINTS,
            "scale": 0.5,
            "offset": [0.1, -0.2, 0.0],
            "clip": None,
            "extras": {},
        }
    ],
    "articulations": {
        "robot": {
            "joint_names": ["foot", "leg", "thigh"],
            "default_joint_pos": [0.0, -0.2, 0.1],
            "default_joint_stiffness": [10.0, 20.0, 30.0],
            "default_joint_damping": [1.0, 2.0, 3.0],
        }
    },
}
"""Descriptors in Isaac Lab's form."""


@dataclass
class LabCfg:
    """Config of Isaac Lab 2.3."""

    is_finite_horizon: bool = False
    decimation: int = 4


@dataclass
class LabCfg3(LabCfg):
    """Config of Isaac Lab 3.0."""

    compute_final_obs: bool = False


@dataclass
class MjlabCfg(LabCfg):
    """Config of mjlab."""

    auto_reset: bool = False


class Hopper:
    """The physics: hoppers without time limit, which are restarted on demand from starts of torch's generator."""

    def __init__(self, num_envs: int) -> None:
        self.core = robotrl.make_sim(
            "mujoco/hopper", num_envs=num_envs, terminate_when_unhealthy=False, limit_steps=10**6, threads=1
        ).core
        self.train = 1 << 20

    def restart(self, envs: Tensor) -> None:
        self.core.queue_states(torch.randint(self.train, (len(envs),)).numpy())
        self.core.restart(envs.numpy())

    def begin(self) -> None:
        self.core.reset()
        self.restart(torch.arange(self.core.num_envs))

    def step(self, action: Tensor) -> Tensor:
        self.core.step(action.numpy())
        return torch.from_numpy(self.core.reward)

    def state(self) -> Tensor:
        return torch.from_numpy(self.core.obs["state"])


class LabStandIn(gym.Env[Any, Any]):
    """Surface and step order of `DirectRLEnv`."""

    is_vector_env = True

    def __init__(self, num_envs: int, seed: int, cfg: LabCfg, limit: int, falls: bool, hostile: Sequence[str]) -> None:
        unknown = set(hostile) - set(HOSTILE)
        assert not unknown, unknown
        self.cfg, self.num_envs, self.device, self.step_dt = cfg, num_envs, "cpu", DT_S
        self.max_episode_length = limit
        self.falls, self.hostile = falls, frozenset(hostile)
        self.extras: dict[str, Any] = {}
        self.hopper = Hopper(num_envs)
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
        self.reset_terminated, self.reset_time_outs = (torch.zeros(num_envs, dtype=torch.bool) for _ in range(2))
        self.reward_buf = torch.zeros(num_envs, dtype=torch.float64 if "double" in hostile else torch.float32)
        self.sums = torch.zeros(num_envs)
        self.single_observation_space = gym.spaces.Dict(
            {"policy": gym.spaces.Box(-np.inf, np.inf, (11,)), "critic": gym.spaces.Box(-np.inf, np.inf, (13,))}
        )
        self.single_action_space = gym.spaces.Box(-np.inf, np.inf, (3,))
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space["policy"], num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        kind = self.reward_buf.dtype
        self.obs_buf = {
            "policy": torch.zeros(num_envs, 11, dtype=kind),
            "critic": torch.zeros(num_envs, 13, dtype=kind),
        }
        self.steps, self.resets = 0, 0
        self.returned: tuple[Any, ...] = ()
        self.seed(seed)

    @staticmethod
    def seed(seed: int) -> None:
        torch.manual_seed(seed)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        del options
        if seed is not None:
            self.seed(seed)
        self.hopper.begin()
        self._reset_idx(torch.arange(self.num_envs))
        return self._observe(), self.extras

    def _reset_idx(self, envs: Tensor) -> None:
        self.resets += 1
        self.hopper.restart(envs)
        log: dict[str, Any] = {
            "Episode_Reward/forward": torch.mean(self.sums[envs]),
            "Episode_Termination/time_out": float(self.reset_time_outs[envs].sum()),
        }
        if "late_log" in self.hostile and self.resets > 3:
            log["Curriculum/level"] = torch.tensor([2.0, 4.0])
        if "cpu_time" in self.hostile:
            log["note"] = "no number"
        if "log_in_place" in self.hostile and "log" in self.extras:
            self.extras["log"]["Episode_Reward/forward"].fill_(math.nan)
        self.extras["log"] = log
        self.sums[envs] = 0.0
        self.episode_length_buf[envs] = 0

    def _observe(self) -> dict[str, Tensor]:
        state = self.hopper.state()
        self.obs_buf["policy"][:] = state
        self.obs_buf["critic"][:] = torch.cat((state, state[:, :2] * 2), 1)
        if "nan_rows" in self.hostile and self.steps >= 5:
            self.obs_buf["policy"][1] = math.nan
        return self.obs_buf

    def step(self, action: Tensor) -> tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]:
        assert action.shape == (self.num_envs, 3) and action.dtype is torch.float32
        self._harass()
        self.steps += 1
        if "raise" in self.hostile and self.steps == 3:
            raise RuntimeError("the solver\nexploded")
        reward = self.hopper.step(action)
        self.episode_length_buf += 1
        fallen = self.hopper.state()[:, 0] < FALLEN_M
        self.reset_terminated[:] = fallen if self.falls else False
        self.reset_time_outs[:] = self.episode_length_buf >= self.max_episode_length
        self.reward_buf[:] = reward
        self.sums += reward
        envs = (self.reset_terminated | self.reset_time_outs).nonzero()[:, 0]
        if len(envs):
            if isinstance(self.cfg, LabCfg3) and self.cfg.compute_final_obs:
                self.extras["final_obs"] = {key: value.clone() for key, value in self._observe().items()}
            self._reset_idx(envs)
        out = self._observe(), self.reward_buf, self.reset_terminated, self.reset_time_outs, self.extras
        return self._disguised(*out)

    def _harass(self) -> None:
        if "overwrite" in self.hostile and self.returned:
            for tensor in self.returned:
                tensor.fill_(math.nan if tensor.is_floating_point() else True)
        if "new_extras" in self.hostile:
            self.extras = {}

    def _disguised(self, obs: Any, reward: Tensor, *rest: Any) -> Any:
        terminated, time_outs, extras = rest
        if "float_flags" in self.hostile:
            terminated, time_outs = terminated.float(), time_outs.float()
        if "long_flags" in self.hostile:
            terminated, time_outs = terminated.long(), time_outs.long()
        if "lost_group" in self.hostile and self.steps >= 3:
            obs = {"policy": obs["policy"]}
        if "wrong_shape" in self.hostile and self.steps >= 3:
            reward = reward[:, None]
        if "overwrite" in self.hostile:
            # fresh tensors that are spoilt later
            obs, reward = {key: value.clone() for key, value in obs.items()}, reward.clone()
            self.returned = (*obs.values(), reward)
        return obs, reward, terminated, time_outs, extras

    def close(self) -> None:
        self.closed = True


def lab(
    num_envs: int,
    seed: int,
    limit: int = 1000,
    final_obs: bool = True,
    finite: bool = False,
    falls: bool = True,
    version: int = 3,
    hostile: Sequence[str] = (),
    described: bool = False,
) -> LabStandIn:
    """A stand-in for Isaac Lab, as a factory of `isaac/MODULE:FUNCTION`."""
    cfg = LabCfg3(is_finite_horizon=finite, compute_final_obs=final_obs) if version == 3 else LabCfg(finite)
    env = LabStandIn(num_envs, seed, cfg, limit, falls, hostile)
    if described:
        env.get_IO_descriptors = HOPPER  # type: ignore[attr-defined]
    return env


class VecTaskStandIn:
    """Surface and step order of Isaac Gym's `VecTask`: envs with the flag are reset in the next step."""

    def __init__(
        self, num_envs: int, seed: int, limit: int, falls: bool, states: bool, resets: str, time_outs: bool
    ) -> None:
        self.num_envs, self.num_obs, self.num_actions = num_envs, 11, 3
        self.num_states = 13 if states else 0
        self.rl_device, self.max_episode_length = "cpu", limit
        self.falls, self.same_step, self.tells = falls, resets == "same-step", time_outs
        self.obs_space = gym.spaces.Box(np.ones(11) * -np.inf, np.ones(11) * np.inf)
        self.state_space = gym.spaces.Box(np.ones(13) * -np.inf, np.ones(13) * np.inf)
        self.act_space = gym.spaces.Box(np.ones(3) * -1.0, np.ones(3) * 1.0)
        self.hopper = Hopper(num_envs)
        self.obs_buf, self.states_buf = torch.zeros(num_envs, 11), torch.zeros(num_envs, 13)
        self.rew_buf = torch.zeros(num_envs)
        self.reset_buf, self.timeout_buf = torch.ones(num_envs, dtype=torch.long), torch.zeros(num_envs).bool()
        self.progress_buf = torch.zeros(num_envs, dtype=torch.long)
        self.extras: dict[str, Any] = {}
        self.obs_dict: dict[str, Tensor] = {}
        torch.manual_seed(seed)
        self.hopper.begin()

    def reset(self) -> dict[str, Tensor]:
        if self.same_step:
            self.reset_idx(torch.arange(self.num_envs))
            self._observe()
        self._fill()
        return self.obs_dict

    def reset_idx(self, envs: Tensor) -> None:
        self.hopper.restart(envs)
        self.reset_buf[envs] = 0
        self.progress_buf[envs] = 0
        self.extras["episode"] = {"consecutive_successes": torch.tensor(0.5)}

    def _observe(self) -> None:
        state = self.hopper.state()
        self.obs_buf[:] = state
        self.states_buf[:] = torch.cat((state, state[:, :2] * 2), 1)

    def _fill(self) -> None:
        # as with clip_obs at infinity in tasks that leave out the clamp: the buffer itself
        self.obs_dict["obs"] = self.obs_buf
        if self.num_states:
            self.obs_dict["states"] = self.states_buf

    def step(self, actions: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, dict[str, Any]]:
        self.rew_buf[:] = self.hopper.step(torch.clamp(actions, -1.0, 1.0))
        self._post_physics_step()
        self.extras["time_outs"] = self.timeout_buf
        if not self.tells:
            del self.extras["time_outs"]
        self._fill()
        return self.obs_dict, self.rew_buf, self.done, self.extras

    def _post_physics_step(self) -> None:
        self.progress_buf += 1
        if not self.same_step:
            envs = self.reset_buf.nonzero()[:, 0]
            if len(envs):
                self.reset_idx(envs)
                self.rew_buf[envs] = -77.0  # a reward of the reset state, which belongs to no action
        self._observe()
        late = self.progress_buf >= self.max_episode_length - (0 if self.same_step else 1)
        fallen = self.obs_buf[:, 0] < FALLEN_M
        self.reset_buf[:] = ((fallen & self.falls) | late).long()
        self.timeout_buf[:] = late & (self.reset_buf != 0)
        self.done = self.reset_buf
        if self.same_step:
            self.done = self.reset_buf.clone()
            envs = self.reset_buf.nonzero()[:, 0]
            if len(envs):
                self.reset_idx(envs)
                self._observe()


def vec_task(
    num_envs: int,
    seed: int,
    limit: int = 1000,
    falls: bool = True,
    states: bool = True,
    resets: str = "next-step",
    time_outs: bool = True,
) -> VecTaskStandIn:
    """A stand-in for Isaac Gym, as a factory of `isaac/MODULE:FUNCTION`."""
    return VecTaskStandIn(num_envs, seed, limit, falls, states, resets, time_outs)


class CountingLab:
    """Isaac Lab's surface without physics: an observation is (episode, step in it), a reward is the step, from 1.

    Args:
        ends: steps of the run, from 1, to the envs that fail in them.
        limit: time limit, steps.
        final_obs: fill `extras["final_obs"]`.
        finite: the time limit belongs to the task.
        resets: False leaves resets to the user, as mjlab can.
        device: of all tensors.
    """

    def __init__(
        self,
        ends: dict[int, list[int]],
        limit: int,
        final_obs: bool = True,
        finite: bool = False,
        resets: bool = True,
        device: Any = "cpu",
    ) -> None:
        self.num_envs, self.device, self.step_dt, self.max_episode_length = 2, device, 0.02, limit
        self.resets, self.must_reset = resets, torch.zeros(0, dtype=torch.long)
        self.cfg: Any = LabCfg3(finite, compute_final_obs=final_obs) if resets else MjlabCfg(finite)
        self.episode_length_buf, self.episode = (torch.zeros(2, dtype=torch.long, device=device) for _ in range(2))
        box = gym.spaces.Box(-np.inf, np.inf, (2,))
        self.single_observation_space = gym.spaces.Dict({"policy": box})
        self.single_action_space = gym.spaces.Box(-1.0, 1.0, (1,))
        self.ends, self.t = ends, 0
        self.extras: dict[str, Any] = {}
        self.actions: list[Tensor] = []

    def _observe(self) -> dict[str, Tensor]:
        return {"policy": torch.stack((self.episode, self.episode_length_buf), 1).float()}

    def reset(
        self, *, seed: int | None = None, env_ids: Tensor | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        del seed
        self._reset_idx(torch.arange(2, device=self.device) if env_ids is None else env_ids)
        return self._observe(), self.extras

    def _reset_idx(self, envs: Tensor) -> None:
        self.extras["log"] = {"mean_steps": self.episode_length_buf[envs].float().mean()}
        self.episode_length_buf[envs] = 0
        self.episode[envs] += 1
        self.must_reset = self.must_reset[:0]

    def step(self, action: Tensor) -> Any:
        assert not len(self.must_reset)
        self.actions.append(action)
        self.t += 1
        self.episode_length_buf += 1
        terminated = torch.tensor([env in self.ends.get(self.t, []) for env in range(2)], device=self.device)
        time_outs = self.episode_length_buf >= self.max_episode_length
        reward = self.episode_length_buf.float()
        envs = (terminated | time_outs).nonzero()[:, 0]
        if not self.resets:
            self.must_reset = envs
        elif len(envs):
            if self.cfg.compute_final_obs:
                self.extras["final_obs"] = self._observe()
            self._reset_idx(envs)
        return self._observe(), reward, terminated, time_outs, self.extras

    def close(self) -> None:
        pass


class CountingTask:
    """Isaac Gym's surface without physics; see `CountingLab`. A step that only resets has reward -1.

    Args:
        ends: steps of the run to the envs that fail in them; the step with which `reset` begins the run counts as 0.
        limit: time limit: an env times out when its counter reaches `limit - 1`.
    """

    def __init__(self, ends: dict[int, list[int]], limit: int) -> None:
        self.num_envs, self.num_states, self.rl_device, self.max_episode_length = 2, 0, "cpu", limit
        self.obs_space = gym.spaces.Box(-np.inf, np.inf, (2,))
        self.act_space = gym.spaces.Box(-1.0, 1.0, (1,))
        self.progress_buf, self.episode = (torch.zeros(2, dtype=torch.long) for _ in range(2))
        self.reset_buf = torch.ones(2, dtype=torch.long)
        self.ends, self.t = ends, -1

    def reset(self) -> dict[str, Tensor]:
        return {"obs": torch.zeros(2, 2)}

    def step(self, actions: Tensor) -> Any:
        del actions
        self.t += 1
        self.progress_buf += 1
        reset = self.reset_buf != 0
        self.progress_buf[reset] = 0
        self.episode[reset] += 1
        self.reset_buf[:] = 0
        reward = torch.where(reset, -1.0, self.progress_buf.float())
        late = self.progress_buf >= self.max_episode_length - 1
        self.reset_buf[late] = 1
        self.reset_buf[self.ends.get(self.t, [])] = 1
        obs = torch.stack((self.episode, self.progress_buf), 1).float()
        return {"obs": obs}, reward, self.reset_buf, {"time_outs": late}


class ActionTerm:
    """A joint term of mjlab's action manager; its class's name is what counts."""

    def __init__(self, names: Sequence[str], scale: Any, offset: Any) -> None:
        self.target_names, self.scale, self.offset, self.action_dim = list(names), scale, offset, len(names)


class JointPositionAction(ActionTerm):
    """See `ActionTerm`."""


def managers(term: ActionTerm) -> SimpleNamespace:
    """Managers of an environment with the observation terms "joint_pos" (2) and "command" (1) of group "actor"."""
    return SimpleNamespace(
        observation_manager=SimpleNamespace(
            active_terms={"actor": ["joint_pos", "command"]}, group_obs_term_dim={"actor": [(2,), (1,)]}
        ),
        action_manager=SimpleNamespace(active_terms=["joints"], get_term=lambda name: {"joints": term}[name]),
        termination_manager=SimpleNamespace(
            active_terms=["time_out", "reached"], get_term=lambda name: torch.tensor([name == "reached", False])
        ),
    )
