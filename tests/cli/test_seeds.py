"""`robotrl train --seeds N`: runs of their own, a summary by hand, and going on with what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from robotrl.cli.main import main
from robotrl.cli.seeds import summary
from robotrl.run.directory import Run
from robotrl.run.sessions.record import read_session, write_session
from tests.kits.commands import REACH_PPO

TINY = (
    *("--sim.num-envs", "4", "--sim.limit-s", "0.5", "--algo.env-steps", "64", "--algo.num-steps", "8"),
    *("--algo.minibatch", "16", "--algo.engine", "eager", "--evaluation.episodes", "4", "--evaluation.num-envs", "4"),
    *("--evaluation.animation", "0"),
)


def test_seeds_are_runs_and_typed_again_they_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each run is a process of its own."""
    monkeypatch.chdir(tmp_path)
    words = ["train", "--sim", "mujoco/reach", "--algo", "ppo", "--seeds", "2", "--seed", "3"]
    words += ["--run-dir", "runs/reach", *TINY]
    code = main(words)
    said = capfd.readouterr()
    assert code == 0, said.err
    runs = [tmp_path / "runs" / "reach" / f"seed-{seed}" for seed in (3, 4)]
    assert [Run.open(run).seed for run in runs] == [3, 4]
    assert re.search(r"^seed 3: best success \d+\.0 %$", said.out, re.MULTILINE)
    assert "over 2 seeds" in said.out and "robotrl compare runs/reach/seed-3 runs/reach/seed-4" in said.out
    assert (
        "seed 3: begun, runs/reach/seed-3" in said.err
        and "threads: torch 1" in (tmp_path / "runs" / "reach" / "seed-3.log").read_text()
    )
    before = [(run / "run.json").read_bytes() for run in runs]
    # one that was stopped is resumed, one that has finished is left alone
    session = read_session(runs[0])
    assert session is not None and session.end == "finished"
    write_session(runs[0], session._replace(end="stopped"))
    assert main(words) == 0
    assert [(run / "run.json").read_bytes() == was for run, was in zip(runs, before, strict=True)] == [False, True]
    assert "seed 3: resumed" in capfd.readouterr().err


def test_a_seed_that_fails_is_named_and_starts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "--sim", "mujoco/reach", "--algo", "ppo", "--seeds", "50", "--run-dir", "runs/x"]
    assert main([*words, "--evaluation.episodes", "10000000"]) == 2
    said = capfd.readouterr().err
    assert "seed 0 failed with code 2: error: evaluation.episodes is 10000000: expected" in said
    assert "seed 49" not in said


def test_the_summary_by_hand(tmp_path: Path) -> None:
    for seed, values in ((0, (0.5, 0.7)), (1, (0.9, 0.8)), (2, ())):
        with Run.create(tmp_path / f"seed-{seed}", {}, seed=seed, command=[]) as run:
            for step, value in enumerate(values, 1):
                run.log(step, {"eval_success": value})
    told = summary(tmp_path, range(3), "success").splitlines()
    # Student's quantile with one degree of freedom is 12.706: 80 +- 12.706 * 14.142 / sqrt(2)
    assert told[:4] == [
        "seed 0: best success 70.0 %",
        "seed 1: best success 90.0 %",
        "seed 2: not evaluated",
        "mean 80.0 % (Student's 95 % interval -47.1 to 207.1) over 2 seeds",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--seeds", "x"), "--seeds is 'x': expected a whole number, e.g. 5"),
        (("--seeds", "0"), "--seeds is 0: expected a whole number from 1 to 1000"),
        (("--seeds",), "--seeds is given without a name"),
        (("--seeds", "2", "--algo.env-stps", "3"), "unknown option --algo.env-stps: did you mean --algo.env-steps?"),
    ],
)
def test_mistakes_are_named(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *REACH_PPO, *words]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
