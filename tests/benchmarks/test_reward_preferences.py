"""The cells of rewards from preferences, at tiny size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.rewards import preferences
from benchmarks.rewards.bench import aggregate, table
from benchmarks.rewards.preferences import (
    DRIVE,
    FAMILIES,
    PRESSED,
    PUSH,
    RETURN_DEVIATION,
    HeavyFoot,
    efficiency,
    offline,
    online,
    recorded,
    relabeled,
)
from robotrl.datasets.reader import read_dataset
from robotrl.registry import make_sim
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
        behaviors=tuple(one._replace(episodes=8) for one in PUSH.behaviors),
        length=5,
        online=("peg-insert-rlpd",),
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
        short = ("--algo.updates", "2", "--algo.batch", "8", *(("--algo.engine", "eager") if arm != "clone" else ()))
        found |= {f"{arm}_{k}": x for k, x in offline(family, arm, 0, out, *FAST, *short).items()}
        assert 0 <= found[f"{arm}_success"] <= 1
    true, learned = (read_dataset(relabeled(dataset, family, arm, 0, out)) for arm in ("true", "return"))
    for one in (true, learned):
        returns = np.add.reduceat(one.frames("next.reward").reshape(-1).astype(np.float64), one.offsets[:-1])
        assert returns.std() == pytest.approx(RETURN_DEVIATION, rel=1e-3)
    assert (true.frames("action") == learned.frames("action")).all()
    assert not (true.frames("next.reward") == learned.frames("next.reward")).all()
    found |= efficiency(dataset, family, 0, counts=(20,))
    assert {f"rank_{truth}_{form}_20" for truth in ("return", "regret") for form in ("return", "regret")} <= set(found)
    shown = [{"method": "preferences-push", "task": "bev/drive", "seed": 0, "result": found}]
    text = table({"figures": {key: one.to_json() for key, one in aggregate(shown).items()}})
    assert "| IQL on `mujoco/push` | true return |" in text and preferences.LABELS == 500


def test_online_arms_differ_in_their_reward_alone(out: Path) -> None:
    small = ("--algo.env-steps", "64", "--algo.warmup", "16", "--algo.batch", "8", "--algo.engine", "eager")
    for arm in ("true", "return"):
        found = online(FAMILIES["push"], arm, 0, out, *small, *FAST[:4], "--sim.num-envs", "4")
        assert 0 <= found["success"] <= 1 and found["train_s"] > 0


def test_prior_data_and_env_steps_have_the_same_reward(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, ...]] = []
    monkeypatch.setattr(preferences, "trained", lambda family, out, seed, *arguments: given.append(arguments) or {})
    family = FAMILIES["push"]
    dataset = recorded(family, out, 0)
    for arm in ("true", "return"):
        online(family, arm, 0, out)
        words = given[-1]
        weight = float(words[[word.endswith(".weight") for word in words].index(True) + 1])
        prior = read_dataset(relabeled(dataset, family, arm, 0, out)).frames("next.reward")
        if arm == "true":
            assert np.allclose(prior, weight * dataset.frames("next.reward"), rtol=1e-5)
        assert weight > 0 and ("task" if arm == "true" else "preferences") in words
    online(DRIVE, "regret", 0, out)
    assert {"--reward.preferences.labels", "500", "scalars", "regret"} <= set(given[-1])
    online(DRIVE, "true", 0, out)
    assert "--reward" not in given[-1]


def test_a_heavy_foot_presses_the_accelerator_through_the_whole_episode() -> None:
    sim = make_sim(DRIVE.sim, num_envs=4, seed=0, **DRIVE.options)
    obs = {key: value.numpy() for key, value in sim.reset().items()}
    driver, calm = HeavyFoot(sim, 0), sim.make_expert(0.05, 0.0, "brisk", 0)
    started = np.ones(4, bool)
    for _ in range(3):
        pressed = driver.act(obs, started) - calm.act(torch.from_numpy(started)).numpy()
        free = pressed[:, 1][np.abs(driver._pressed - pressed[:, 1]) < 1e-6]
        assert (pressed[:, 0] == 0).all() and (pressed[:, 1] >= 0).all()
        assert (driver._pressed >= PRESSED[0]).all() and (free <= PRESSED[1] + 1e-6).all()
        started = np.zeros(4, bool)
    sim.close()
