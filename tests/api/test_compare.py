"""Comparing runs: arms by config apart from the seed, means and intervals by hand, and a page that hides nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from robotrl import config as configs
from robotrl.api.comparing import _curve, aligned, compare_runs, return_of, shown, success_of
from robotrl.api.run_history import ABSENT, differing, flat, group_runs, read_history
from robotrl.cli.main import main
from robotrl.config import WeightedReward
from robotrl.configs.gymnasium import ppo
from robotrl.errors import ConfigError
from robotrl.report.compare.curves import ArmCurve, ArmPoint, arm_curves, round_ticks
from robotrl.report.compare.page import ScoreSpan
from robotrl.rewards.rules import AliveCfg
from robotrl.run.directory import Run
from robotrl.run.locking import is_being_written
from robotrl.utils.media import write_gif
from tests.report.test_report import Page


def make_run(
    path: Path,
    seed: int,
    scores: list[tuple[int, float, float]],
    lr: float = 3e-4,
    episodes: int = 16,
    steps: int = 1000,
) -> Run:
    """A run as the training loop writes it: (iteration, success, return) of each evaluation."""
    base = ppo()
    cfg = replace(base, seed=seed, algo=replace(base.algo, lr=lr))
    cfg = replace(cfg, evaluation=replace(cfg.evaluation, episodes=episodes))
    run = Run.create(path, configs.to_json(cfg), seed=seed, command=["robotrl", "train"])
    for iteration, success, ret in scores:
        row = {"env_steps": float(iteration * steps), "learn_s": 2.0 * iteration, "eval_success": success}
        run.log(iteration, row | {"eval_low": success / 2, "eval_high": (1 + success) / 2, "eval_return": ret})
    return run


@pytest.fixture
def runs(tmp_path) -> list[Path]:
    """Two arms: three seeds of one learning rate, and one of another."""
    for seed, last in enumerate((0.8, 0.9, 1.0)):
        make_run(tmp_path / f"a{seed}", seed, [(5, 0.5, 10.0), (10, last, 100 * last)]).close()
    make_run(tmp_path / "b0", 0, [(5, 0.25, 5.0), (10, 0.5, 50.0)], lr=1e-4).close()
    return [tmp_path / name for name in ("a2", "a0", "a1", "b0")]


def test_runs_that_differ_in_the_seed_are_one_arm(runs):
    found = compare_runs(runs)
    assert [(arm.name, [run.seed for run in arm.runs]) for arm in found.arms] == [("A", [0, 1, 2]), ("B", [0])]
    assert found.fields == {"algo.lr": (3e-4, 1e-4)}
    assert found.warnings() == []


def test_scores_of_an_arm_are_those_worked_by_hand(runs):
    row = compare_runs(runs).row(compare_runs(runs).arms[0])
    # 0.8, 0.9, 1: mean 0.9, deviation 0.1, t of 2 degrees 4.3027: 0.9 +- 0.2484, a rate ends at 1
    assert row.success.value == pytest.approx(0.9)
    assert row.success.low == pytest.approx(0.9 - 4.3027 * 0.1 / 3**0.5, abs=1e-4)
    assert row.success.high == 1.0
    assert row.ret.high == pytest.approx(90 + 4.3027 * 10 / 3**0.5, abs=1e-2)
    assert row.about == "algo.lr 0.0003"
    assert row.note == "3 of 3"
    one = compare_runs(runs).row(compare_runs(runs).arms[1])
    assert one.success == ScoreSpan(0.5, 0.5, 0.5, 1)


def test_curves_go_by_env_steps_with_bands_over_seeds(runs):
    arms = compare_runs(runs).arms
    curve = _curve(arms[0], True, success_of, True)
    assert [(p.x, p.value, p.runs, p.whole) for p in curve.points] == [
        (5000.0, 0.5, 3, True),
        (10000.0, pytest.approx(0.9), 3, True),
    ]
    assert curve.points[0].low == curve.points[0].high == 0.5
    # one seed: Wilson's interval of its own episodes, and of the return nothing
    single = _curve(arms[1], True, success_of, True)
    assert (single.points[1].low, single.points[1].high) == (0.25, 0.75)
    assert _curve(arms[1], True, return_of, False).points[1].low is None


def test_a_run_in_training_and_one_without_evaluations_are_told(tmp_path):
    make_run(tmp_path / "done", 0, [(10, 0.6, 6.0)]).close()
    make_run(tmp_path / "short", 1, [(6, 0.4, 4.0)]).close()
    make_run(tmp_path / "bare", 2, []).close()
    with make_run(tmp_path / "now", 3, [(5, 0.1, 1.0)]):
        assert is_being_written(tmp_path / "now") and not is_being_written(tmp_path / "done")
        found = compare_runs([tmp_path / name for name in ("done", "short", "bare", "now")])
        row = found.row(found.arms[0])
        text = Page(found.page()).text
    assert row.success.value == pytest.approx(0.5)
    assert row.note == "2 of 4; in training: seed 3; not evaluated: seed 2; ended before iteration 10: seed 1 at 6"
    assert "1 still in training. 1 without an evaluation." in text
    assert "not evaluated" in text and "in training" in text
    assert "Hollow dots" in text


def test_another_process_that_trains_is_seen(tmp_path):
    make_run(tmp_path / "run", 0, [(1, 0.0, 0.0)]).close()
    code = (
        "import sys, pathlib; from robotrl.run.locking import WriteLock; lock = WriteLock(pathlib.Path(sys.argv[1]));"
        "print('held', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "held\n"
        assert read_history(tmp_path / "run").training
    finally:
        child.communicate("")
    assert not read_history(tmp_path / "run").training


def test_other_rules_of_evaluation_are_warned_of(tmp_path):
    make_run(tmp_path / "a", 0, [(10, 0.6, 6.0)]).close()
    make_run(tmp_path / "b", 0, [(10, 0.7, 7.0)], episodes=64).close()
    found = compare_runs([tmp_path / "a", tmp_path / "b"])
    assert found.warnings() == [
        "The arms were evaluated on other starts: evaluation.episodes is 16 in A, 64 in B. Their scores do not compare."
    ]
    page = found.page()
    assert 'class="warning"' in page and "The arms were not evaluated alike." in page
    assert found.lines()[0].startswith("warning: The arms were evaluated on other starts")


def test_ignored_fields_do_not_divide(runs, capsys):
    assert main(["compare", *map(str, runs), "--ignore", "algo.lr"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("A    0, 0, 1, 2")
    assert main(["compare", *map(str, runs), "--ignore", "algo.lrr"]) == 2
    assert "--ignore 'algo.lrr' is unknown: did you mean 'algo.lr'?" in capsys.readouterr().err


def test_the_command_prints_a_table_and_writes_a_page(runs, tmp_path, capsys):
    write_gif(np.zeros((2, 8, 16, 3), np.uint8), runs[0] / "rollouts" / "step_000010.gif", 5)
    out = tmp_path / "page.html"
    assert main(["compare", *map(str, runs), "--out", str(out)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"A +0, 1, 2 +90\.0 % \[65\.2 % to 100 %\] +90\.0 \[65\.2 to 114\.8\] +3 of 3 .*", said[1])
    assert re.fullmatch(r"B +0 +50\.0 % +50\.0 +1 of 1 +algo\.lr 0\.0001", said[2])
    text = out.read_text()
    page = Page(text)
    for words in (
        "Highest A: return 90.0",
        "order is open",
        "algo.lr",
        "Student's t 95 % interval",
        "seed 2, iteration 10",
    ):
        assert words in page.text
    pictures = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    assert len(pictures) == 1 and pictures[0].startswith("data:image/gif;base64,")
    assert not re.findall(r'(?:src|href)="(?!data:)', text), "the page needs another file"
    assert "no pictures" in text


def test_one_run_has_neither_differences_nor_a_false_order(runs):
    found = compare_runs(runs[-1:])
    text = Page(found.page()).text
    assert "Differences in config" not in text
    assert "A: return 50.0." in text


def test_mistakes_are_answered(runs, tmp_path, capsys):
    with pytest.raises(ConfigError, match="is given twice"):
        compare_runs([runs[0], runs[0]])
    for argv, words in (
        (["compare"], "RUN"),
        (["compare", str(tmp_path / "a22")], "a22 does not exist"),
        (["compare", str(runs[0]), "--out", "x.pdf"], "--out is x.pdf: expected a name that ends in .html"),
    ):
        assert main(argv) == 2
        assert words in capsys.readouterr().err


def test_a_field_that_a_config_lacks_is_told_apart_from_none(runs):
    one, other = (read_history(path) for path in (runs[0], runs[-1]))
    less = other._replace(config={name: value for name, value in other.config.items() if name != "algo.gamma"})
    rows = differing(group_runs([one, less]))
    assert rows["algo.gamma"] == (0.99, ABSENT)
    assert shown(ABSENT) == "no such field" and shown(None) == "none" and shown([1]) == "[1]"
    assert flat({"a": {"b": {"c": 1}}, "d": [2]}) == {"a.b.c": 1, "d": [2]}


def test_ticks_cover_what_is_drawn():
    assert round_ticks(0.0, 10000.0) == [0.0, 2500.0, 5000.0, 7500.0, 10000.0]
    assert round_ticks(-3.0, 4.0) == [-4.0, -2.0, 0.0, 2.0, 4.0]
    assert round_ticks(5.0, 5.0)[0] <= 5.0 <= round_ticks(5.0, 5.0)[-1]


def test_a_chart_places_points_where_their_values_are():
    points = [ArmPoint(0.0, 0.0, None, None, 1, True), ArmPoint(100.0, 1.0, None, None, 1, False)]
    picture = arm_curves([ArmCurve("A", points)], "env steps", "success", 400, is_rate=True)
    dots = re.findall(r'class="arm-dot( hollow)?" cx="([\d.]+)" cy="([\d.]+)"', picture)
    # left 58, right 384, top 12, bottom 260 of a chart 300 high
    assert dots == [("", "58.0", "260.0"), (" hollow", "384.0", "12.0")]


def test_table_columns_are_aligned():
    assert aligned([("a", "bb"), ("ccc", "d")]) == ["a    bb", "ccc  d"]
    assert json.loads(shown({"a": 1})) == {"a": 1}


def test_of_late_scores_the_page_shows_what_the_divergence_is_told_by(tmp_path):
    # an off-policy run logs no return of an episode that ended before its scores came
    cfg = replace(ppo(), rewards=(WeightedReward("alive", 2.0, AliveCfg()),))
    cfg = replace(cfg, evaluation=replace(cfg.evaluation, score="success"))
    run = Run.create(tmp_path / "late", configs.to_json(cfg), seed=0, command=["robotrl", "train"])
    for step, (valid, score, success) in enumerate(((0.5, 0.1, 0.9), (0.25, 0.1, 0.8), (0.0, 0.0, 0.7)), 1):
        row = {"env_steps": 100.0 * step, "reward/alive": score, "reward_valid/alive": valid}
        run.log(step, row | {"scoring/alive/queue_length": 0.0, "rollout_success": success})
    run.close()
    found = read_history(tmp_path / "late").reward_truth
    assert found is not None
    # weight 2, over the steps with a score; none has one in the last iteration
    assert found.reward == pytest.approx([2 * 0.1 / 0.5, 2 * 0.1 / 0.25])
    assert (list(found.x), list(found.truth)) == ([100.0, 200.0], [0.9, 0.8])
