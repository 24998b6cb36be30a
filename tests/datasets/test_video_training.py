"""From the scripted expert to a cloned policy through the commands, with the pictures as video on the way."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robotrl.cli.main import main
from robotrl.datasets.lerobot import read_dataset
from robotrl.registry import make_sim
from robotrl.replay.buffer import Replay
from robotrl.rewards.labels import replay
from robotrl.rollout.evaluate import ExpertActor, run_episodes
from robotrl.run.checkpoint import read_checkpoint
from robotrl.utils.installation import install_line

pytest.importorskip("av", reason="could not import 'av': wheels of PyAV exist for common platforms only")
KEY = "observation.image_flat_near"
OPTIONS = [
    *("--sim.image", "flat_near", "--sim.image-size", "32"),
    *("--sim.families", "point", "lift", "--sim.limit-s", "2.0"),
]
SIM = {"image": ("flat_near",), "image_size": 32, "families": "point,lift", "limit_s": 2.0}
TINY = {
    "policy.vision-width": 16,
    "policy.vision-depth": 2,
    "policy.vision-heads": 2,
    "policy.width": 32,
    "policy.depth": 2,
    "policy.heads": 2,
    "policy.mlp": 64,
    "policy.bins": 32,
    "algo.updates": 4,
    "algo.updates-per-iteration": 2,
    "algo.batch": 8,
    "evaluation.episodes": 2,
    "evaluation.num-envs": 2,
}


@pytest.fixture(scope="module")
def demos(tmp_path_factory) -> dict[str, Path]:
    """The same six demonstrations, stored in each way by the command."""
    root = tmp_path_factory.mktemp("demos")
    for pictures in ("numbers", "video", "video-exact"):
        told = ["--out", str(root / pictures), "--episodes", "6", "--pictures", pictures, *OPTIONS]
        assert main(["demos", "mujoco/tabletop", *told]) == 0
    return {path.name: path for path in root.iterdir()}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ROBOTRL_CACHE", str(tmp_path / "cache"))


def trained(dataset: Path, run: Path) -> dict[str, Any]:
    """Weights of a tiny policy that the command cloned."""
    sizes = [word for name, value in TINY.items() for word in (f"--{name}", str(value))]
    told = ["--dataset", str(dataset), "--run-dir", str(run), *OPTIONS, *sizes]
    assert main(["train", "tabletop-bc-token", *told]) == 0
    return read_checkpoint(run / "checkpoints" / "step_000000002").tree["policy"]["weights"]


def test_cloning_from_an_exact_video_gives_the_weights_that_cloning_from_numbers_gives(demos, tmp_path):
    weights = {name: trained(path, tmp_path / name) for name, path in demos.items()}
    assert weights["numbers"].keys() == weights["video"].keys() == weights["video-exact"].keys()
    for name, value in weights["numbers"].items():
        assert torch.equal(weights["video-exact"][name], value), name
    # else the pictures would not have mattered
    assert any(not torch.equal(weights["video"][name], value) for name, value in weights["numbers"].items())


def test_the_expert_is_recorded_as_it_was_seen(demos):
    exact, numbers = read_dataset(demos["video-exact"]), read_dataset(demos["numbers"])
    assert np.array_equal(exact.frames(KEY), numbers.frames(KEY))
    sim: Any = make_sim("mujoco/tabletop", num_envs=6, seed=0, **SIM)
    episodes = run_episodes(ExpertActor(sim.make_expert(seed=0)), sim, exact.episodes["state_id"], record=True)
    assert np.array_equal(exact.frames(KEY), np.concatenate([e.obs["image_flat_near"][:-1] for e in episodes]))
    sim.close()


@pytest.mark.parametrize("pictures", ["video", "video-exact"])
def test_demonstrations_with_videos_are_run_again_on_their_sim(demos, pictures):
    """What a video changed is no sign of another sim; the numbers beside it tell."""
    sim: Any = make_sim("mujoco/tabletop", num_envs=6, seed=0, **SIM)
    dataset = read_dataset(demos[pictures])
    assert [episode.length for episode in replay(dataset, sim)] == dataset.episodes["length"].tolist()
    sim.close()


def test_demonstrations_with_videos_fill_a_replay(demos):
    dataset = read_dataset(demos["video-exact"])
    sim: Any = make_sim("mujoco/tabletop", num_envs=1, seed=0, **SIM)
    held = Replay.create(
        None,
        sim.observation_spec,
        sim.action_spec,
        streams=1,
        capacity=dataset.num_frames,
        control_dt_s=sim.control_dt_s,
    )
    assert held.add_demos(dataset) == dataset.num_frames
    rows = held.indices()
    assert np.array_equal(held.view(rows, 1, 1.0).obs["image_flat_near"], dataset.frames(KEY)[rows])
    sim.close()


def test_the_command_says_what_is_missing(tmp_path, monkeypatch, capsys):
    told = ["--out", str(tmp_path / "d"), "--episodes", "1", "--pictures", "video"]
    assert main(["demos", "mujoco/tabletop", *told]) == 2
    assert "pictures is 'video', and the observations hold none" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "av", None)
    assert main(["demos", "mujoco/tabletop", *told, *OPTIONS]) == 2
    assert f"pictures='video' needs the module 'av': {install_line('video')}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
