"""Testing by betting: capitals worked by hand, and chances of error that hold at every look."""

import math

import numpy as np
import pytest

from robotrl.fn.evidence.sequential import PairedTest, decide, fixed_plan, interval, log_capital

TEST = PairedTest(0.1)


def pairs(rng: np.random.Generator, rows: int, starts: int, differing: float, better: float) -> np.ndarray:
    """(rows, starts) differences of a candidate that is better by `better`, where a share `differing` differs."""
    drawn = rng.random((rows, starts))
    return np.where(drawn < (differing + better) / 2, 1.0, np.where(drawn < differing, -1.0, 0.0))


def test_the_capital_of_three_starts_is_that_worked_by_hand():
    # guess 10 x 0.5 = 5 of 10 starts: mean square 0.5, bets 0.2 and 0.8 of the two parts;
    # then (5 + 1) / 11 and (5 + 1) / 12
    first = 0.75 * 1.2 + 0.25 * 1.8
    second = 0.75 * 1.2 * (1 + 0) + 0.25 * 1.8
    bets = 0.1 / (6 / 12), 0.4 / (6 / 12)
    third = 0.75 * 1.2 * (1 - bets[0]) + 0.25 * 1.8 * (1 - bets[1])
    found = np.exp(log_capital(np.array([1.0, 0.0, -1.0]), 0.1))
    np.testing.assert_allclose(found, [first, second, third])


def test_a_bet_never_costs_the_whole_capital():
    assert np.isfinite(log_capital(np.full(50, -1.0), 0.9)).all()
    assert np.isfinite(log_capital(np.full(50, -1.9), 0.9, -1.9)).all()


def test_bets_do_not_know_the_starts_to_come():
    rng = np.random.default_rng(0)
    row = pairs(rng, 1, 60, 0.4, 0.1)[0]
    other = row.copy()
    other[30:] = -other[30:]
    np.testing.assert_array_equal(log_capital(row, 0.1)[:30], log_capital(other, 0.1)[:30])


def test_it_decides_at_the_first_start_that_suffices_and_stays_with_that():
    wins = np.ones(40)
    found = decide(wins, TEST)
    capital = np.exp(log_capital(wins, 0.1))
    assert found.outcome == "better"
    assert capital[found.starts - 1] >= 20 > capital[found.starts - 2]
    assert decide(np.concatenate([wins, -np.ones(500)]), TEST) == found
    assert decide(-wins, TEST).outcome in ("worse", "not better")
    assert decide(np.zeros(0), TEST) == ("open", 0)
    assert decide(np.zeros(3), TEST) == ("open", 3)
    # no start differs: what is there to detect is not there
    assert decide(np.zeros(500), TEST).outcome == "not better"


@pytest.mark.parametrize("differing", [0.12, 0.3, 0.5])
def test_errors_stay_below_their_chances_and_true_differences_are_found(differing):
    """2,000 pairs each: three standard errors of 5 % are 1.5 points."""
    rng = np.random.default_rng(1)
    starts = 2 * fixed_plan(TEST)

    def shares(better: float) -> dict[str, float]:
        found = [decide(row, TEST).outcome for row in pairs(rng, 2000, starts, differing, better)]
        return {name: found.count(name) / len(found) for name in ("better", "worse", "not better", "open")}

    same, better = shares(0.0), shares(0.1)
    assert same["better"] <= 0.065 and same["worse"] <= 0.065
    assert better["not better"] <= 0.15 + 0.024
    assert better["better"] >= 0.8
    assert better["worse"] == 0.0


def test_it_needs_fewer_starts_than_a_plan_made_beforehand():
    rng = np.random.default_rng(2)
    rows = [pairs(rng, 300, 2 * fixed_plan(TEST), 0.3, better) for better in (0.0, 0.1)]
    mean = np.mean([decide(row, TEST).starts for half in rows for row in half])
    assert mean < 0.5 * fixed_plan(TEST)


def test_the_interval_holds_at_all_times_together_and_agrees_with_the_decision():
    rng = np.random.default_rng(3)
    missed = 0
    for row in pairs(rng, 60, 120, 0.4, 0.2):
        ends = [interval(row[:n], 0.1, 0.05) for n in (10, 40, 120)]
        missed += any(not low <= 0.2 <= high for low, high in ends)
        found = decide(row, PairedTest(0.1, 0.05, 1e-9))
        if found.outcome == "better":
            assert ends[-1][0] > 0
            assert interval(row[: found.starts - 1], 0.1, 0.05)[0] <= 0
    assert missed <= 0.1 * 60
    assert interval(np.zeros(0), 0.1, 0.05) == (-1.0, 1.0)


def test_the_fixed_plan_is_the_normal_approximation():
    # (1.6449 + 1.0364)^2 x (0.5 - 0.01) / 0.01 = 352.3
    assert fixed_plan(TEST) == 353
    assert fixed_plan(TEST, 0.25) == math.ceil(7.18961 * 0.24 / 0.01)


@pytest.mark.parametrize(
    ("differences", "test", "says"),
    [
        ([1.5], TEST, "each from -1 to 1"),
        ([math.nan], TEST, "each from -1 to 1"),
        ([[0.0]], TEST, "expected \\(n,\\)"),
        ([0.0], PairedTest(0.0), "above 0 and below 1"),
        ([0.0], PairedTest(0.1, 1.0), "above 0 and below 1"),
    ],
)
def test_what_is_no_test_is_refused(differences, test, says):
    with pytest.raises(ValueError, match=says):
        decide(np.array(differences), test)
