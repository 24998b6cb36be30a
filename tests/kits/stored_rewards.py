"""Stored rewards for the walk, untrained: what a source does with them does not depend on their weights."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from robotrl.fn.stats import Interval
from robotrl.rewards.calibration import Rates
from robotrl.rewards.classifier import Calibration, TrainedClassifier
from robotrl.rewards.network import ImageRewardNet, RewardNetCfg
from robotrl.rewards.process_model import AcceptanceThresholds, HeldOutVerdict, ProcessReward
from robotrl.rewards.process_stored import process_identity, save_process
from robotrl.rewards.stored import identity_of, save_classifier
from robotrl.spec import Spec
from robotrl.transforms import TransformGroup
from tests.kits.walk_sim import GOAL, Walk


class StatingWalk(Walk):
    """The walk with a distance, and with envs that can be restarted one by one."""

    def distance(self) -> Tensor:
        return GOAL - self._obs[:, 0]

    def restart(self, envs: Tensor) -> dict[str, Tensor]:
        self._start(envs)
        return {"walk": self._obs}


def reward_net() -> ImageRewardNet:
    """A small network on the walk's observation."""
    torch.manual_seed(0)
    spec = Spec((2,), ("pos_x_w", "time"), ("m", "step"), (-2.0, 0.0), (2.0, 6.0))
    return ImageRewardNet({"walk": spec}, TransformGroup((), ()), RewardNetCfg(hidden=(8,))).eval()


def stored_classifier(path: Path) -> Path:
    """Save a success classifier."""
    none = Interval(0.0, 0.0, 1.0, 10)
    calibration = Calibration(0.5, 2, 0, 0.1, 10, Rates(none, None, 0.0))
    model = reward_net()
    return save_classifier(path, TrainedClassifier(model, calibration, {}, identity_of(model, calibration)))


def process_reward(rank: float = 0.9) -> ProcessReward:
    """A process reward with a held-out rank correlation of `rank`; below 0.6 it falls short."""
    verdict = HeldOutVerdict(Interval(rank, 0.0, 1.0, 10), 0.9, 0.05, 10, AcceptanceThresholds())
    model = reward_net()
    return ProcessReward(model, verdict, {}, process_identity(model, verdict))


def stored_process(path: Path, rank: float = 0.9) -> Path:
    """Save a process reward."""
    return save_process(path, process_reward(rank))
