"""Verdicts on policies whose success on every start is known: a walk, and policies that take one step size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from robotrl.api.judging.judge import JudgeSettings, combined, judge
from robotrl.api.judging.sides import check_pairs, read_side
from robotrl.cli.main import main
from robotrl.errors import ConfigError
from robotrl.fn.evidence.sequential import PairedTest
from robotrl.policies.gaussian import GaussianCfg
from robotrl.registry import SIMS
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import policy_tree
from robotrl.transforms import TransformGroup
from tests.kits import walk_sim
from tests.report.test_report import Page

SIM = "test/walk"
TEST = PairedTest(0.1)


@pytest.fixture(autouse=True)
def _walk(monkeypatch):
    monkeypatch.setitem(SIMS._rows, SIM, "tests.kits.walk_sim:make")


def walker(path: Path, step_m: float, **options: int) -> Path:
    """A run whose policy walks `step_m` in each step.

    Of the five kinds of starts, at -1, -0.5, 0, 0.5 and 1 m, those succeed that have less than six steps to 2 m.
    """
    sim = walk_sim.make(1, 0)
    policy = GaussianCfg(horizon=1, hidden=(4,)).build(sim.observation_spec, sim.action_spec, TransformGroup())
    with torch.no_grad():
        for weight in policy.net.parameters():
            weight.zero_()
        list(policy.net.parameters())[-1].fill_(step_m)
    with Run.create(path, {"sim": {"name": SIM, "options": options}}, seed=0, command=["x"]) as run:
        run.save({"policy": policy_tree(policy)}, step=1, score=0.0)
    return path


@pytest.fixture
def walkers(tmp_path) -> dict[str, Path]:
    """Success of 0, 20, 40 and 100 %."""
    return {str(rate): walker(tmp_path / str(rate), step) for rate, step in ((0, 0.1), (20, 0.2), (40, 0.27), (100, 1))}


def verdict(walkers: dict[str, Path], a: str, b: str, control: str | None = None, **given):
    settings = JudgeSettings(TEST, num_envs=10)._replace(**given)
    return judge(
        read_side(walkers[a]), read_side(walkers[b]), settings, None if control is None else read_side(walkers[control])
    )


def test_a_better_policy_is_found_and_the_test_stops_soon(walkers):
    found = verdict(walkers, "0", "100")
    assert found.outcome == "better"
    assert [side.success.mean() for side in found.sides] == [0.0, 1.0]
    assert len(found.ids) < 30 < found.planned
    assert len(found.ids) % 10 == 0 and found.contrasts[0].decision.starts <= len(found.ids)
    assert found.contrasts[0].apart.value == 1.0 and found.contrasts[0].over_seeds is None


def test_both_drive_the_same_starts_in_an_order_drawn_beforehand(walkers):
    found = verdict(walkers, "20", "40", starts=100)
    assert len(set(found.ids.tolist())) == len(found.ids)
    assert set(found.ids.tolist()) <= set(walk_sim.SPLITS["test"])
    assert found.ids.tolist() != sorted(found.ids.tolist())
    begin = (found.ids % 5 - 2) / 2
    np.testing.assert_array_equal(found.sides[0].success[0], begin >= 1.0)
    np.testing.assert_array_equal(found.sides[1].success[0], begin >= 0.5)


def test_no_difference_ends_as_not_better_and_a_fall_as_no_improvement(walkers):
    assert verdict(walkers, "40", "40").outcome == "not better"
    assert verdict(walkers, "100", "0").outcome in ("worse", "not better")


def test_too_few_starts_leave_it_open(walkers):
    found = verdict(walkers, "20", "40", starts=10)
    assert (found.outcome, len(found.ids), found.most) == ("open", 10, 10)


def test_a_candidate_that_is_no_better_than_its_control_is_not_better(walkers):
    found = verdict(walkers, "0", "100", "100")
    assert [each.decision.outcome for each in found.contrasts] == ["better", "not better"]
    assert found.outcome == "not better"
    assert verdict(walkers, "0", "100", "20").outcome == "better"
    assert combined(["better", "open"]) == "open"


def test_seeds_are_paired_and_have_an_interval_of_their_own(tmp_path):
    for seed, step in enumerate((0.1, 0.2, 0.27)):
        walker(tmp_path / "a" / f"seed-{seed}", step)
    for seed, step in enumerate((0.2, 0.27, 1)):
        walker(tmp_path / "b" / f"seed-{seed}", step)
    settings = JudgeSettings(TEST, num_envs=50, starts=100)
    found = judge(read_side(tmp_path / "a"), read_side(tmp_path / "b"), settings)
    # 20 - 0, 40 - 20, 100 - 40 points, if all of the starts are run
    each = (found.sides[1].success - found.sides[0].success).mean(axis=1)
    over = found.contrasts[0].over_seeds
    assert found.outcome == "better" and over is not None
    assert over.value == pytest.approx(each.mean()) and over.low < 0 < over.high
    with pytest.raises(ConfigError, match=r"a has 3 seeds and .*seed-0 has 1: expected as many"):
        check_pairs(read_side(tmp_path / "a"), read_side(tmp_path / "b" / "seed-0"))
    check_pairs(read_side(tmp_path / "a" / "seed-0"), read_side(tmp_path / "b"))


def test_the_command_tells_the_verdict_and_writes_every_outcome(walkers, tmp_path, capsys):
    out = tmp_path / "verdict.json"
    given = [str(walkers["0"]), str(walkers["100"]), "--detect", "10", "--num-envs", "10"]
    assert main(["compare", *given, "--out", str(out)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"baseline {walkers['0']}: success 0.0 % (95 % interval 0.0 to ")
    assert said[1].startswith(f"candidate {walkers['100']}: success 100.0 % (")
    assert "candidate less baseline: +100.0 points of success (90 % interval at any time +" in said[2]
    assert said[3] == "verdict: better"
    stored = json.loads(out.read_text())
    assert (stored["outcome"], stored["split"], stored["fixed_plan"]) == ("better", "test", 353)
    assert len(stored["starts"]) == len(stored["sides"][0]["success"][0]) == len(stored["sides"][1]["returns"][0])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("{0}", "--detect", "10"), "1 paths beside --detect: expected two, BASELINE CANDIDATE"),
        (("{0}", "{100}", "--detect", "0.1"), "--detect is 0.1: expected 1 to 90 points"),
        (("{0}", "{100}", "--detect", "10", "--starts", "101"), "--starts is 101: expected 1 to 100"),
        (("{0}", "{100}", "--detect", "10", "--num-envs", "0"), "--num-envs is 0"),
        (("{0}", "{100}", "--detect", "10", "--out", "a.txt"), "expected a name that ends in .html or .htm or .json"),
        (("{0}", "{100}", "--detect", "10", "--ignore", "lr"), "--ignore is lr beside --detect"),
        (("{0}", "{100}", "--split", "val"), "--split is of a verdict: expected --detect POINTS beside it"),
        (("{0}", "{100}x", "--detect", "10"), "did you mean {100}?"),
    ],
)
def test_bad_input_is_one_line(walkers, capsys, given, says):
    names = {f"{{{rate}}}": str(path) for rate, path in walkers.items()}

    def filled(text: str) -> str:
        for name, path in names.items():
            text = text.replace(name, path)
        return text

    assert main(["compare", *map(filled, given)]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert filled(says) in said[-1]


def test_the_page_says_what_the_terminal_says(walkers, tmp_path):
    out = tmp_path / "verdict.html"
    given = [str(walkers["20"]), str(walkers["100"]), "--detect", "10", "--num-envs", "10", "--control"]
    assert main(["compare", *given, str(walkers["0"]), "--out", str(out)]) == 0
    text = out.read_text()
    Page(text)
    assert '<p class="verdict">The candidate is better.</p>' in text
    assert text.count('<svg class="chart') == 2 and text.count('<g class="arm arm1">') == 2
    assert "only the candidate succeeds" in text and "candidate less control: +100.0 points of success" in text
    assert f"robotrl compare {walkers['20']}" in text


def test_a_policy_that_was_trained_otherwise_is_named(walkers, tmp_path):
    walkers["long"] = walker(tmp_path / "long", 0.2, limit=9)
    with pytest.warns(
        UserWarning, match="long was trained with other options of the sim than it is judged with: limit"
    ):
        verdict(walkers, "0", "long", starts=10)
    with pytest.warns(UserWarning, match="0 was trained with other options of the sim"):
        verdict(walkers, "0", "20", starts=10, options={"limit": 9})
