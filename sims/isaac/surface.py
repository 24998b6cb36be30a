"""Attributes of Isaac environments that the adapters use: nothing else of an environment is touched.

Three surfaces: `LabEnv` is that of Isaac Lab's `DirectRLEnv` and `ManagerBasedRLEnv` (2.3 and 3.0) and of mjlab's
`ManagerBasedRlEnv`; `VecTask` is Isaac Gym's. `HasManagers` and `DescribesIO` are the parts of `LabEnv` that only some
environments have. tests/sims/isaac/test_released_lab.py compares the tables with the released sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from robotrl.errors import ConfigError

LAB_ATTRIBUTES = (
    "num_envs",
    "device",
    "step_dt",
    "max_episode_length",
    "episode_length_buf",
    "single_observation_space",
    "single_action_space",
    "cfg",
    "reset",
    "step",
    "close",
)
"""Attributes of `LabEnv`."""
LAB_EXTRAS = ("log", "final_obs")
"""Keys of `extras` that the adapter of `LabEnv` reads; both may be missing."""
VEC_TASK_ATTRIBUTES = (
    "num_envs",
    "num_states",
    "rl_device",
    "obs_space",
    "act_space",
    "max_episode_length",
    "progress_buf",
    "reset_buf",
    "reset",
    "step",
)
"""Attributes of `VecTask`."""
VEC_TASK_EXTRAS = ("time_outs", "episode")
"""Keys of `extras` that the adapter of `VecTask` reads; both may be missing."""


class LabEnv(Protocol):
    """Isaac Lab's `DirectRLEnv` and `ManagerBasedRLEnv`, and mjlab's `ManagerBasedRlEnv`, as far as it is used."""

    num_envs: int
    device: Any
    step_dt: float
    """Control period, s."""
    max_episode_length: int
    """Time limit, control steps."""
    episode_length_buf: Tensor
    """(N,) whole numbers: steps of the running episodes; may be written."""
    single_observation_space: Any
    """Dict space: group name to a Box, or to a Dict of Boxes for a group whose terms are not concatenated."""
    single_action_space: Any
    cfg: Any

    def reset(self, *, seed: int | None = None) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """Start new episodes in all envs; returns observation groups and extras."""
        ...

    def step(self, action: Tensor) -> tuple[Mapping[str, Any], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Advance all envs; returns observation groups, reward, terminated, time-outs and extras.

        Envs that ended have been reset. Rewards and flags are about the step, observations about the new episode.
        """
        ...

    def close(self) -> None:
        """Free the environment's resources."""
        ...


class VecTask(Protocol):
    """Isaac Gym's `VecTask`, as far as it is used."""

    num_envs: int
    num_states: int
    """Width of the critic's observation; 0 if there is none."""
    rl_device: str
    """Device of what `step` returns."""
    obs_space: Any
    act_space: Any
    max_episode_length: int
    """Time limit, control steps."""
    progress_buf: Tensor
    """(N,) whole numbers: steps of the running episodes; may be written."""
    reset_buf: Tensor
    """(N,) 1 for envs that the next step resets; may be written."""

    def reset(self) -> Mapping[str, Tensor]:
        """Present observation, by "obs" and "states"; most tasks reset nothing here."""
        ...

    def step(self, actions: Tensor) -> tuple[Mapping[str, Tensor], Tensor, Tensor, dict[str, Any]]:
        """Advance all envs; returns observations by "obs" and "states", rewards, resets and extras."""
        ...


@runtime_checkable
class FiniteHorizon(Protocol):
    """Config that says whether the time limit belongs to the task."""

    is_finite_horizon: bool


@runtime_checkable
class ComputesFinalObs(Protocol):
    """Config of Isaac Lab 3.0, which can keep the last observation of an episode."""

    compute_final_obs: bool


@runtime_checkable
class AutoResets(Protocol):
    """Config of mjlab, which can leave resets to its user, who calls `reset(env_ids=...)` between two steps."""

    auto_reset: bool


@runtime_checkable
class HasManagers(Protocol):
    """An environment made of managers."""

    observation_manager: Any
    action_manager: Any
    termination_manager: Any


@runtime_checkable
class DescribesIO(Protocol):
    """An environment with Isaac Lab's IO descriptors."""

    @property
    def get_IO_descriptors(self) -> dict[str, Any]:
        """Descriptions of observations, actions, articulations and the scene."""
        ...


def missing_attributes(env: object, attributes: tuple[str, ...]) -> list[str]:
    """Attributes of a table that an environment lacks."""
    return [name for name in attributes if not hasattr(env, name)]


def is_lab(env: object) -> bool:
    """True for the surface of Isaac Lab, False for that of Isaac Gym.

    Raises:
        ConfigError: the environment has neither.
    """
    no_lab, no_task = (missing_attributes(env, table) for table in (LAB_ATTRIBUTES, VEC_TASK_ATTRIBUTES))
    if not no_lab:
        return True
    if not no_task:
        return False
    closer, lacks = ("Isaac Lab's", no_lab) if len(no_lab) <= len(no_task) else ("Isaac Gym's", no_task)
    raise ConfigError(f"env is a {type(env).__name__}: expected {closer} surface, and it lacks {', '.join(lacks)}")
