"""A walk whose reward comes from a scoring service with delays: the score of a picture is its number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.config import WeightedReward
from robotrl.rewards.means import RewardMeans
from robotrl.rewards.relabel import LateRewardedSim, with_rewards
from robotrl.rewards.scoring.cfg import ServiceCfg
from robotrl.rewards.source import RewardSetup, SimTransition
from robotrl.rewards.vlm.cfg import PictureRewardCfg
from robotrl.rewards.vlm.scene_scores import SceneScores
from robotrl.rewards.vlm.similarity import PictureScores
from robotrl.rewards.vlm.source import LanguageReward, Valued
from robotrl.spec import VecSim
from tests.kits.scoring_kit import SHAPE, pictures_of, service_of

WEIGHT = 2.0
SERVICE = ServiceCfg(processes=2, batch_size=16, flush_after_s=0.005, cache_frames=0)


class NumberedPictures:
    """The picture of env n at step t, counted from 0, has the number t * N + n; some cause a fault.

    Args:
        num_envs: N.
        faults: fault by number of the picture.
    """

    name = "numbered"
    shape = SHAPE

    def __init__(self, num_envs: int, faults: dict[int, int] | None = None) -> None:
        self._num_envs, self._faults = num_envs, faults
        self._step = -1

    def visible(self, transition: SimTransition) -> Tensor:
        self._step += 1
        return torch.ones(self._num_envs, dtype=torch.bool)

    def pixels(self, transition: SimTransition, envs: Tensor) -> NDArray[np.uint8]:
        return pictures_of((self._step * self._num_envs + envs).numpy(), self._faults)


class PlainTerm:
    """The first output, plus the position that the step reached; it has seen so many outputs."""

    notes_width = 1
    obs_keys: tuple[str, ...] = ()

    def __init__(self, judges_action: bool = False) -> None:
        self.seen = 0
        self.judges_action = judges_action

    def notes(self, transition: SimTransition) -> Tensor:
        return transition.reached["walk"][:, :1].clone()

    def see(self, outputs: Tensor, notes: Tensor) -> None:
        self.seen += len(outputs)

    def value(self, outputs: Tensor, notes: Tensor) -> Valued:
        return Valued(outputs[:, 0] + notes[:, 0], torch.ones(len(outputs), dtype=torch.bool))

    def forget(self, envs: Tensor) -> None:
        pass

    def state(self) -> dict[str, NDArray[np.generic]]:
        return {"seen": np.array(self.seen)}

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        self.seen = int(state["seen"])


@dataclass(frozen=True, kw_only=True)
class NumberCfg:
    """Reward: number of the picture plus position, from a service; `every` and `max_age` as of any such reward."""

    every: int = 1
    max_age: int = 0
    kept_steps: int = 4096
    wait_s: float = 30.0
    service: ServiceCfg = SERVICE
    scorer: dict[str, Any] = field(default_factory=dict[str, Any])
    faults: dict[int, int] = field(default_factory=dict[int, int])
    scores: PictureScores | None = None
    judges_action: bool = False

    def build(self, sim: VecSim, setup: RewardSetup) -> LanguageReward:
        cfg = PictureRewardCfg(
            model="none", every=self.every, max_age=self.max_age, kept_steps=self.kept_steps, wait_s=self.wait_s
        )
        scores = service_of(self.service, **self.scorer) if self.scores is None else self.scores
        scenes = SceneScores(NumberedPictures(sim.num_envs, self.faults), scores, sim.num_envs)
        return LanguageReward("number", cfg, scenes, 2, PlainTerm(self.judges_action), sim.num_envs, "number")


def late_sim(sim: Any, cfg: NumberCfg, means: RewardMeans | None = None) -> LateRewardedSim:
    made = with_rewards(sim, [WeightedReward("number", WEIGHT, cfg)], means=means)
    assert isinstance(made, LateRewardedSim)
    return made


def numbers(steps: Sequence[int], num_envs: int) -> NDArray[np.float64]:
    """(T, N) numbers of the pictures of these steps."""
    return np.asarray(steps)[:, None] * num_envs + np.arange(num_envs)[None, :].astype(np.float64)
