"""The main job from end to end at a small size, its comparison of bundle and policy, and what it refuses."""

from __future__ import annotations

import html
import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from robotrl.api.evaluation import compare
from robotrl.api.rollouts import informative_starts
from robotrl.cli.main import main
from robotrl.cli.quickstart import QuickstartSizes, baseline, run_quickstart
from robotrl.configs import peg_insert as presets
from robotrl.datasets.lerobot import read_dataset
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.errors import ConfigError
from robotrl.run.logs import read_scalars
from robotrl.run.policy_checkpoint import load_policy


def small() -> QuickstartSizes:
    clone, tune = presets.quickstart_clone(), presets.quickstart()
    evaluation = replace(clone.evaluation, episodes=8, num_envs=8, animation=0)
    return QuickstartSizes(
        demos=12,
        episodes=24,
        control_episodes=2,
        converged_updates=300,
        clone=replace(clone, algo=replace(clone.algo, updates=300, batch=256), evaluation=evaluation),
        tune=replace(
            tune,
            sim=replace(tune.sim, num_envs=16),
            algo=replace(tune.algo, env_steps=16 * 40 * 3, num_steps=40, minibatch=64),
            evaluation=replace(evaluation, every=2, animation=1),
        ),
    )


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("job") / "quickstart"
    returned = run_quickstart(out, 3, small())
    assert json.loads((out / "summary.json").read_text()) == json.loads(json.dumps(returned))
    return out


def test_the_summary_says_what_was_reached(job: Path) -> None:
    summary = json.loads((job / "summary.json").read_text())
    for side in ("bc", "rl"):
        rate = summary[side]["success"]
        assert rate["episodes"] == 24
        assert 0 <= rate["low"] <= rate["value"] <= rate["high"] <= 1
    assert summary["env_steps"] == 16 * 40 * 3
    assert summary["export"]["samples"] >= 1000
    assert summary["export"]["parity_max_rel"] < 1e-5
    assert summary["control"]["rate_hz"] == 20
    assert {"p50", "p99", "p999", "max"} <= summary["control"]["lateness_us"].keys()
    assert summary["control"]["success"]["episodes"] == 2
    assert summary["wall_s"] > 0
    assert summary["peak_memory_mib"] > 100


def test_everything_is_left_where_the_readme_says(job: Path) -> None:
    assert read_dataset(job / "demos").num_episodes == 12
    assert open_bundle(job / "bundle").manifest.training is not None
    assert load_policy(job / "finetune").horizon == 4
    assert list((job / "finetune" / "rollouts").glob("*.gif"))
    page = (job / "report.html").read_text()
    summary = json.loads((job / "summary.json").read_text())
    assert f"{100 * summary['rl']['success']['value']:.1f}".rstrip("0").rstrip(".") in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_bundle_and_policy_succeed_alike(job: Path) -> None:
    found = compare(job / "finetune", job / "bundle", episodes=48, seed=1)
    assert abs(found.policy.rate.value - found.bundle.rate.value) <= 0.02
    assert found.flipped == [int(i) for i in found.policy.ids[found.policy.success != found.bundle.success]]
    # the comparison says something only where there is success and failure
    assert 0 < found.policy.rate.value < 1
    # another seed draws other noise: the same bundle does not do the same thing
    other = compare(job / "finetune", job / "bundle", episodes=48, seed=2)
    assert (other.bundle.length != found.bundle.length).any()


def test_an_earlier_quickstart_is_replaced_and_nothing_else(job: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(ConfigError, match="holds something already"):
        run_quickstart(tmp_path, 0, small())
    assert (tmp_path / "mine.txt").read_text() == "precious"
    with pytest.raises(ConfigError, match="baseline 'clone_20x' is unknown: known: clone_converged, clone_10x_demos"):
        baseline("clone_20x", 0, tmp_path)


def test_the_printed_command_gives_the_headline_back(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = json.loads((job / "summary.json").read_text())
    page = html.unescape((job / "report.html").read_text())
    command = next(line for line in page.splitlines() if line.startswith("robotrl eval ")).split("</pre>")[0]
    for more in ([], ["--num-envs", "5"]):
        report = job.parent / "eval.json"
        assert main([*shlex.split(command)[1:], *more, "--report", str(report)]) == 0
        found = json.loads(report.read_text())
        assert found["success"] == summary["rl"]["success"]
        for name, value in summary["evaluation"].items():
            assert found[name] == value
    assert "over 24 starts of split test, seed 3" in capsys.readouterr().out


def test_the_page_is_of_the_checkpoint_that_it_names(job: Path) -> None:
    summary = json.loads((job / "summary.json").read_text())
    rows = {row["step"]: row for row in read_scalars(job / "finetune" / "scalars.jsonl")}
    assert rows[summary["rl"]["step"]]["env_steps"] == summary["rl"]["env_steps"] <= summary["env_steps"]
    page = (job / "report.html").read_text()
    assert f"the checkpoint after {summary['rl']['env_steps']:,} env steps" in page
    assert "<title>0 env steps: " in page
    assert f"evaluations took <b>{100 * summary['rl']['evaluations']['share']:.1f} %</b>" in page
    assert "1074790" not in page.split("<details>")[0]


def test_starts_are_shown_on_which_two_policies_differ() -> None:
    before = np.array([True, False, True, False, True, True])
    after = np.array([True, True, True, False, False, True])
    assert informative_starts(before, after, 4) == [1, 4, 0, 2]
    assert informative_starts(before, before) == [0, 1, 2, 3, 4, 5]
