"""Memory of the steps that preferences are asked about: what it takes is checked and said beforehand."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from robotrl.errors import ConfigError
from robotrl.rewards.dual_pathway.source import STANDING_BYTES
from robotrl.rewards.dual_pathway.standing import StandingAnswers
from robotrl.rewards.preferences import memory
from robotrl.rewards.preferences.memory import StepMemory
from robotrl.rewards.preferences.online import OnlinePreferences
from robotrl.rewards.preferences.preferences import PreferencesCfg
from robotrl.rewards.preferences.taken_clips import ClipTaker
from robotrl.rewards.source import RewardSetup
from robotrl.rewards.vlm.clips import ClipMemory, ClipShape
from robotrl.rewards.vlm.recent import RecentSteps
from robotrl.rewards.vlm.source import RECENT_BYTES, check_kept_steps
from robotrl.spec import Spec
from tests.kits.preference_kit import LABELING, TRAINING
from tests.kits.refusals import raises_naming
from tests.kits.walk_sim import Walk

ENVS = 4
SIDE, CHANNELS = 96, 10
RASTER = Spec(
    (SIDE, SIDE, CHANNELS),
    tuple(f"layer{k}" for k in range(CHANNELS)),
    ("1",) * CHANNELS,
    (0.0,) * CHANNELS,
    (255.0,) * CHANNELS,
    dtype="uint8",
)
STEP_BYTES = SIDE * SIDE * CHANNELS + 8 + 4 + 11
"""Raster, two numbers, an action, and what else is kept."""


class RasterWalk(Walk):
    """A walk that is seen from above, too."""

    cameras = ("side",)

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.observation_spec = {**self.observation_spec, "raster": RASTER}


def cfg_of(**changes: Any) -> PreferencesCfg:
    return replace(PreferencesCfg(labeler=LABELING, training=TRAINING, memory=400), **changes)


def built(**changes: Any) -> OnlinePreferences:
    found = cfg_of(**changes).build(RasterWalk(ENVS), RewardSetup())
    assert isinstance(found, OnlinePreferences)
    return found


def test_pictures_are_kept_only_where_they_are_asked_for_or_there_is_nothing_else() -> None:
    assert built().obs_keys == ("walk",)
    assert built(keys=("raster",)).obs_keys == ("raster",)
    sim = RasterWalk(ENVS)
    del sim.observation_spec["walk"]
    found = cfg_of().build(sim, RewardSetup())
    assert isinstance(found, OnlinePreferences) and found.obs_keys == ("raster",)


def test_steps_that_do_not_fit_are_refused_by_name_before_they_are_reserved() -> None:
    with raises_naming(ConfigError, "reward.preferences.memory", 10**9, f"{STEP_BYTES:,}", "reward.preferences.keys"):
        built(memory=10**9, keys=("walk", "raster"))


def test_much_memory_is_warned_of_with_its_size_and_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LARGE_BYTES", 400 * STEP_BYTES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        built(keys=("walk", "raster"))
    with pytest.warns(UserWarning) as caught:
        built(keys=("walk", "raster"), memory=100 * 400)
    said = str(caught[0].message)
    size = f"{40_000 * STEP_BYTES / 1e9:.1f} GB"
    named = ("reward.preferences.memory is 40000", size, "checkpoint", "'raster'", "reward.preferences.keys")
    assert len(caught) == 1 and all(part in said for part in named), said


def test_the_checked_sizes_are_those_that_are_reserved() -> None:
    specs = {**Walk(ENVS).observation_spec, "raster": RASTER}
    kept = StepMemory(specs, Walk(ENVS).action_spec, ENVS, 3, "reward.preferences")
    assert sum(x.element_size() * x.numel() for x in kept._columns.values()) == 3 * ENVS * STEP_BYTES
    recent = RecentSteps(ENVS, 7, 2)
    arrays = (recent._picture, recent.notes, recent.reward, recent.valid)
    assert sum(x.nbytes for x in arrays) == 7 * ENVS * (RECENT_BYTES + 4 * 2)
    standing = StandingAnswers(ENVS, 7, 1)
    tables = (standing._refers, standing._began_at, standing.value, standing.source)
    assert sum(x.element_size() * x.numel() for x in tables) == 7 * ENVS * STANDING_BYTES


def test_other_tables_that_do_not_fit_are_refused_by_name() -> None:
    with raises_naming(ConfigError, "reward.vlm-score.frames", 64, "pictures", "fewer"):
        ClipMemory(100_000, ClipShape(64, 1000), 1, (2048, 2048), 0, "reward.vlm-score")
    with raises_naming(ConfigError, "reward.contrast.kept_steps", 10_000_000, "fewer"):
        check_kept_steps("contrast", 10_000_000, 100_000 * RECENT_BYTES)
    huge = replace(LABELING, frames=1_000_000, pixels=2048)
    with raises_naming(ConfigError, "reward.preferences.labeler.frames", 1_000_000, "fewer"):
        ClipTaker(Seen(ENVS), huge, seed=0)


class Seen(Walk):
    """A walk with a camera."""

    cameras = ("side",)

    def render(self, ids: Any, camera: str, width: int, height: int) -> np.ndarray:
        return torch.zeros(len(list(ids)), height, width, 3, dtype=torch.uint8).numpy()
