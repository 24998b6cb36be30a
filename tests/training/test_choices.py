"""Training where actions are choices, from the command line on: what fits is taken, what does not is refused."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from robotrl.api.evaluation import evaluate_path
from robotrl.config import EvalCfg, SimCfg, options_of
from robotrl.configs.gymnasium import ppo
from robotrl.fn.stats import wilson
from robotrl.rollout.evaluate import EvalResult
from robotrl.run.rules.early_stopping import GOOD_ENOUGH, StopRule

TINY = (
    *("--sim", "gym/CartPole-v1", "--sim.num-envs", "4", "--algo.num-steps", "16", "--algo.minibatch", "32"),
    *("--algo.env-steps", "128", "--policy.hidden", "8", "--evaluation.episodes", "2", "--evaluation.num-envs", "2"),
)


def robotrl(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "robotrl.cli", *argv],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )


def test_a_run_of_choices_trains_evaluates_resumes_and_says_what_it_does(tmp_path: Path):
    run = tmp_path / "run"
    done = robotrl("train", "gym-ppo", *TINY, "--run-dir", str(run))
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0] == "robotrl train gym-ppo: loading"
    assert any(line == "train run: started" for line in lines)
    stored = json.loads((run / "config.json").read_text())["config"]
    assert stored["algo"]["engine"] == "auto"
    assert stored["types"]["policy"] == "robotrl.policies.by_action:ByActionCfg"
    result = evaluate_path(run, episodes=3, num_envs=2)
    assert len(result.returns) == 3
    again = robotrl("train", "--resume", str(run))
    assert again.returncode == 0, again.stderr
    assert again.stderr.splitlines()[0] == f"robotrl train --resume {run}: loading"


@pytest.mark.parametrize(
    ("preset", "given", "says"),
    [
        ("gym-sac", (), "error: Sac needs continuous actions: action 'action_0' of sim 'gym/CartPole-v1' is a choice"),
        ("gym-ppo", ("--policy.kind", "gaussian"), "error: policy GaussianPolicy gives numbers within bounds"),
        ("gym-ppo", ("--policy.initial-std", "0.3"), "error: policy.initial_std is 0.3: expected none"),
        ("gym-ppo", ("--stop-at-return", "nan"), "error: stop_at_return is nan: expected a finite number"),
    ],
)
def test_what_does_not_fit_is_one_line_and_leaves_nothing(tmp_path: Path, preset, given, says):
    run = tmp_path / "run"
    done = robotrl("train", preset, "--sim", "gym/CartPole-v1", *given, "--run-dir", str(run))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(says)
    assert not run.exists()


def found(mean: float, success: int = 0) -> EvalResult:
    flags = np.arange(4) < success
    return EvalResult(np.arange(4), flags, np.full(4, 9), np.full(4, mean), wilson(success, 4))


class Solved:
    solved_return = 475.0


def test_a_run_ends_once_it_is_solved_and_gets_no_better():
    rule = StopRule(ppo(), Solved())  # type: ignore[arg-type]
    assert rule.may_stop
    streak, best, seen = 0, None, []
    for mean in (300.0, 480.0, 500.0, 470.0, 500.0, 500.0):
        streak = rule.streak(streak, found(mean), best)
        best = mean if best is None else max(best, mean)
        seen.append(streak)
    assert seen == [0, 1, 1, 0, 1, GOOD_ENOUGH]


def test_nobody_says_what_solves_it_so_the_budget_is_run():
    assert not StopRule(ppo(), object()).may_stop  # type: ignore[arg-type]
    rule = StopRule(replace(ppo(), stop_at_return=100.0), object())  # type: ignore[arg-type]
    assert [rule.streak(0, found(mean), 200.0) for mean in (99.0, 100.0)] == [0, 1]
    success = replace(ppo(), stop_at_return=None, stop_at_success=0.75, evaluation=EvalCfg(score="success"))
    rule = StopRule(success, Solved())  # type: ignore[arg-type]
    assert [rule.streak(1, found(0.0, success), 1.0) for success in (2, 3, 4)] == [0, 2, 2]


def test_what_was_registered_is_of_the_environment_as_it_is():
    import robotrl

    def solved(**options: object) -> float | None:
        sim = robotrl.make_sim("gym/CartPole-v1", num_envs=1, camera=False, **options)
        sim.close()
        return sim.solved_return

    assert solved() == 475.0
    assert solved(limit_steps=50) is None
    assert solved(kwargs={"sutton_barto_reward": True}) is None
    assert options_of(SimCfg("gym/CartPole-v1")).actions == "index"
