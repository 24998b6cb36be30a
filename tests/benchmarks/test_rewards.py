"""The bench of rewards in words, at tiny size."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.kit.figures import Figure
from benchmarks.rewards import policies, scores, service
from benchmarks.rewards.bench import ALIGNMENT, BASELINES, CLIP, DIRECTIONS, SERVICE, aggregate, cells, table
from benchmarks.rewards.model import model_folder, trained
from robotrl.errors import ConfigError
from robotrl.registry import make_sim
from robotrl.rewards.function import FunctionRewardCfg
from robotrl.rewards.source import LateRewardSource, RewardSetup, SimTransition

pytest.importorskip("open_clip")
TINY = (
    "--frames",
    "100",
    "--num-envs",
    "16",
    "--updates",
    "2",
    "--text-updates",
    "2",
    "--batch",
    "4",
    "--image-pixels",
    "32",
)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a table's work, with a model."""
    folder = tmp_path_factory.mktemp("rewards")
    trained(model_folder(folder, 0, *TINY), 0, *TINY)
    return folder


def test_the_model_is_judged_by_every_score_and_direction(out: Path) -> None:
    found = scores.run(CLIP, 0, out, out, *TINY, frames=200)
    assert found["frames"] > 20
    for name in ("contrast", "contrast-mean", "goal-baseline", "lord", "threshold"):
        assert 0 <= found[f"auc_{name}"] <= 1
        assert {f"auc_{name}_{where}" for where in DIRECTIONS} <= set(found)
    shown = table({"figures": {key: one.to_json() for key, one in aggregate([cell(CLIP, found)]).items()}})
    assert "| `contrast` |" in shown and "| `lord` |" in shown


def cell(method: str, result: dict[str, object]) -> dict[str, object]:
    return {"method": method, "task": "bev/drive", "seed": 0, "result": result}


def test_the_service_is_timed_beside_the_sim_alone(out: Path) -> None:
    before = os.sched_getaffinity(0)
    try:
        found = service.run(SERVICE, 0, out, out, rounds=1, steps=10)
    finally:
        os.sched_setaffinity(0, before)
    assert all(Figure.from_json(found[f"service_{name}"]).ratio for name in ("alone", "service", "blocking"))
    assert 0 < found["service_scored"]["value"] <= 100 and 0.1 < found["service_memory"]["value"] < 4
    shown = table({"figures": {key: one.to_json() for key, one in aggregate([cell(SERVICE, found)]).items()}})
    assert shown.count("\n") == 8


def test_arms_differ_in_their_reward_alone(out: Path) -> None:
    state, contrast, carl = (policies.cfg_of(arm, 0, out, 512, *TINY) for arm in ("state", "contrast", "carl"))
    assert [one.name for one in (*state.rewards, *contrast.rewards)] == ["function", "contrast"] and not carl.rewards
    assert state.sim == contrast.sim and state.algo == contrast.algo == carl.algo
    assert contrast.rewards[0].cfg.background


def test_every_arm_builds_its_rewards(out: Path) -> None:
    model = model_folder(out, 0, *TINY)
    for arm in ("contrast", *(name for name in BASELINES if name != ALIGNMENT)):
        sim = make_sim("bev/drive", 2, 0)
        for one in policies.rewards_of(arm, model):
            # one arm starts the process that scores; it is the same for all, and takes its time to start
            cfg = one.cfg if arm == "contrast" or one.name == "function" else replace(one.cfg, background=False)
            source = cfg.build(sim, RewardSetup())
            if isinstance(source, LateRewardSource):
                source.close()
        assert policies.rewards_of(arm, model)[-1].name == arm
    with pytest.raises(ConfigError, match="--actions"):
        policies.rewards_of(ALIGNMENT, model)[-1].cfg.build(sim, RewardSetup())


def test_speed_and_lane_terms_are_those_of_a_clear_road(out: Path) -> None:
    import torch

    sim = make_sim("bev/drive", 2, 0)
    source = FunctionRewardCfg("benchmarks.rewards.policies:speed_and_lane").build(sim, RewardSetup())
    obs = {key: x.clone() for key, x in sim.reset(seed=0).items()}
    for _ in range(20):
        step = sim.step(torch.tensor([[0.0, 1.0]] * 2))
    value = source.score(SimTransition(obs, torch.zeros(2, 2), step.obs, step)).value
    ego = sim.core.world.egos
    speed = 1 - abs(ego["v"] - 10) / 10
    lane = (1 - abs(ego["d"]) / 3) * (1 - abs(ego["psi"]) * 2 / 3.14159265)
    assert value.tolist() == pytest.approx((speed * lane).tolist(), abs=1e-4)


def test_cells_are_planned_for_three_seeds() -> None:
    keys = [one.key for one in cells(quick=False)]
    assert len(keys) == len(set(keys)) == 1 + 3 * 15 + 5
    assert [one.key for one in cells(quick=True)] == ["service--bev-drive--0", "clip--bev-drive--0"]
