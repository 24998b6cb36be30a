"""Common part of the adapters: specs, actions, seeds, logs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from robotrl.errors import unknown
from robotrl.sims.isaac.actions import ActionCommands, action_spec, raw_bounds
from robotrl.sims.isaac.descriptors import ActionDescription, Descriptors, action_description, observation_names
from robotrl.sims.isaac.episode_log import EpisodeLog
from robotrl.sims.isaac.faults import Guard, IsaacFault
from robotrl.sims.isaac.observations import ObservationReader, groups_of, privileged_keys
from robotrl.sims.isaac.step_rules import Ends
from robotrl.sims.isaac.success import IsaacSuccess
from robotrl.spec import Spec, Step, SuccessRule
from robotrl.spec.actuation import Actuation

if TYPE_CHECKING:
    import gymnasium


class Settings(NamedTuple):
    """Options that both adapters take; see `IsaacCfg`."""

    name: str
    seed: int
    success: IsaacSuccess
    descriptors: Descriptors | None
    groups: tuple[str, ...] | None = None
    policy_groups: tuple[str, ...] | None = None
    action_bound: float = 1.0
    joint_targets: bool = True
    control_dt_s: float | None = None


class IsaacSim(ABC):
    """Base class of the adapters. Tensors stay on the environment's device, and are its own where they fit.

    Args:
        env: the environment.
        settings: see `Settings`.
        spaces: observation space, a Dict of groups, and action space.
        device: device of the environment's tensors.
        control_dt_s: control period, s; None if unknown.
    """

    buffers_are_reused = True

    def __init__(
        self, env: Any, settings: Settings, spaces: tuple[Any, Any], device: torch.device, control_dt_s: float | None
    ) -> None:
        self.env = env
        self.name = settings.name
        self.num_envs = int(env.num_envs)
        # with the number that its tensors have: "cuda" is "cuda:0"
        self.device = device = torch.empty(0, device=device).device
        self.control_dt_s = control_dt_s
        groups = groups_of(spaces[0], observation_names(settings.descriptors or {}), settings.groups)
        self.observation_spec: dict[str, Spec] = {group.key: group.spec for group in groups}
        self.privileged = privileged_keys(groups, settings.policy_groups)
        described = _described(settings)
        self.action_spec: Spec = action_spec(*raw_bounds(spaces[1], settings.action_bound), described)
        self.reasons: Mapping[str, str] = {"HasStateIds": "the environment draws its starts itself"}
        self._actuation = None if described is None else described.actuation
        self._reader = ObservationReader(groups, self.num_envs, device)
        self._commands = ActionCommands(self.action_spec, self.num_envs, device, described, self.name)
        self._success = settings.success
        self._log = EpisodeLog(device)
        self._resetting, self._stepping = Guard(self.name, "reset"), Guard(self.name, "step")
        self._seed: int | None = settings.seed
        self._no_start = torch.full((self.num_envs,), -1, dtype=torch.int64, device=device)

    @property
    def actuation(self) -> Actuation | None:
        """See `HasActuation`."""
        return self._actuation

    @property
    def success_rule(self) -> SuccessRule:
        """See `HasSuccessRule`."""
        return self._success.rule()

    def take_episode_log(self) -> dict[str, float]:
        """See `HasEpisodeLog`."""
        return self._log.take()

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Start new episodes in all envs.

        Args:
            seed: seeds the environment's random numbers, which are torch's global ones; None lets them continue, but
                the first reset takes the sim's seed.
            options: "stagger": True spreads the step counters over the time limit, so that not all envs time out
                together.

        Raises:
            ConfigError: unknown option.
            IsaacFault: the environment raised, or returned what its spaces do not allow.
        """
        given = dict(options or {})
        stagger = bool(given.pop("stagger", False))
        for name in given:
            raise unknown("reset option", name, ("stagger",))
        seed, self._seed = (self._seed if seed is None else seed), None
        with self._resetting:
            obs = self._reader.read(self._start(seed))
        if stagger:
            envs = torch.arange(self.num_envs, device=self.device)
            self._counters()[:] = envs * int(self.env.max_episode_length) // self.num_envs
        return obs

    @abstractmethod
    def _start(self, seed: int | None) -> Mapping[str, Any]:
        """Start new episodes in all envs; returns the environment's observation."""

    @abstractmethod
    def _counters(self) -> Tensor:
        """(N,) steps of the running episodes, writable."""

    @property
    def limit_steps(self) -> int:
        """Time limit of an episode (`robotrl.spec.HasTimeLimit`)."""
        return int(self.env.max_episode_length)

    def elapsed_steps(self) -> Tensor:
        """Steps (N,) int64 of each running episode, a copy."""
        return self._counters().to(torch.int64, copy=True)

    @abstractmethod
    def step(self, actions: Tensor) -> Step:
        """Advance all envs by one control step; see the subclasses."""

    def _vector(self, name: str, values: Any) -> Tensor:
        """A tensor (N,) of the environment, checked."""
        if not isinstance(values, Tensor) or values.shape != (self.num_envs,):
            shown = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise IsaacFault(f"{self.name}: {name} is {shown}: expected a tensor of shape ({self.num_envs},)")
        return values

    def _reward(self, values: Any) -> Tensor:
        reward = self._vector("reward", values)
        return reward if reward.dtype is torch.float32 else reward.float()

    def _info(self, ends: Ends, extras: Mapping[str, Any]) -> dict[str, Tensor]:
        return {"success": self._success.of(ends, self.env, extras), "state_id": self._no_start}

    def as_gymnasium(self) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        """The same sim as a numpy `gymnasium.vector.VectorEnv` with same-step autoreset."""
        from robotrl.sims.interop import GymnasiumVectorEnv

        return GymnasiumVectorEnv(self)

    def close(self) -> None:
        """Close the environment, if it can be closed."""
        if hasattr(self.env, "close"):
            self.env.close()


def _described(settings: Settings) -> ActionDescription | None:
    if settings.descriptors is None or not settings.joint_targets:
        return None
    return action_description(settings.descriptors)


def rows(arrays: Mapping[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
    """Copies of some rows of arrays (N, ...)."""
    return {key: value[ids] for key, value in arrays.items()}


def names(values: Any) -> tuple[str, ...] | None:
    """Names as a tuple; None stays None."""
    return None if values is None else tuple(values) if isinstance(values, Sequence) else (str(values),)
