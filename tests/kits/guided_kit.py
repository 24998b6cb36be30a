"""The walk with an expert and a camera, and what a model would suggest that sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.learners.learner import Setup
from robotrl.sims.expert_state import expert_state, restore_expert
from tests.kits.walk_sim import GOAL, PIT, Walk

BEST = 1.9
"""Where the reward is largest without an end."""


class WalkExpert:
    """Walks to `BEST`, less an error that it draws once an episode."""

    modes = ("slow", "fast")

    def __init__(self, sim: Walk, noise: float, episode_noise: float, mode: str | None, seed: int) -> None:
        self._sim, self._noise, self._episode_noise = sim, noise, episode_noise
        self._only = None if mode is None else self.modes.index(mode)
        self._rng = np.random.default_rng(seed)
        self._drawn = np.zeros(sim.num_envs, np.int64)
        self._error = np.zeros(sim.num_envs)
        self.asked = 0

    @property
    def mode(self) -> Tensor:
        return torch.from_numpy(self._drawn)

    def act(self, started: Tensor) -> Tensor:
        self.asked += 1
        fresh = np.flatnonzero(started.numpy())
        self._drawn[fresh] = self._rng.integers(0, 2, len(fresh)) if self._only is None else self._only
        self._error[fresh] = self._episode_noise * self._rng.uniform(0, 1, len(fresh))
        away = BEST - self._error - self._sim._obs[:, 0].numpy()
        away += self._noise * self._rng.standard_normal(len(away))
        return torch.from_numpy(np.clip(away, -1, 1) * np.where(self._drawn, 1.0, 0.5)).float()[:, None]

    def get_state(self) -> dict[str, NDArray[Any]]:
        return expert_state(self)

    def set_state(self, state: dict[str, NDArray[Any]]) -> None:
        restore_expert(state, self)


class GuidedWalk(Walk):
    """The walk with an expert, and a camera whose pictures are as bright as the env is far."""

    cameras = ("front",)

    def make_expert(
        self, noise: float = 0.0, episode_noise: float = 0.0, mode: str | None = None, seed: int = 0
    ) -> WalkExpert:
        return WalkExpert(self, noise, episode_noise, mode, seed)

    def render(self, ids: Sequence[int], camera: str, width: int, height: int) -> NDArray[np.uint8]:
        assert camera == "front"
        levels = [brightness(float(self._obs[env, 0])) for env in ids]
        return np.stack([np.full((height, width, 3), level, np.uint8) for level in levels])


def brightness(x: float) -> int:
    return round(255 * (min(max(x, PIT), GOAL) - PIT) / (GOAL - PIT))


def place(level: float) -> float:
    """Position of which `brightness` is that of, up to rounding."""
    return PIT + (GOAL - PIT) * level / 255


def guided_setup(policy_cfg: Any, dataset: Any = None, init_policy: Any = None, envs: int = 4) -> Setup:
    return Setup(lambda: GuidedWalk(envs), policy_cfg, init_policy, dataset, 0)


def make(num_envs: int, seed: int) -> GuidedWalk:
    """Factory of a registry's row."""
    return GuidedWalk(num_envs, seed)
