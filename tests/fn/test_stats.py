"""Intervals and means against published values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robotrl.fn.stats import bootstrap, iqm, student_t, t_quantile, wilson


@pytest.mark.parametrize(
    ("successes", "episodes", "low", "high"),
    # (81, 263), (15, 148), (0, 20), (1, 29): the four examples of Newcombe 1998, table I, method 3
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_published_intervals(successes, episodes, low, high):
    found = wilson(successes, episodes)
    assert found.value == successes / episodes
    assert found.episodes == episodes
    assert found.low == pytest.approx(low, abs=5e-5)
    assert found.high == pytest.approx(high, abs=5e-5)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 10_000), st.data())
def test_wilson_holds_its_estimate_and_mirrors(episodes, data):
    successes = data.draw(st.integers(0, episodes))
    here, there = wilson(successes, episodes), wilson(episodes - successes, episodes)
    assert 0 <= here.low <= here.value + 1e-12
    assert here.value - 1e-12 <= here.high <= 1
    assert here.low == pytest.approx(1 - there.high, abs=1e-12)


@pytest.mark.parametrize(("successes", "episodes"), [(0, 0), (-1, 5), (6, 5)])
def test_wilson_refuses_what_is_no_count(successes, episodes):
    with pytest.raises(ValueError, match=f"successes={successes}, episodes={episodes}"):
        wilson(successes, episodes)


def test_iqm_worked_by_hand():
    # of eight, the middle four; of five, weights 0, 3/4, 1, 3/4, 0
    assert iqm(np.array([100.0, 1, 2, 3, 4, 5, 6, -100])) == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert iqm(np.array([0.0, 10, 20, 40, 1000])) == pytest.approx((0.75 * 10 + 20 + 0.75 * 40) / 2.5)
    assert iqm(np.array([7.0])) == 7
    with pytest.raises(ValueError, match="no values"):
        iqm(np.array([]))


def test_bootstrap_of_equal_runs_has_no_width():
    found = bootstrap(np.full(5, 0.8))
    assert found.value == found.low == found.high == pytest.approx(0.8)
    assert found.episodes == 5


def test_bootstrap_is_seeded_and_covers():
    values = np.array([0.5, 0.6, 0.7, 0.8, 0.9])
    found = bootstrap(values)
    assert found == bootstrap(values)
    assert found != bootstrap(values, seed=1)
    assert found.low < found.value == pytest.approx(0.7)
    assert found.value < found.high
    # 40 samples of a known distribution: the interval must hold the truth in most of 40 trials
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(40):
        interval = bootstrap(rng.normal(1.0, 1.0, 40), samples=100, seed=trial)
        hits += interval.low <= 1.0 <= interval.high
    assert hits >= 33
    assert not math.isnan(found.low)


def test_t_quantiles_are_those_of_the_tables():
    for freedom, expected in ((1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423)):
        assert t_quantile(0.975, freedom) == pytest.approx(expected, abs=1e-4)
    assert t_quantile(0.95, 5) == pytest.approx(2.0150, abs=1e-4)
    assert t_quantile(0.975, 100_000) == pytest.approx(1.95999, abs=1e-4)
    for probability, freedom in ((0.5, 3), (1.0, 3), (0.9, 0)):
        with pytest.raises(ValueError, match="expected"):
            t_quantile(probability, freedom)


def test_student_t_by_hand():
    # mean 3, squares 4 + 0 + 4 over 2: deviation 2; 4.3027 * 2 / sqrt(3) = 4.9683
    found = student_t(np.array([1.0, 3.0, 5.0]))
    assert found == pytest.approx((3.0, 3 - 4.96828, 3 + 4.96828, 3), abs=1e-4)
    assert student_t(np.array([2.0, 2.0])) == (2.0, 2.0, 2.0, 2)
    with pytest.raises(ValueError, match="has 1 numbers"):
        student_t(np.array([1.0]))
