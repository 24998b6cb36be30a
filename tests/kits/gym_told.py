"""Gymnasium environments that tell in words what to do, for the tests of `gym/ID`; importing this registers them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

COLORS = ("red", "green", "blue")
LENGTH = 4
"""Steps of an episode about the first colour; one more about each of the next."""


class Pointing(gym.Env[dict[str, Any], np.ndarray]):
    """A picture of 32 x 32 pixels, three numbers, and an instruction that each episode draws anew.

    The state is (colour, episode step, sum of actions), so that every observation shows which episode it is of.

    Args:
        render_mode: None.
        said: what follows the colour, "!" or a word.
        mission: whether the instruction is a part of the observation too, as a `Text`.
        fault: what goes wrong with the instruction.
    """

    def __init__(self, render_mode: str | None = None, said: str = "!", mission: bool = False, fault: str = "") -> None:
        self.render_mode, self.said, self.mission, self.fault = render_mode, said, mission, fault
        parts: dict[str, gym.Space[Any]] = {
            "image": spaces.Box(0, 255, (32, 32, 3), np.uint8),
            "state": spaces.Box(-np.inf, np.inf, (3,), np.float32),
        }
        if mission:
            parts["mission"] = spaces.Text(60)
        self.observation_space = spaces.Dict(parts)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.color, self.steps, self.total = int(self.np_random.integers(len(COLORS))), 0, 0.0
        return self._observe(), {"task": self.task_description, "number": 3}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps, self.total = self.steps + 1, self.total + float(action.sum())
        return self._observe(), 0.0, self.steps >= LENGTH + self.color, False, {"success": np.array([self.total > 0])}

    @property
    def task_description(self) -> str:
        """As LIBERO's benchmark says it."""
        return f"Point at the {COLORS[self.color]} thing{self.said}"

    def get_language_instruction(self, **kwargs: Any) -> list[str]:
        """As ManiSkill's environments say it: one text for each of their rows."""
        if self.fault == "raise":
            raise RuntimeError("no task\nis loaded")
        return [self.task_description] * (2 if self.fault == "two" else 1)

    def _observe(self) -> dict[str, Any]:
        image = np.zeros((32, 32, 3), np.uint8)
        image[..., self.color] = 200
        out: dict[str, Any] = {"image": image, "state": np.array([self.color, self.steps, self.total], np.float32)}
        if self.mission:
            out["mission"] = "" if self.fault == "silent" else self.task_description
        return out


class Plain(gym.Env[np.ndarray, np.ndarray]):
    """One text as the whole of the observation, or four named columns.

    Args:
        render_mode: None.
        text: whether it is the text.
    """

    observation_structure = {"qpos": 3, "qvel": 1}  # noqa: RUF012  # as MuJoCo's environments have it
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, render_mode: str | None = None, text: bool = False) -> None:
        self.render_mode, self.text = render_mode, text
        self.observation_space = spaces.Text(20) if text else spaces.Box(-1.0, 1.0, (4,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observe(), 0.0, False, False, {}

    def _observe(self) -> Any:
        return "go left" if self.text else np.zeros(4, np.float32)


class Worded(Plain):
    """Has a part called "instruction" that is no text."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.observation_space: gym.Space[Any] = spaces.Dict({"instruction": spaces.Box(-1.0, 1.0, (4,), np.float32)})

    def _observe(self) -> Any:
        return {"instruction": np.zeros(4, np.float32)}


class Rows(gym.Env[Any, Any]):
    """A batch of one, as ManiSkill's environments are: what it gives has a first axis of one row.

    Args:
        render_mode: None.
        control_freq: actions in a second.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (1, 2), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1, 1), np.float32)

    def __init__(self, render_mode: str | None = None, control_freq: int = 20) -> None:
        self.render_mode, self.control_timestep = render_mode, 1.0 / control_freq

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros((1, 2), np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        row = np.full((1, 2), self.steps, np.float32)
        return row, np.ones(1, np.float32), np.zeros(1, bool), np.zeros(1, bool), {"success": np.ones(1, bool)}


class OwnLimit(gym.Wrapper[Any, Any, Any, Any]):
    """A time limit of the environment's own, which takes what `gymnasium.make` was given, as ManiSkill's does."""

    def __init__(self, env: gym.Env[Any, Any], max_episode_steps: int) -> None:
        import sys

        super().__init__(env)
        given = sys._getframe(1).f_locals.get("max_episode_steps")
        self.limit = max_episode_steps if given is None else given

    def step(self, action: Any) -> Any:
        observation, reward, terminated, _, info = self.env.step(action)
        inner: Any = self.env.unwrapped
        return observation, reward, terminated, np.array([inner.steps >= self.limit]), info


class Single(gym.Wrapper[Any, Any, Any, Any]):
    """Takes the rows off, as ManiSkill's `CPUGymWrapper` does."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**given)
        return observation[0], info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action[None])
        return observation[0], reward[0], terminated[0], truncated[0], {"success": info["success"]}


class Doubled(gym.Wrapper[Any, Any, Any, Any]):
    """Doubles the observation, and knows an instruction of its own."""

    spoken = "go left twice"

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**given)
        return 2 * observation, info

    def step(self, action: Any) -> Any:
        observation, *rest = self.env.step(action)
        return (2 * observation, *rest)


NOT_CALLABLE = 3


def forgets(env: gym.Env[Any, Any]) -> None:
    """A wrapper that gives nothing back."""


def refuses(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """A wrapper that raises."""
    raise AssertionError("only for\nother environments")


gym.register("Pointing-v0", entry_point=Pointing)
gym.register("Plain-v0", entry_point=Plain)
gym.register(
    "Rows-v0",
    entry_point=Rows,
    max_episode_steps=6,
    additional_wrappers=(
        gym.envs.registration.WrapperSpec("OwnLimit", f"{__name__}:OwnLimit", {"max_episode_steps": 6}),
    ),
)
gym.register("Worded-v0", entry_point=Worded)
