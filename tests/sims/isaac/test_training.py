"""Training on a stand-in, from the command line to a bundle."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import robotrl
from robotrl.cli.main import main
from robotrl.run.logs import read_scalars

SHORT = ["--algo.engine", "eager", "--algo.num-steps", "16", "--algo.minibatch", "64", "--sim.num-envs", "8"]


def train(run: Path, source: str, kwargs: dict[str, Any], *more: str) -> list[dict[str, float]]:
    sim = f"isaac/tests.kits.isaac_standins:{source}"
    arguments = ["--sim", sim, "--algo", "ppo", "--sim.kwargs", json.dumps(kwargs), "--run-dir", str(run)]
    assert main(["train", *arguments, *SHORT, *more]) == 0
    return read_scalars(run / "scalars.jsonl")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("isaac") / "run"
    train(path, "lab", {"limit": 30, "described": True}, "--algo.env-steps", "512", "--checkpoint-every", "1")
    return path


def test_rollouts_stand_for_evaluations(run):
    rows = read_scalars(run / "scalars.jsonl")
    assert len(rows) == 4
    assert not any(key.startswith("eval_") and key not in ("eval_s", "eval_share") for row in rows for key in row)
    ended = [row for row in rows if math.isfinite(row["rollout_return"])]
    assert ended
    # the environment's own log of its episodes agrees with the learner's count
    assert ended[-1]["sim/Episode_Reward/forward"] == pytest.approx(ended[-1]["rollout_return"], rel=1e-4)
    best = max(ended, key=lambda row: row["rollout_return"])
    assert f"{int(best['step']):09d}" in (run / "checkpoints" / "best.json").read_text()


def test_the_bundle_has_joint_names_scales_and_default_pose(run, tmp_path):
    robotrl.export(run, tmp_path / "hopper.bundle")
    manifest = json.loads((tmp_path / "hopper.bundle" / "manifest.json").read_text())
    action = manifest["action"]
    assert action["kind"] == "position"
    assert (action["names"], action["units"]) == (["thigh", "leg", "foot"], ["rad"] * 3)
    # the default pose and 0.5 rad on each side of it, which action_bound 1 asks for
    assert action["scale"] == pytest.approx([0.5] * 3)
    assert action["offset"] == pytest.approx([0.1, -0.2, 0.0])
    assert action["default_pose"] == [0.1, -0.2, 0.0]
    assert (action["stiffness"], action["damping"]) == ([30.0, 20.0, 10.0], [3.0, 2.0, 1.0])
    assert manifest["safety"]["neutral"] == pytest.approx([0.1, -0.2, 0.0])
    (port,) = [port for port in manifest["io"]["inputs"] if port["role"] == "observation"]
    assert port["name"] == "policy"
    assert port["names"][:4] == ["height", "pitch", "joint_pos_thigh", "joint_pos_leg"]
    assert port["units"][4:6] == ["rad", "2 rad/s"]
    assert manifest["timing"]["control_period_s"] == 0.008


def test_training_on_isaac_gyms_surface(tmp_path):
    rows = train(tmp_path / "run", "vec_task", {"limit": 20}, "--algo.env-steps", "384")
    assert sum(row["rollout_episodes"] for row in rows) > 0
    assert all(math.isfinite(row["pg_loss"]) for row in rows)


@pytest.mark.parametrize(
    ("option", "value"), [("stop-at-success", "0.9"), ("evaluation.second-look", "5"), ("stop-at-return", "5")]
)
def test_what_goes_by_evaluations_needs_them(option, value, tmp_path, capsys):
    arguments = ["--sim", "isaac/tests.kits.isaac_standins:lab", "--algo", "ppo", "--run-dir", str(tmp_path / "r")]
    assert main(["train", *arguments, f"--{option}", value]) == 2
    said = capsys.readouterr().err
    assert option.replace("-", "_") in said and "evaluation.episodes is 0" in said


def test_evaluations_are_refused_with_the_way_out(tmp_path, capsys):
    arguments = ["--sim", "isaac/tests.kits.isaac_standins:lab", "--algo", "ppo", "--run-dir", str(tmp_path / "r")]
    assert main(["train", *arguments, "--evaluation.episodes", "8"]) == 2
    said = capsys.readouterr().err
    assert "lacks HasStateIds" in said and "draws its starts itself" in said and "evaluation.episodes 0" in said
