"""Metrics and verdicts of rewards: episodes made by hand, so that each number can be worked out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from robotrl.errors import ConfigError
from robotrl.rewards.trust.metrics import JudgeCfg, by_scenario, measure
from robotrl.rewards.trust.recording import TASK, ScoredEpisode
from robotrl.rewards.trust.verdict import judge
from tests.kits.refusals import raises_naming

CFG = JudgeCfg(samples=200, ahead_s=0.2)
DT_S = 0.1


def episode(
    score: list[float],
    success: bool,
    *,
    valid: list[bool] | None = None,
    progress: list[float] | None = None,
    event: bool = False,
    actor: str = "one",
    scenario: str = "",
) -> ScoredEpisode:
    length = len(score)
    ends = np.zeros(length, bool)
    ends[-1] = event
    task = np.zeros(length)
    task[-1] = float(success)
    known = np.ones(length, bool) if valid is None else np.array(valid)
    return ScoredEpisode(
        state_id=0,
        actor=actor,
        scenario=scenario,
        success=success,
        scores={"it": np.array(score), TASK: task},
        valid={"it": known, TASK: np.ones(length, bool)},
        progress=None if progress is None else np.array(progress),
        event=ends,
        actions=np.zeros((length, 1), np.float32),
    )


def good_and_bad(count: int = 8) -> list[ScoredEpisode]:
    """Short successes of a high mean score, and long failures of a low one, whose sum is higher."""
    won = [episode([0.6 + 0.01 * i, 0.6], True) for i in range(count)]
    lost = [episode([0.4 - 0.01 * i] * 20, False) for i in range(count)]
    return [*won, *lost]


def test_mean_last_score_and_return_are_different_judges() -> None:
    found = measure(good_and_bad(), "it", DT_S, CFG)
    assert (found.episodes, found.successes, found.events, found.valid) == (16, 8, 0, 1.0)
    assert found.auc_mean is not None and found.auc_mean.value == 1.0
    assert found.auc_final is not None and found.auc_final.value == 1.0
    assert found.auc_return is not None and found.auc_return.value == 0.0
    assert found.auc_event is None and found.progress is None and found.auc_same is None


def test_a_sum_that_favors_failures_is_part_of_the_verdict() -> None:
    said = judge(measure(good_and_bad(), "it", DT_S, CFG), CFG, "failures")
    assert said.standing == "tells" and said.sentences[0] == "tells success from failure (AUC 1.00, 1.00 to 1.00)"
    assert "not finishing" in said.text


def test_what_is_judged_by_is_a_setting() -> None:
    by_return = JudgeCfg(samples=200, by="return")
    said = judge(measure(good_and_bad(), "it", DT_S, by_return), by_return, "failures")
    assert said.standing == "opposed" and "AUC of the return" in said.sentences[0]
    # near misses: high all the time, and low at the end
    episodes = [episode([0.1, 1.0], True) for _ in range(8)] + [episode([0.9, 0.8], False) for _ in range(8)]
    said = judge(measure(episodes, "it", DT_S, CFG), CFG, "failures")
    assert said.standing == "opposed" and "last score in an episode does" in said.text
    with raises_naming(ConfigError, "judge.by", "last", "mean", "final", "return"):
        unknown: Any = "last"
        JudgeCfg(by=unknown).check()


def test_invalid_scores_count_for_nothing() -> None:
    noisy = [
        episode([0.9, -50.0, 0.8], True, valid=[True, False, True]),
        episode([0.2, 90.0, 0.1], False, valid=[True, False, True]),
        episode([7.0], False, valid=[False]),
    ]
    found = measure(noisy, "it", DT_S, CFG)
    assert found.auc_mean is not None and found.auc_mean.value == 1.0 and found.auc_mean.episodes == 2
    assert found.valid == pytest.approx(4 / 7)


def test_scores_before_a_collision_are_compared_with_all_others() -> None:
    # 0.2 s are two steps of 0.1 s: 0.1 and 0.6 are before the event, 0.5 and the other episode's 0.7 are not
    found = measure([episode([0.5, 0.1, 0.6], False, event=True), episode([0.7], True)], "it", DT_S, CFG)
    # 0.5 beats 0.1 of 0.1 and 0.6; 0.7 beats both: 3 of 4
    assert found.auc_event is not None and found.auc_event.value == pytest.approx(3 / 4)
    assert found.events == 1


def test_score_may_follow_the_progress_or_its_change() -> None:
    rising = measure([episode([1, 2, 3, 4], True, progress=[0, 1, 5, 6]), episode([0], False)], "it", DT_S, CFG)
    assert rising.progress is not None and rising.progress.value == pytest.approx(1.0)
    # changes are 1, 4, 1 at scores 2, 3, 4; the first step has none
    assert rising.advance is not None and rising.advance.value == pytest.approx(0.0)
    change = measure([episode([9, 1, 4, 2], True, progress=[0, 1, 5, 7])], "it", DT_S, CFG)
    assert change.advance is not None and change.advance.value == pytest.approx(1.0)


def test_unknown_progress_is_left_out() -> None:
    found = measure([episode([1, 2, 3, 0], True, progress=[0, 1, 2, float("nan")])], "it", DT_S, CFG)
    assert found.progress is not None and found.progress.value == pytest.approx(1.0)


def test_a_reward_that_knows_who_acts_is_found_out() -> None:
    # the deft actor mostly succeeds and scores high; among its own rollouts the score says nothing
    mixed = [episode([0.9 + 0.01 * (i % 3)], i % 4 != 0, actor="deft") for i in range(24)]
    mixed += [episode([0.1 + 0.01 * (i % 3)], i % 4 == 0, actor="wild") for i in range(24)]
    found = measure(mixed, "it", DT_S, CFG)
    said = judge(found, CFG, "failures")
    assert said.standing == "tells"
    assert found.auc_same is not None and found.auc_same.value == pytest.approx(0.5, abs=0.1)
    assert "who acts" in said.text


@pytest.mark.parametrize(
    ("won", "lost", "standing"),
    [
        ([0.9] * 9, [0.1] * 9, "tells"),
        ([0.1] * 9, [0.9] * 9, "opposed"),
        ([0.5] * 9, [0.5] * 9, "fails"),
        ([0.5, 0.9] * 30, [0.5, 0.7] * 30, "weak"),
        ([0.9] * 9, [0.1] * 4, "not judged"),
        ([0.9] * 9, [], "not judged"),
        ([], [0.9] * 9, "not judged"),
    ],
)
def test_standing(won: list[float], lost: list[float], standing: str) -> None:
    episodes = [episode([x], True) for x in won] + [episode([x], False) for x in lost]
    said = judge(measure(episodes, "it", DT_S, CFG), CFG, "failures")
    assert said.standing == standing
    assert ("not advised" in said.text) is (standing in ("opposed", "fails"))


def test_without_a_stated_success_or_a_valid_score_nothing_is_judged() -> None:
    said = judge(measure(good_and_bad(), "it", DT_S, CFG), CFG, "failures", "unstated")
    # failures have the higher sum, and successes the sim's 1: the returns are at odds
    assert said.standing == "not judged" and "does not agree with the sim's own" in said.sentences[1]
    silent = [episode([0.0], i > 5, valid=[False]) for i in range(12)]
    said = judge(measure(silent, "it", DT_S, CFG), CFG, "failures")
    assert said.standing == "not judged" and "valid" in said.sentences[0]


def test_scenarios_are_measured_apart() -> None:
    episodes = [
        episode([0.9], True, scenario="b"),
        episode([0.1], False, scenario="b"),
        episode([0.1], True, scenario="a"),
    ]
    found = by_scenario(episodes, "it", DT_S, CFG)
    assert list(found) == ["a", "b"]
    assert found["a"].auc_mean is None
    assert found["b"].auc_mean is not None and found["b"].auc_mean.value == 1.0
    assert by_scenario(good_and_bad(), "it", DT_S, CFG) == {}


def test_settings_out_of_range_are_refused() -> None:
    with raises_naming(ConfigError, "judge.tells", 0.4, 0.5, 1):
        JudgeCfg(tells=0.4).check()
    with raises_naming(ConfigError, "judge.samples", 3, 100):
        JudgeCfg(samples=3).check()
