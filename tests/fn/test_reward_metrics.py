"""Metrics of rewards against ground truth: areas and correlations worked by hand, and whole episodes resampled."""

import numpy as np
import pytest

from robotrl.fn.evidence.reward_metrics import auc_interval, before_event, correlation_interval, paired_wins
from robotrl.fn.progress.metrics import separation


def test_area_is_the_share_of_pairs_won_and_ties_count_half() -> None:
    score = np.array([3.0, 1.0, 1.0, 0.0])
    success = np.array([True, True, False, False])
    found = auc_interval(score, success, np.arange(4))
    # 3 beats 1 and 0; 1 ties with 1 and beats 0: 3.5 of 4
    assert found is not None and found.value == pytest.approx(3.5 / 4)
    assert found.episodes == 4


def test_area_agrees_with_the_area_of_learned_progress_over_steps_of_several_episodes() -> None:
    rng = np.random.default_rng(0)
    score, positive, episode = rng.integers(0, 9, 300) * 1.0, rng.random(300) < 0.3, rng.integers(0, 7, 300)
    found = auc_interval(score, positive, episode)
    assert found is not None and found.value == pytest.approx(separation(score[positive], score[~positive]))
    assert found.low < found.value < found.high


def test_pairs_are_counted_by_the_episodes_that_they_come_from() -> None:
    pairs = paired_wins(np.array([2.0, 0.0, 1.0, 3.0]), np.array([True, False, True, False]), np.array([0, 0, 1, 1]))
    # 2 beats 0 of its own episode and not 3; 1 beats 0 and not 3
    assert pairs.wins.tolist() == [[1.0, 0.0], [1.0, 0.0]]
    assert pairs.positives.tolist() == pairs.negatives.tolist() == [1.0, 1.0]


def test_repeating_the_steps_of_each_episode_adds_no_certainty() -> None:
    rng = np.random.default_rng(1)
    score, positive, episode = rng.normal(size=40), rng.random(40) < 0.5, np.repeat(np.arange(10), 4)
    once = auc_interval(score, positive, episode)
    often = auc_interval(np.tile(score, 25), np.tile(positive, 25), np.tile(episode, 25))
    assert once is not None and often is not None
    assert often.low == pytest.approx(once.low) and often.high == pytest.approx(once.high)


def test_only_scores_of_one_group_are_compared() -> None:
    # within each group the success is lower; between the groups it is higher
    score = np.array([10.0, 11.0, 0.0, 1.0])
    success = np.array([True, False, True, False])
    found = auc_interval(score, success, np.arange(4), group=np.array([0, 0, 1, 1]))
    assert found is not None and found.value == 0.0
    overall = auc_interval(score, success, np.arange(4))
    assert overall is not None and overall.value == pytest.approx(1 / 4)


@pytest.mark.parametrize("success", [[True, True], [False, False], []])
def test_one_class_has_no_area(success: list[bool]) -> None:
    assert auc_interval(np.zeros(len(success)), np.array(success, bool), np.arange(len(success))) is None


def test_perfect_separation_has_a_narrow_interval() -> None:
    found = auc_interval(np.arange(20.0), np.arange(20) >= 10, np.arange(20))
    assert found is not None and (found.value, found.low, found.high) == (1.0, 1.0, 1.0)


def test_correlation_over_episodes() -> None:
    truth = np.arange(12.0)
    found = correlation_interval(truth**3, truth)
    assert found is not None and found.value == pytest.approx(1.0) and found.low == pytest.approx(1.0)
    assert correlation_interval(truth, np.ones(12)) is None
    assert correlation_interval(truth[:2], truth[:2]) is None


def test_last_steps_before_an_event() -> None:
    event = np.array([False, False, False, True, False, False, True])
    assert before_event(event, 2).tolist() == [False, False, True, True, False, True, True]
    assert before_event(event, 100).all()
    assert not before_event(np.zeros(3, bool), 2).any()
