"""Held-out quality of a critic, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from robotrl.fn.evidence.critic_quality import critic_quality, discounted_returns, held_out

OFFSETS = np.array([0, 4, 7, 9, 10])
"""Episodes of 4, 3, 2 and 1 frames."""


def test_returns_are_discounted_from_the_beginning_of_each_episode() -> None:
    rewards = np.array([0, 0, 0, 1.0, 1, 0, 0, 0, 2, 5])
    assert discounted_returns(rewards, OFFSETS, 0.5).tolist() == [0.125, 1.0, 1.0, 5.0]


def test_the_second_half_is_compared_with_the_outcome() -> None:
    # halves are the last 2, 1, 1 and 1 frames, with means 1, 3, 2 and 0; the rest would say otherwise
    values = np.array([0, 9, 2, 0.0, 4, -9, 3, 2, 2, 0])
    returns = np.array([1.0, 3.0, 2.0, 0.0])
    found = critic_quality(values, OFFSETS, returns, np.array([False, True, True, False]))
    assert found.rank == pytest.approx(1.0)
    # first values of successes 4 and 2, of failures 0 and 0; last quarters are single frames, 3 and 2 against 0 and 0
    assert (found.auc_start, found.auc_late) == (1.0, 1.0)
    assert critic_quality(values, OFFSETS, -returns, None).rank == pytest.approx(-1.0)
    values[3] = 2.0
    # halves are now 2, 3, 2 and 0; last quarters 3 and 2 against 2 and 0
    assert critic_quality(values, OFFSETS, returns, np.array([False, True, True, False])).auc_late == 0.875


def test_what_cannot_be_told_is_not_said() -> None:
    values, two = np.arange(7.0), OFFSETS[:3]
    assert critic_quality(values, two, np.array([0.0, 1.0]), None) == (None, None, None)
    alike = critic_quality(np.arange(10.0), OFFSETS, np.ones(4), np.ones(4, bool))
    assert alike == (None, None, None)


def test_both_kinds_are_held_out_in_the_same_share() -> None:
    success = np.arange(50) < 10
    out = held_out(success, 50, 0.2, 0)
    assert (out[success].sum(), out[~success].sum()) == (2, 8)
    assert (held_out(success, 50, 0.2, 0) == out).all() and (held_out(success, 50, 0.2, 1) != out).any()
    # of two, one is held out and one is left; a single one is left; a share of 0 holds out none
    assert held_out(np.array([True, True, False]), 3, 0.01, 0)[:2].sum() == 1
    assert not held_out(np.array([True, True, False]), 3, 0.9, 0)[2]
    assert held_out(None, 40, 0.1, 0).sum() == 4 and not held_out(success, 50, 0.0, 0).any()
