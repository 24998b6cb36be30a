"""Shared code of the scripted experts: arguments, modes, action noise and systematic errors."""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import out_of_range, unknown
from robotrl.sims.expert_state import State, expert_state, restore_expert
from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.engine.task import Task

Array = NDArray[np.float64]


class ExpertNoise:
    """Draws the mode of each episode and degrades an expert with action noise, systematic errors and slowness.

    All numbers come from one random stream, so an expert must make its draws in the same order in each episode.

    Args:
        core: the envs.
        modes: strategies with which the expert solves its task.
        noise: standard deviation of Gaussian noise on each action, 0 to 1 (an action spans [-1, 1]).
        episode_noise: scale of the errors and slowness drawn once per episode, 0 (none) to 1.
        mode: one of `modes`, or None to draw one for each episode.
        seed: seed of noise, errors and modes.

    Raises:
        ConfigError: unknown mode, or a value out of range.
    """

    def __init__(
        self, core: MujocoCore, modes: tuple[str, ...], noise: float, episode_noise: float, mode: str | None, seed: int
    ) -> None:
        for field, value in (("noise", noise), ("episode_noise", episode_noise)):
            if not 0 <= value <= 1:
                raise out_of_range(field, value, "0 to 1")
        if mode is not None and mode not in modes:
            raise unknown("mode", mode, modes)
        self._count = len(modes)
        self._only = None if mode is None else modes.index(mode)
        self._noise, self._episode_noise = noise, episode_noise
        self._rng = np.random.default_rng(seed)
        self.mode: NDArray[np.int64] = np.zeros(core.num_envs, np.int64)
        """(N,) mode of each running episode, as an index into `modes`."""
        self.gain: Array = np.ones((core.num_envs, 1))
        """(N, 1) speed factor on displacements; below 1 for degraded experts."""

    def begin(self, env_ids: NDArray[np.int64]) -> None:
        """Draw the modes of new episodes in the envs `env_ids` (n,)."""
        self.mode[env_ids] = self._rng.integers(0, self._count, len(env_ids)) if self._only is None else self._only

    def slow(self, env_ids: NDArray[np.int64], most: float = 0.5) -> None:
        """Draw the speed factor of new episodes; at `episode_noise` 1 it is down to 1 - `most`."""
        self.gain[env_ids, 0] = 1.0 - self._episode_noise * self._rng.uniform(0.0, most, len(env_ids))

    def errors(self, count: int, scales: tuple[float, ...]) -> Array:
        """Draw the expert's systematic errors for `count` new episodes.

        Args:
            count: number of episodes n.
            scales: standard deviation of each error at `episode_noise` 1.

        Returns:
            (n, len(scales)) errors.
        """
        return self._episode_noise * self._rng.standard_normal((count, len(scales))) * scales

    def shake(self, actions: Array) -> NDArray[np.float32]:
        """Add noise to actions (N, A) and clip them to [-1, 1]."""
        if self._noise:
            actions = actions + self._noise * self._rng.standard_normal(actions.shape)
        return np.clip(actions, -1, 1).astype(np.float32)


T = TypeVar("T", bound=Task)


class ArmExpert(Generic[T]):
    """Base class of a task's scripted expert; acts on all envs of a core at once.

    Subclasses set `modes` and `solves` (the task class).

    Args:
        core: a core whose task is an instance of `solves`.
        noise: standard deviation of Gaussian noise on each action, 0 to 1 (an action spans [-1, 1]).
        episode_noise: scale of the errors drawn once per episode, 0 (none) to 1; see the subclass.
        mode: one of `modes`, or None to draw one for each episode.
        seed: seed of noise, errors and modes.

    Raises:
        ConfigError: unknown mode, or a value out of range.
        TypeError: the core has another task.
    """

    modes: tuple[str, ...]
    solves: ClassVar[type[Task]]

    def __init__(
        self, core: MujocoCore, noise: float = 0.0, episode_noise: float = 0.0, mode: str | None = None, seed: int = 0
    ) -> None:
        if not isinstance(core.task, self.solves):
            raise TypeError(f"{type(self).__name__} solves {self.solves.name}: got {core.task.name}")
        self._task = cast(T, core.task)
        self._noise = ExpertNoise(core, self.modes, noise, episode_noise, mode, seed)
        self.mode: NDArray[np.int64] = self._noise.mode
        """(N,) mode of each running episode, as an index into `modes`."""

    def get_state(self) -> State:
        """Exact state: plans, errors and random numbers; a subclass keeps all that changes in arrays."""
        return expert_state(self, self._noise)

    def set_state(self, state: State) -> None:
        """Restore exact state.

        Raises:
            ConfigError: it is of another expert or number of envs.
        """
        restore_expert(state, self, self._noise)
