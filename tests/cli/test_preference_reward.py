"""`robotrl reward train preferences`, `robotrl reward relabel`, and a training that asks on the way."""

from pathlib import Path

import numpy as np
import pytest

from robotrl.cli.main import main
from robotrl.datasets.reader import read_dataset
from robotrl.rewards.preferences.stored import load_preferences
from robotrl.run.logs import read_scalars
from tests.kits.off_policy_kit import write_random_walks

SMALL = ["--labels", "60", "--labeler.length", "3", "--labeler.frames", "1", "--training.updates", "40"]
SMALL += ["--training.members", "2", "--training.model.hidden", "16"]


def test_a_dataset_is_labeled_learned_from_and_relabeled(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_random_walks(Path("walks"))
    train = ["reward", "train", "preferences", "walks", *SMALL, "--labeler.store", "answers"]
    assert main([*train, "--out", "model"]) == 0
    assert "60 of 60 pairs are answered" in capsys.readouterr().out
    # the same again asks nobody, and gives the same
    assert main([*train, "--out", "again"]) == 0
    assert "60 of them kept from before" in capsys.readouterr().out
    assert load_preferences("model").identity == load_preferences("again").identity
    assert main(["reward", "relabel", "walks", "--model", "model", "--out", "new", "--offset", "-1"]) == 0
    new = read_dataset("new")
    assert new.provenance["relabeled"]["offset"] == -1.0
    assert not np.array_equal(new.frames("next.reward"), read_dataset("walks").frames("next.reward"))


@pytest.mark.parametrize(
    "words, named",
    [
        (["--training.form", "profit"], "--training.form"),
        (["--labeler.by", "endpoint"], "labeler.endpoint.goal"),
        (["--labeler.synthetic.error", "0.7"], "labeler.synthetic.error"),
        (["--keys", "wlak"], "wlak"),
        (["--labeler.length", "900"], "labeler.length"),
    ],
)
def test_bad_input_is_named_and_leaves_nothing(tmp_path, monkeypatch, capsys, words, named):
    monkeypatch.chdir(tmp_path)
    write_random_walks(Path("walks"), 5)
    assert main(["reward", "train", "preferences", "walks", "--out", "model", *SMALL, *words]) == 2
    assert named in capsys.readouterr().err.splitlines()[-1] and not Path("model").exists()


def test_a_run_asks_while_it_trains_and_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    prefix = "--reward.preferences"
    words = [
        *("--sim", "mujoco/reach", "--sim.limit-s", "0.5", "--sim.reward", "shaped", "--sim.num-envs", "4"),
        *("--algo", "sac", "--policy", "squashed", "--policy.horizon", "1", "--algo.warmup", "64"),
        *("--algo.batch", "16", "--algo.num-steps", "8", "--algo.env-steps", "256", "--algo.engine", "eager"),
        *("--evaluation.episodes", "4", "--evaluation.every", "0", "--reward", "preferences"),
        *(f"{prefix}.labels", "30", f"{prefix}.per-round", "15", f"{prefix}.every-env-steps", "80"),
        *(f"{prefix}.labeler.length", "4", f"{prefix}.training.updates", "20", f"{prefix}.training.members", "2"),
        *(f"{prefix}.labeler.store", "answers", f"{prefix}.memory", "1000"),
    ]
    assert main(["train", *words, "--run-dir", "run"]) == 0, capsys.readouterr().err
    rows = read_scalars(Path("run", "scalars.jsonl"))
    assert rows[-1]["scoring/preferences/answers"] == 30 and rows[-1]["scoring/preferences/rounds"] == 2
    assert rows[0]["reward_valid/preferences"] == 0 and rows[-1]["reward_valid/preferences"] == 1
    assert rows[-1]["scoring/lost"] == 0 and abs(rows[-1]["reward/preferences"]) < 10
    assert main(["train", "--resume", "run"]) == 0


def test_a_mistyped_kind_of_reward_is_answered_with_the_nearest(capsys):
    assert main(["reward", "train", "preference", "walks", "--out", "model"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "'preference'" in error and "'preferences'" in error
