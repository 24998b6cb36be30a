"""Small Gymnasium environments for the tests of `gym/ID`; importing this registers them."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

LIMIT = 12


class Toy(gym.Env[dict[str, Any], np.ndarray]):
    """A point in a plane that drifts to where it is pushed, with a picture of itself in the observation.

    Args:
        render_mode: "rgb_array" or None.
        goal_radius: a point this near to the middle has won.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  # as Gymnasium has it

    def __init__(self, render_mode: str | None = None, goal_radius: float = 0.0) -> None:
        self.render_mode, self.goal_radius = render_mode, goal_radius
        self.observation_space = spaces.Dict(
            {
                "pos": spaces.Box(-3.0, 3.0, (2,), np.float64),
                "side": spaces.Discrete(4, start=1),
                "image": spaces.Box(0, 255, (40, 36, 3), np.uint8),
                "more": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3]))),
            }
        )
        self.action_space = spaces.Box(np.array([-1.0, -0.5]), np.array([1.0, 2.0]), (2,), np.float64)
        self.pos = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.pos = self.np_random.uniform(-1, 1, 2)
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.pos = np.clip(self.pos + 0.1 * action + 0.05 * self.np_random.normal(size=2), -3, 3)
        won = bool(np.hypot(*self.pos) < self.goal_radius)
        return self._observe(), -float(np.hypot(*self.pos)), won, False, {"is_success": won, "note": "text"}

    def render(self) -> Any:
        return np.repeat(self._image(), 2, axis=1)

    def _image(self) -> np.ndarray:
        image = np.zeros((40, 36, 3), np.uint8)
        row, column = ((self.pos + 3) / 6 * (39, 35)).astype(int)
        image[row:, column:] = (200, 120, 255)
        image[..., 1] += np.uint8(30 * (self.pos[0] + 3))
        return image

    def _observe(self) -> dict[str, Any]:
        x, y = self.pos > 0
        return {
            "pos": self.pos.copy(),
            "side": np.int64(1 + 2 * x + y),
            "image": self._image(),
            "more": (np.array([x, y], np.int8), np.array([x, x + y], np.int64)),
        }


class Faulty(gym.Env[np.ndarray, np.ndarray]):
    """Does what it should for three steps; then what `fault` says."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, render_mode: str | None = None, fault: str = "", at: int = 3) -> None:
        self.render_mode, self.fault, self.at, self.steps = render_mode, fault, at, 0
        if fault == "make":
            raise RuntimeError("no robot\nis connected")
        if fault == "actions":
            self.action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        if self.fault == "unseeded":
            return np.random.default_rng().normal(size=2).astype(np.float32), {}
        return self.np_random.normal(size=2).astype(np.float32), {}

    def step(self, action: np.ndarray) -> Any:
        self.steps += 1
        observation: Any = np.full(2, self.steps, np.float32)
        reward: Any = 1.0
        if self.steps >= self.at:
            match self.fault:
                case "nan":
                    observation[1] = np.nan
                case "shape":
                    observation = np.zeros(3, np.float32)
                case "dtype":
                    observation = np.array(["a", "b"])
                case "reward":
                    reward = np.nan
                case "rewards":
                    reward = np.zeros(2)
                case "old":
                    return observation, reward, False, {}
                case "raise":
                    raise ValueError("motor 3 is\ntoo hot")
                case "die":
                    os._exit(7)
                case _:
                    pass
        return observation, reward, False, False, {}


class Counting(VectorEnv[Any, Any, Any]):
    """A vector class of its own: row i ends every 3 + i steps, by failure where i is odd; in any autoreset mode.

    Its observation is (episode, step); rewards are 10 * episode + step.
    """

    def __init__(self, num_envs: int, mode: str = "same_step", fault: str = "") -> None:
        self.num_envs, self.mode, self.fault = num_envs, AutoresetMode[mode.upper()], fault
        self.metadata = {"autoreset_mode": self.mode, "render_fps": 5}
        self.single_observation_space = spaces.Box(0, np.inf, (2,), np.float32)
        self.single_action_space = spaces.Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.lengths = 3 + np.arange(num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        if not options:
            self.state, self.ended = np.zeros((self.num_envs, 2), np.float32), np.zeros(self.num_envs, bool)
            return self.state.copy(), {}
        self.state[mask] = np.stack([self.state[mask, 0] + 1, np.zeros(mask.sum())], axis=1)
        return self.state.copy(), {}

    def step(self, actions: Any) -> Any:
        if self.fault == "raise":
            raise OSError("the server has gone")
        fresh = self.ended.copy() if self.mode is AutoresetMode.NEXT_STEP else np.zeros(self.num_envs, bool)
        self.state[:, 1] += 1
        self.state[fresh] = np.stack([self.state[fresh, 0] + 1, np.zeros(fresh.sum())], axis=1)
        reward = np.where(fresh, 0.0, 10 * self.state[:, 0] + self.state[:, 1])
        done = (self.state[:, 1] >= self.lengths) & ~fresh
        odd = np.arange(self.num_envs) % 2 == 1
        self.ended = done
        infos: dict[str, Any] = {}
        if self.mode is AutoresetMode.SAME_STEP and done.any():
            if self.fault != "no_final":
                infos["final_obs"] = np.full(self.num_envs, None, object)
                for row in np.flatnonzero(done):
                    infos["final_obs"][row] = self.state[row].copy()
            infos["final_info"] = {"success": done & odd, "_success": done}
            self.state[done] = np.stack([self.state[done, 0] + 1, np.zeros(done.sum())], axis=1)
        shown = self.state[:, :1] if self.fault == "shape" else self.state
        return shown.copy(), reward, done & odd, done & ~odd, infos


gym.register("Toy-v0", entry_point=Toy, max_episode_steps=LIMIT)
gym.register("Faulty-v0", entry_point=Faulty)
gym.register("Counting-v0", vector_entry_point=Counting)
