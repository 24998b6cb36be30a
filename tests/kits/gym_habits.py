"""Small Gymnasium environments, each with a habit of environments that people write; importing this registers them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

LIMIT = 8


class Line(gym.Env[Any, Any]):
    """A point on a line; it has no constructor, no render mode and no clock, and says nothing in `info`."""

    observation_space: gym.Space[Any] = spaces.Box(-2, 2, (2,), np.float32)
    action_space: gym.Space[Any] = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.v, self.t = float(self.np_random.uniform(-1, 1)), 0.0, 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        self.v = 0.1 * float(np.asarray(action, np.float64).reshape(-1)[0])
        self.x, self.t = float(np.clip(self.x + self.v, -2, 2)), self.t + 1
        return self.seen(), -abs(self.x), False, False, self.said()

    def seen(self) -> Any:
        return np.array([self.x, self.v], np.float32)

    def said(self) -> dict[str, Any]:
        return {}


class Picky(Line):
    """Takes a render mode, of which None is none."""

    metadata: dict[str, Any] = {"render_modes": ["human"]}  # noqa: RUF012  # as Gymnasium has it

    def __init__(self, render_mode: str = "human") -> None:
        if render_mode != "human":
            raise ValueError(f"{render_mode} is no way to draw")


class Drawn(Line):
    """Says that it draws, and its constructor takes no render mode."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012


class Broken(Line):
    """Its constructor has a fault of its own."""

    def __init__(self, size: int = 1) -> None:
        len(size)  # pyright: ignore[reportArgumentType]


class Remade(Line):
    """Makes its spaces and its generator anew at each reset."""

    def __init__(self) -> None:
        self.action_space = spaces.Discrete(9)
        self.observation_space = spaces.Box(0, 1, (7,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.observation_space = spaces.Box(-2, 2, (2,), np.float32)
        out = super().reset(seed=seed, options=options)
        self.np_random = np.random.default_rng(seed)
        return out


class Stretching(Line):
    """Each reset lets its action reach further."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        self.action_space = spaces.Box(-1, 1.0 if self.resets < 4 else 2.0, (1,), np.float32)
        return super().reset(seed=seed, options=options)


class Noisy(Line):
    """One element of what it shows differs from run to run, from one of its steps on."""

    def __init__(self, element: int = 1, since: int = 0) -> None:
        self.element, self.since = element, since

    def seen(self) -> Any:
        out = super().seen()
        if self.t >= self.since:
            out[self.element] += np.random.default_rng().normal()
        return out


class Saying(Line):
    """Says what `says` has for each step, by key; None says nothing."""

    def __init__(self, says: dict[str, list[Any]] | None = None, end: int | None = None) -> None:
        self.says, self.end = says or {}, end

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        seen, reward, _, cut, info = super().step(action)
        return seen, reward, self.t == self.end, cut, info

    def said(self) -> dict[str, Any]:
        now = {key: values[min(self.t, len(values)) - 1] for key, values in self.says.items()}
        return {key: value for key, value in now.items() if value is not None}


class Shaped(Line):
    """Has any spaces, and shows samples of them."""

    def __init__(self, observation: Any = None, action: Any = None) -> None:
        self.observation_space = Line.observation_space if observation is None else observation
        self.action_space = Line.action_space if action is None else action

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        assert self.action_space.contains(action), action
        return self.seen(), 0.0, False, False, {}

    def seen(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()


class Ended(VectorEnv[Any, Any, Any]):
    """A vector class whose `final_info` is a list of one dict for each row; rows end at their third step."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, says: Any = None) -> None:
        self.num_envs, self.says = num_envs, says
        self.single_observation_space, self.single_action_space = Line.observation_space, Line.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.t = 0
        return np.zeros((self.num_envs, 2), np.float32), {}

    def step(self, actions: Any) -> Any:
        self.t += 1
        zeros, done = np.zeros((self.num_envs, 2), np.float32), np.full(self.num_envs, self.t % 3 == 0)
        infos: dict[str, Any] = {}
        if done.all():
            infos = {"final_obs": zeros, "final_info": [{"is_success": x} for x in self.says]}
        return zeros, np.ones(self.num_envs), np.zeros(self.num_envs, bool), done, infos


for kind in (Line, Picky, Drawn, Broken, Remade, Stretching, Noisy, Saying, Shaped):
    gym.register(f"{kind.__name__}-v0", entry_point=kind, max_episode_steps=LIMIT)
gym.register("Ended-v0", vector_entry_point=Ended)
