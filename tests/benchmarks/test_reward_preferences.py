"""The cells of rewards from preferences, at tiny size."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rewards import preferences
from benchmarks.rewards.bench import aggregate, table
from benchmarks.rewards.preferences import FAMILIES, PUSH, efficiency, offline, online, recorded, relabeled
from robotrl.datasets.reader import read_dataset
from robotrl.rewards.preferences.training import PreferenceTrainingCfg
from robotrl.rewards.preferences.values import ValueFitCfg

FAST = ("--evaluation.episodes", "4", "--evaluation.num-envs", "4", "--algo.updates-per-iteration", "2")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("preferences")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few short episodes."""
    tiny = PUSH._replace(
        options={"reward": "shaped", "limit_s": 1.0},
        episodes=16,
        length=5,
        training=PreferenceTrainingCfg(members=1, updates=4, check_every=2),
        values=ValueFitCfg(updates=4),
    )
    monkeypatch.setitem(FAMILIES, "push", tiny)


def test_each_arm_learns_from_the_same_data_with_its_own_reward(out: Path) -> None:
    family = FAMILIES["push"]
    dataset = recorded(family, out, 0)
    assert dataset.num_episodes == 16
    found = {}
    for arm in ("clone", "true", "return"):
        batch = ("--algo.batch", "8", *(("--algo.engine", "eager") if arm != "clone" else ()))
        found |= {f"{arm}_{k}": x for k, x in offline("push", arm, 0, out, 2, None, *FAST, *batch).items()}
        assert 0 <= found[f"{arm}_success"] <= 1
    true, learned = (read_dataset(relabeled(dataset, family, arm, 0, out)) for arm in ("true", "return"))
    assert true.frames("next.reward").std() == pytest.approx(1.0, abs=1e-3)
    assert (true.frames("action") == learned.frames("action")).all()
    assert not (true.frames("next.reward") == learned.frames("next.reward")).all()
    found |= efficiency(dataset, family, 0, counts=(20,))
    assert {f"rank_{truth}_{form}_20" for truth in ("return", "regret") for form in ("return", "regret")} <= set(found)
    shown = [{"method": "preferences-push", "task": "bev/drive", "seed": 0, "result": found}]
    text = table({"figures": {key: one.to_json() for key, one in aggregate(shown).items()}})
    assert "| IQL on `mujoco/push` |" in text and preferences.LABELS == 500


def test_online_arms_differ_in_their_reward_alone(out: Path) -> None:
    small = ("--algo.env-steps", "64", "--algo.warmup", "16", "--algo.batch", "8", "--algo.engine", "eager")
    for arm in ("true", "return"):
        found = online("push", arm, 0, out, *small, *FAST[:4], "--sim.num-envs", "4", episodes=16)
        assert 0 <= found["success"] <= 1 and found["train_s"] > 0
