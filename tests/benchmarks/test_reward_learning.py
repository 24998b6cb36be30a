"""The cells of learning from language and of guidance, at tiny size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rewards import guidance, language
from benchmarks.rewards.bench import GUIDANCE, LANGUAGE, aggregate, table
from benchmarks.rewards.guidance import STUDIES, arm_cfg, compared
from benchmarks.rewards.model import model_folder, trained


def shown(method: str, result: dict[str, Any]) -> str:
    cell = {"method": method, "task": "mujoco/push", "seed": 0, "result": result}
    return table({"figures": {key: one.to_json() for key, one in aggregate([cell]).items()}})


def test_arms_are_compared_at_the_level_of_the_learner_alone() -> None:
    def points(*success: float) -> list[dict[str, float]]:
        return [{"env_steps": 1000.0 * (i + 1), "success": rate} for i, rate in enumerate(success)]

    # 95 % of the mean of the last three, 0.8, is 0.76
    found = compared(points(0.1, 0.5, 0.7, 0.8, 0.8, 0.8), points(0.2, 0.77, 0.9, 0.9, 0.9, 0.9))
    assert found["alone_final"] == pytest.approx(0.8) and found["guided_final"] == pytest.approx(0.9)
    assert (found["alone_steps"], found["guided_steps"], found["steps_share"]) == (4000.0, 2000.0, 0.5)
    assert compared(points(0.8, 0.8, 0.8), points(0.1, 0.1, 0.1))["steps_share"] is None


@pytest.mark.parametrize("name", STUDIES)
def test_arms_differ_in_the_teacher_alone(name: str, tmp_path: Path) -> None:
    alone, guided = (arm_cfg(STUDIES[name], arm, 0, tmp_path) for arm in ("alone", "guided"))
    assert replace(guided, algo=replace(guided.algo, guidance=alone.algo.guidance)) == alone
    assert guided.algo.guidance.on and not alone.algo.guidance.on


def test_a_cell_of_guidance(tmp_path: Path) -> None:
    tiny = "--sim mujoco/push --sim.reward shaped --sim.num-envs 4 --algo rlpd --algo.warmup 16"
    study = STUDIES["push"]._replace(
        recipe=f"{tiny} --algo.batch 8 --algo.engine eager --policy.hidden 8",
        env_steps=64,
        every_env_steps=32,
        episodes=4,
    )
    found = guidance.run("guidance-push", 0, tmp_path, study, demos=6)
    assert 0 <= found["teacher"] <= 1 and len(found["alone_curve"]) >= 2
    text = shown("guidance-push", found)
    assert f"| {GUIDANCE['guidance-push']} |" in text


def test_a_cell_of_language_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("open_clip")
    flags = (
        "--frames",
        "100",
        "--num-envs",
        "8",
        "--updates",
        "2",
        "--text-updates",
        "2",
        "--batch",
        "4",
        "--image-pixels",
        "32",
    )
    trained(model_folder(tmp_path, 0, *flags, sim="mujoco/push"), 0, *flags, sim="mujoco/push")
    task = language.TASK._replace(demos=6, updates={"flow": 2})
    monkeypatch.setattr(language, "TASK", task)
    found = language.run(LANGUAGE, 0, tmp_path, tmp_path, flags, env_steps=640, episodes=4)
    assert {"base", "own_success", "language_success", "gain_share"} <= set(found)
    assert "DSRL on `mujoco/push`" in shown(LANGUAGE, found)
