"""mjlab, whose surface is Isaac Lab's, trains through the adapter; it needs an environment of its own, see the page."""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path

import pytest

PYTHON = os.environ.get("ROBOTRL_MJLAB_PYTHON", "")
pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="ROBOTRL_MJLAB_PYTHON names no Python that has mjlab"),
    pytest.mark.timeout(1500),  # kernels are compiled at the first step
]
NUM_ENVS, NUM_STEPS = 32, 24
ROBOTRL = "import sys; from robotrl.cli.main import main; sys.exit(main(sys.argv[1:]))"


def in_mjlab(*arguments: str) -> None:
    """Run robotrl's command line beside mjlab."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    done = subprocess.run(
        [PYTHON, "-c", ROBOTRL, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=1400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # mjlab's last observations are exact
    assert "lacks HasFinalObs" not in done.stderr


def train(task: str, run: Path, iterations: int, *more: str) -> list[dict[str, float]]:
    arguments = {
        "--sim": f"isaac/mjlab:{task}",
        "--algo": "ppo",
        "--run-dir": str(run),
        "--sim.kwargs": '{"device": "cpu"}',
        "--sim.num-envs": str(NUM_ENVS),
        "--algo.num-steps": str(NUM_STEPS),
        "--algo.env-steps": str(iterations * NUM_ENVS * NUM_STEPS),
        "--algo.minibatch": str(NUM_ENVS * NUM_STEPS // 4),
        "--algo.engine": "eager",
    }
    in_mjlab("train", *(word for pair in arguments.items() for word in pair), *more)
    return [json.loads(line) for line in (run / "scalars.jsonl").read_text().splitlines()]


def test_cartpole_trains(tmp_path):
    rows = train("Mjlab-Cartpole-Balance", tmp_path / "cartpole", 4)
    assert len(rows) == 4
    assert all(math.isfinite(row["pg_loss"]) and math.isfinite(row["value_loss"]) for row in rows)
    assert any("sim/Episode_Reward/smooth_reward" in row for row in rows)


def test_go1_trains_and_its_bundle_has_joint_names_scales_and_default_pose(tmp_path):
    rows = train("Mjlab-Velocity-Flat-Unitree-Go1", tmp_path / "go1", 2)
    assert len(rows) == 2
    assert all(math.isfinite(row["pg_loss"]) for row in rows)
    in_mjlab("export", str(tmp_path / "go1"), "--out", str(tmp_path / "go1.bundle"))
    manifest = json.loads((tmp_path / "go1.bundle" / "manifest.json").read_text())
    action = manifest["action"]
    assert action["kind"] == "position"
    assert len(action["names"]) == 12
    assert all(name.endswith("_joint") for name in action["names"])
    assert action["default_pose"] == pytest.approx(action["offset"])
    assert all(scale > 0 for scale in action["scale"])
    (port,) = [port for port in manifest["io"]["inputs"] if port["role"] == "observation"]
    assert port["name"] == "actor"
    assert port["names"][0].startswith("base_")
