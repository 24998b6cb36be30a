"""Trends of a series: pairs counted by hand, and blocks from its end."""

import numpy as np
import pytest

from robotrl.fn.evidence.trend import kendall_trend, last_blocks


def test_trend_is_the_share_of_rising_pairs_less_that_of_falling_ones() -> None:
    # of 1, 3, 2, 2 the pairs are + + + - - and a tie
    assert kendall_trend(np.array([1.0, 3.0, 2.0, 2.0])) == pytest.approx((3 - 2) / 6)
    assert kendall_trend(np.arange(5.0)) == 1.0
    assert kendall_trend(-np.arange(5.0)) == -1.0
    assert kendall_trend(np.ones(4)) == 0.0


def test_deviation_under_independent_noise_is_the_stated_one() -> None:
    rng = np.random.default_rng(0)
    found = [kendall_trend(rng.normal(size=20)) for _ in range(4000)]
    assert np.std(found) == pytest.approx(np.sqrt(2 * 45 / (9 * 20 * 19)), rel=0.05)


def test_blocks_are_counted_from_the_end() -> None:
    assert last_blocks(np.array([9.0, 1.0, 3.0, 5.0, 7.0]), 2, 2).tolist() == [2.0, 6.0]
