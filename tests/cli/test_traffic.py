"""`robotrl traffic`: clones, fine-tunes and measures at a tiny size, and refuses what it cannot use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from robotrl.cli.main import main
from robotrl.errors import DataError
from robotrl.run.directory import Run
from robotrl.run.input_digests import present_digests
from robotrl.sims.bev.traffic.learned.layout import PLACES, SCORED, SIZE
from robotrl.sims.bev.traffic.learned.stored import MANIFEST, read_traffic
from robotrl.sims.driving.traffic.populations import moderate
from robotrl.traffic import self_play_training
from robotrl.traffic.saving import save_traffic
from robotrl.training import resume
from tests.kits.traffic_kit import net_of

CLONE = ["--decisions", "1000", "--updates", "20", "--num-envs", "8", "--populations", "moderate"]
SELF_PLAY = ["--iterations", "2", "--steps", "15", "--num-envs", "4", "--drivers", "moderate"]
RIFT = ["--epochs", "2", "--buffer", "200", "--num-envs", "8", "--lr", "0.01"]


def test_clone_rift_measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cloned, tuned = tmp_path / "cloned", tmp_path / "tuned"
    assert main(["traffic", "clone", "--out", str(cloned), *CLONE]) == 0
    assert "decisions of moderate; hash" in capsys.readouterr().out
    assert main(["traffic", "rift", str(cloned), "--out", str(tuned), "--style", "cautious", *RIFT]) == 0
    assert "style cautious, 2 epochs of 200 decisions" in capsys.readouterr().out
    base, found = read_traffic(cloned), read_traffic(tuned)
    assert found.about["base_sha256"] == base.sha256 and found.about["reward"]["near"] == -3.0
    assert all(row["ratio_error"] < 1e-4 for row in found.about["curve"])
    scored = np.zeros(SIZE, bool)
    first, last = PLACES[SCORED[0]], PLACES["temperature"]
    scored[first:last] = True
    changed = found.weights != base.weights
    assert changed[scored].any() and not changed[~scored].any()
    assert main(["traffic", "measure", str(tuned), "timid", "--steps", "60", "--num-envs", "8"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 5 and rows[3].startswith("...") and rows[4].startswith("timid")


def test_self_play_is_a_population_and_its_stopped_training_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    assert main(["traffic", "self-play", "--out", str(whole), "--save-every", "1", *SELF_PLAY]) == 0
    assert "2 iterations" in capsys.readouterr().out
    found = read_traffic(whole)
    assert found.about["method"] == "self-play" and len(found.about["curve"]) == 2
    assert found.drivers == (moderate(),)

    def killed(scalars: dict[str, float]) -> None:
        raise KeyboardInterrupt

    train = self_play_training.SelfPlay.step
    monkeypatch.setattr(self_play_training.SelfPlay, "step", lambda one: killed(train(one)))
    assert main(["traffic", "self-play", "--out", str(parted), "--save-every", "1", *SELF_PLAY]) != 0
    assert not (parted / MANIFEST).exists()
    monkeypatch.undo()
    assert main(["traffic", "resume", str(parted)]) == 0
    assert np.array_equal(read_traffic(parted).weights, found.weights)
    capsys.readouterr()
    assert main(["traffic", "resume", str(parted)]) == 2
    assert "its self-play has ended" in capsys.readouterr().err
    assert main(["traffic", "measure", str(whole), "--steps", "60", "--num-envs", "8"]) == 0


def test_the_same_seed_gives_the_same_network(tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        assert main(["traffic", "clone", "--out", str(tmp_path / name), *CLONE]) == 0
        out = tmp_path / f"{name}-rift"
        assert main(["traffic", "rift", str(tmp_path / name), "--out", str(out), *RIFT]) == 0
        found.append(read_traffic(out).weights)
    assert np.array_equal(*found)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["clon"], "action 'clon' is unknown"),
        (["clone", "--out", "OUT", "--decisions", "5"], "--decisions is 5: expected 1000 or more"),
        (["clone", "--out", "OUT", "--populations", "wild"], "traffic population 'wild' is unknown"),
        (["clone", "--out", "OUT", "--temperature", "5"], "temperature is 5"),
        (["rift", "NOWHERE", "--out", "OUT"], "is no folder: expected one of `robotrl traffic clone`"),
        (["self-play", "--out", "OUT", "--steps", "5"], "steps is 5"),
        (["self-play", "--out", "OUT", "--drivers", "modrate"], "did you mean 'moderate'"),
        (["self-play", "--out", "OUT", "--drivers", "self-play"], "--drivers is self-play: expected rule-based ones"),
        (["resume", "NOWHERE"], "NOWHERE: expected one of `robotrl traffic self-play`"),
        (["measure", "moderate", "--steps", "10"], "--steps is 10: expected 51 or more"),
    ],
)
def test_refusals(argv: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["traffic", *(str(tmp_path / word) if word.isupper() else word for word in argv)]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "OUT").exists()


def test_a_run_records_the_traffic_that_it_trains_in(tmp_path: Path) -> None:
    """Other traffic at the same place has another digest, which a resume and `robotrl inspect` compare."""
    cloned, run = tmp_path / "cloned", tmp_path / "run"
    assert main(["traffic", "clone", "--out", str(cloned), *CLONE]) == 0
    train = ["train", "--sim", "bev/drive", "--algo", "ppo", "--sim.traffic", str(cloned), "--run-dir", str(run)]
    small = ["--sim.num-envs", "4", "--algo.num-steps", "8", "--algo.env-steps", "64", "--algo.minibatch", "32"]
    small += ["--evaluation.every-env-steps", "0", "--evaluation.episodes", "2", "--evaluation.animation", "0"]
    assert main([*train, *small]) == 0
    (before,) = Run.open(run).inputs
    assert before.input.field == "sim.traffic" and before.input.path == str(cloned / MANIFEST)
    assert present_digests([before]) == (before,)
    save_traffic(cloned, net_of(1.0), (moderate(),), {})
    (now,) = present_digests([before])
    assert now.sha256 not in (None, before.sha256)
    with pytest.raises(DataError, match=r"sim.traffic"):
        resume(run)
