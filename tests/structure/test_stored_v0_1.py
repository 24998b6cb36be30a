"""Everything that version 0.1 stored still opens: its runs resume and are evaluated, data is read, the bundle deploys.

The files were written by `data/v0_1/write.py` at the commit that its first line names, and are never written again.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from robotrl.api.evaluation import evaluate_path
from robotrl.cli.main import main
from robotrl.deploy.control.run import run_control
from robotrl.replay.buffer import Replay
from robotrl.run.directory import Run
from robotrl.run.logs import read_scalars
from robotrl.run.policy_checkpoint import load_policy
from tests.kits.paths_kit import DATA

STORED = DATA / "v0_1"
ENDS = json.loads((STORED / "expected.json").read_text())
CLOSE = 1e-3
"""Of actions in [-1, 1]: processors round differently, and a few updates carry that on."""


@pytest.fixture
def stored(tmp_path, monkeypatch) -> Path:
    """A copy of the files, in which one stands: runs name their dataset relative to it."""
    folder = tmp_path / "stored"
    shutil.copytree(STORED, folder)
    for name in ("replay", "rlpd-replay"):
        shutil.unpack_archive(folder / f"{name}.tar.gz", folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.filterwarnings("ignore:.*goes on with other software:UserWarning")
@pytest.mark.parametrize("name", sorted(ENDS))
def test_a_run_resumes_and_ends_where_version_0_1_ended(stored, name):
    assert main(["train", "--resume", name]) == 0
    wanted = ENDS[name]
    checkpoint = Run.open(Path(name)).latest()
    assert checkpoint is not None
    assert checkpoint.step == wanted["step"]
    assert read_scalars(Path(name) / "scalars.jsonl")[-1]["env_steps"] == wanted["env_steps"]
    policy = load_policy(name, which="latest")
    obs = {key: torch.full((1, *spec.shape), 0.1) for key, spec in policy.observation_spec.items()}
    with torch.no_grad():
        chunk = policy.act(obs, None, None, "mean").chunk[0]
    np.testing.assert_allclose(chunk.numpy(), wanted["chunk"], atol=CLOSE)


@pytest.mark.parametrize("name", sorted(ENDS))
def test_a_run_is_evaluated(stored, name):
    result = evaluate_path(Path(name), episodes=4, num_envs=4)
    assert len(result.ids) == 4
    assert (result.length > 0).all()
    assert np.isfinite(result.returns).all()


def test_the_dataset_is_read_and_verified(stored, capsys):
    assert main(["inspect", "demos"]) == 0
    out = capsys.readouterr().out
    assert "158 at 20 Hz" in out
    assert "every file has the SHA-256" in out


def test_the_replay_holds_what_was_put_in(stored):
    replay = Replay.open(Path("replay"))
    try:
        view = replay.view(replay.indices(), 1, 0.99)
        x, after = view.obs["x"].flatten(), view.next_obs["x"].flatten()
        t = (x % 1000).long()
        assert 48 in t.tolist()
        # an episode ends at every 7th and at every 11th step, with a last observation of its own
        ends = (t % 7 == 6) | (t % 11 == 10)
        assert ends.any()
        torch.testing.assert_close(after, torch.where(ends, x + 0.5, x + 1.0))
        torch.testing.assert_close(view.reward.flatten(), torch.where(x < 1000, t, -t).float())
    finally:
        replay.close()


def test_the_bundle_is_evaluated_and_controls_the_robot(stored):
    assert main(["inspect", "bundle"]) == 0
    evaluated = evaluate_path(Path("bundle"), episodes=4, num_envs=4, sim="mujoco/peg-insert")
    assert len(evaluated.ids) == 4
    report = run_control("bundle", "sim:mujoco/peg-insert", episodes=1, limit_s=1.0)
    assert len(report.episodes) == 1
