"""A training with a reward in words, by the real command; what it reads is compared when it goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from robotrl.cli.main import main
from robotrl.rewards.vlm.encoder import WEIGHTS_FILE
from robotrl.run.logs import read_scalars
from tests.kits.small_clip import BAD, GOOD, stored_clip

pytest.importorskip("open_clip")

TINY = [
    *("--sim", "bev/drive", "--sim.obs", "both", "--sim.agents", "4", "--sim.limit-s", "1", "--sim.num-envs", "4"),
    *("--sim.scenarios", "straight", "--algo", "ppo", "--policy", "beta", "--algo.num-steps", "8"),
    *("--algo.engine", "eager", "--algo.minibatch", "16"),
    *("--evaluation.episodes", "4", "--reward", "contrast", "--reward.contrast.good", *GOOD),
    *("--reward.contrast.bad", *BAD, "--reward.contrast.view", "near", "--reward.contrast.pixels", "16"),
    *("--reward.contrast.calibration", "16", "--reward.contrast.synthesis", "driving"),
]


def test_it_trains_by_its_name_and_another_model_is_not_resumed_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    stored_clip(Path("clip"))
    train = ["train", *TINY, "--reward.contrast.model", "clip", "--algo.env-steps", "64", "--run-dir", "run"]
    assert main(train) == 0, capsys.readouterr().err
    means = [row["reward/contrast"] for row in read_scalars(Path("run", "scalars.jsonl"))]
    assert len(means) == 2 and all(0 <= mean <= 1 for mean in means)
    other = stored_clip(Path("other"), seed=1)
    Path("clip", WEIGHTS_FILE).write_bytes((other / WEIGHTS_FILE).read_bytes())
    capsys.readouterr()
    code = main(["train", "--resume", "run"])
    assert code == 2
    assert "reward.contrast.model clip holds something else" in capsys.readouterr().err.splitlines()[-1]


def test_a_run_scores_in_the_background_and_logs_what_the_service_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    stored_clip(Path("clip"))
    late = ["--reward.contrast.background", "--reward.contrast.every", "2", "--reward.contrast.service.batch-size", "8"]
    train = ["train", *TINY, *late, "--reward.contrast.model", "clip", "--algo.env-steps", "64", "--run-dir", "run"]
    assert main(train) == 0, capsys.readouterr().err
    rows = read_scalars(Path("run", "scalars.jsonl"))
    assert [row["scoring/lost"] for row in rows] == [0.0, 0.0]
    assert rows[-1]["scoring/contrast/requests_paid"] + 64 * rows[-1]["scoring/contrast/hit_rate"] >= 16
    assert rows[-1]["reward_valid/contrast"] > 0.5 and rows[-1]["scoring/contrast/invalid"] == 0
    # deployment needs nothing of the reward: neither the model's files nor the package
    Path("clip").rename("away")
    code = "import sys; sys.modules['open_clip'] = None; import robotrl; print(robotrl.load_policy('run').horizon)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert found.stdout == "1\n", found.stderr


def test_a_model_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *TINY, "--reward.contrast.model", "nowhere", "--run-dir", "run"]) == 2
    assert "model 'nowhere' is unknown" in capsys.readouterr().err.splitlines()[-1]
    assert not Path("run").exists()
