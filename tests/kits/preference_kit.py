"""Pairs of segments of random walks, and labelers, small enough for tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robotrl.datasets.reader import Dataset, read_dataset
from robotrl.rewards.network import RewardNetCfg
from robotrl.rewards.preferences.ensemble import HeldOutAnswers, LearnedPreferences, RewardEnsemble
from robotrl.rewards.preferences.labelers.desk import LabelingCfg
from robotrl.rewards.preferences.labelers.labels import Question
from robotrl.rewards.preferences.offline import OfflinePreferencesCfg
from robotrl.rewards.preferences.segments import StepPool
from robotrl.rewards.preferences.stored import preferences_identity, save_preferences
from robotrl.rewards.preferences.training import PreferenceTrainingCfg
from robotrl.rewards.preferences.values import ValueFitCfg
from robotrl.spec import Spec
from robotrl.transforms import TransformGroup
from tests.kits.off_policy_kit import write_random_walks

TRAINING = PreferenceTrainingCfg(members=2, model=RewardNetCfg(hidden=(16,)), updates=200, check_every=20, lr=5e-3)
LABELING = LabelingCfg(length=3, frames=2, pixels=8)
OFFLINE = OfflinePreferencesCfg(
    labels=120, labeler=LABELING, training=TRAINING, values=ValueFitCfg(gamma=0.9, updates=300)
)


def stored_preferences(path: Path) -> Path:
    """Save preferences for the walk, untrained."""
    torch.manual_seed(0)
    spec = Spec((2,), ("pos_x_w", "time"), ("m", "step"), (-2.0, 0.0), (2.0, 6.0))
    action = Spec((1,), ("step_x_w",), ("m",), (-1.0,), (1.0,))
    ensemble = RewardEnsemble.create({"walk": spec}, action, TransformGroup((), ()), TRAINING.model, 2, "return").eval()
    held_out = HeldOutAnswers(0, float("nan"), float("nan"), 1.0)
    identity = preferences_identity(ensemble, 0.1, held_out)
    return save_preferences(path, LearnedPreferences(ensemble, 0.1, held_out, {}, identity))


def walks(path: Path, episodes: int = 60) -> Dataset:
    return read_dataset(write_random_walks(path, episodes))


def pool() -> StepPool:
    """Two episodes by hand: four steps that end by the task, three that are cut off."""
    return StepPool(
        {"walk": torch.arange(14.0).view(7, 2)},
        torch.arange(7.0)[:, None],
        torch.tensor([1.0, 2.0, 3.0, 4.0, 10.0, 20.0, 30.0]),
        torch.tensor([4, 4, 4, 4, 7, 7, 7]),
        torch.tensor([True] * 4 + [False] * 3),
    )


def question(number: int, advantage: float = 1.0, clips: Any = None) -> Question:
    return Question(bytes([number] * 16), advantage, clips)


def clips_of(first: int, second: int, frames: int = 2, size: int = 8) -> np.ndarray:
    """Clips of two shades."""
    shown = np.zeros((2, frames, size, size, 3), np.uint8)
    shown[0], shown[1] = first, second
    return shown


def by(name: Any, **changes: Any) -> LabelingCfg:
    return replace(LABELING, by=name, **changes)
