"""Charts of a run's reward beside the sim's truth: marks, escaped names, and long runs averaged."""

from __future__ import annotations

import re

import numpy as np

from robotrl.report import ReportData
from robotrl.report.page import render
from robotrl.report.reward_truth import MOST_POINTS, RewardTruth, reward_truth_section


def run(count: int = 30, diverged: float | None = None, name: str = "runs/a") -> RewardTruth:
    x = np.arange(1.0, count + 1) * 100
    return RewardTruth(name, x.tolist(), "env steps", x.tolist(), (1 / x).tolist(), "success in rollouts", diverged)


def test_a_divergence_is_marked_in_both_charts() -> None:
    text = reward_truth_section([run(diverged=2000.0, name="<run>")])
    assert text.count('class="deadline"') == 2 and "From 2,000 env steps on" in text and "&lt;run&gt;" in text


def test_without_one_there_is_no_mark() -> None:
    text = reward_truth_section([run()])
    assert "deadline" not in text and "was not seen to rise" in text
    assert text.count("<polyline") == 2 and "success in rollouts" in text


def test_long_runs_are_averaged() -> None:
    text = reward_truth_section([run(count=5000)])
    for line in re.findall(r'points="([^"]*)"', text):
        assert len(line.split()) == MOST_POINTS


def test_runs_without_points_are_left_out() -> None:
    assert reward_truth_section([]) == ""
    assert reward_truth_section([RewardTruth("a", [], "iterations", [], [], "success in rollouts", None)]) == ""


def test_the_fine_tuning_page_has_the_section() -> None:
    assert "Reward and truth" in render(ReportData("t", "t", [], {}, reward_truth=[run(diverged=100.0)]))
    assert "Reward and truth" not in render(ReportData("t", "t", [], {}))
