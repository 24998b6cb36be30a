"""Categorical values, returns, advantages and the filter of progress, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robotrl.fn.progress.metrics import separation
from robotrl.fn.returns.episode_returns import return_scale, returns_to_go, step_advantages, step_rewards
from robotrl.fn.returns.selection import kept_frames, share_threshold
from robotrl.fn.returns.two_hot import bin_centers, expected_value, two_hot, two_hot_loss


def test_a_value_is_spread_over_its_two_nearest_bins() -> None:
    """Bins at -1, -0.75, -0.5, -0.25 and 0."""
    found = two_hot(torch.tensor([-1.0, -0.7, -0.25, 0.0, 0.3, -2.0]), 5, -1.0, 0.0)
    wanted = [
        [1, 0, 0, 0, 0],
        [0, 0.8, 0.2, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1],
        [0, 0, 0, 0, 1],
        [1, 0, 0, 0, 0],
    ]
    assert torch.allclose(found, torch.tensor(wanted), atol=1e-6)


def test_the_mean_of_the_bins_is_the_value() -> None:
    value = torch.linspace(-1, 0, 37, dtype=torch.float64)
    label = two_hot(value, 201, -1.0, 0.0)
    assert torch.allclose(label @ bin_centers(201, -1.0, 0.0, value), value, atol=1e-12)
    logits = torch.log(torch.tensor([[0.25, 0.5, 0.25], [0.0 + 1e-30, 0.5, 0.5]]))
    assert torch.allclose(expected_value(logits, -1.0, 0.0), torch.tensor([-0.5, -0.25]))


def test_the_loss_is_least_where_the_probabilities_are_the_label() -> None:
    """The cross-entropy of (0, 0.8, 0.2) to itself is its entropy."""
    label = torch.tensor([[1e-30, 0.8, 0.2]])
    entropy = -(0.8 * np.log(0.8) + 0.2 * np.log(0.2))
    value = torch.tensor([-0.4])
    assert two_hot_loss(label.log(), value, -1.0, 0.0).item() == pytest.approx(entropy, rel=1e-5)
    assert two_hot_loss(torch.zeros(1, 3), value, -1.0, 0.0).item() == pytest.approx(np.log(3), rel=1e-5)


OFFSETS = np.array([0, 4, 8, 12])
"""Three episodes of four steps: a success, a failure, and one that a time limit cut."""
SUCCESS, FAILED = np.array([True, False, False]), np.array([False, True, False])
REWARDS = step_rewards(OFFSETS, SUCCESS, FAILED, np.full(3, 10.0))


def test_the_returns_of_four_steps() -> None:
    assert REWARDS.tolist() == [-1, -1, -1, 0, -1, -1, -1, -10, -1, -1, -1, -1]
    found = returns_to_go(REWARDS, OFFSETS, np.array([0.0, 0.0, -5.0]))
    assert found.tolist() == [-3, -2, -1, 0, -13, -12, -11, -10, -9, -8, -7, -6]
    # the failure costs 13, all of one task: the worst return is -1
    assert return_scale(found, OFFSETS, np.zeros(3, np.int64)).tolist() == [13, 13, 13]
    assert return_scale(found, OFFSETS, np.array([0, 1, 0])).tolist() == [9, 13, 9]


def test_the_advantages_of_four_steps() -> None:
    """A_t = r_t + r_{t+1} + V(t + 2) - V(t), to the end and no farther."""
    values = np.array([-4.0, -2.0, -1.0, 0.0, -6.0, -7.0, -8.0, -9.0, -5.0, -6.0, -7.0, -8.0])
    found = step_advantages(REWARDS, values, OFFSETS, np.array([False, False, True]), 2)
    success = [-2 - 1 + 4, -2 + 0 + 2, -1 + 1, 0]
    failure = [-2 - 8 + 6, -2 - 9 + 7, -11 + 8, -10 + 9]
    # behind an open end stands the value of its last frame
    cut = [-2 - 7 + 5, -2 - 8 + 6, -1 - 8 + 7, 0]
    assert found.tolist() == [*success, *failure, *cut]
    one = step_advantages(REWARDS[:4], values[:4], OFFSETS[:2], np.array([False]), 1)
    assert one.tolist() == [-1 - 2 + 4, -1 - 1 + 2, -1 + 0 + 1, 0]
    # from far on, the advantage is the return less the value
    far = step_advantages(REWARDS[:4], values[:4], OFFSETS[:2], np.array([False]), 100)
    assert far.tolist() == [-3 + 4, -2 + 2, -1 + 1, 0]


def test_the_best_share_lies_above_the_threshold() -> None:
    values = np.arange(100.0)
    assert (values > share_threshold(values, 0.3)).sum() == 30
    assert (values > share_threshold(values, 0.01)).sum() == 1


def test_a_frame_before_a_loss_of_progress_is_dropped() -> None:
    progress = np.array([0.1, 0.3, 0.1, 0.3, 0.5, 0.2, 0.9])
    offsets = np.array([0, 5, 7])
    # frame 1 falls by 0.2 in the next step; the fall from 0.5 to 0.2 lies between two episodes
    assert kept_frames(progress, offsets, 1, 0.15).tolist() == [True, False, True, True, True, True, True]
    assert kept_frames(progress, offsets, 2, 0.25).all()
    late = np.array([0.5, 0.5, 0.5, 0.0])
    assert kept_frames(late, np.array([0, 4]), 2, 0.1).tolist() == [True, False, False, True]


def test_planted_mistakes_lose_progress() -> None:
    """Walks to the right; in a third of them three steps are undone and made again. Progress is noisy."""
    draw = np.random.default_rng(0)
    progress, planted, lengths = [], [], []
    for episode in range(60):
        steps = np.full(20, 0.05)
        bad = np.zeros(20, np.bool_)
        if episode % 3 == 0:
            at = int(draw.integers(3, 14))
            steps[at : at + 3], bad[at : at + 3] = -0.05, True
        progress.append(np.cumsum(steps) - steps + draw.normal(0, 0.01, 20))
        planted.append(bad)
        lengths.append(20)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values, bad = np.concatenate(progress), np.concatenate(planted)
    drop = ~kept_frames(values, offsets, 1, 0.025)
    assert drop[bad].mean() > 0.9 and drop[~bad].mean() < 0.02
    lost = values - values[np.minimum(np.arange(len(values)) + 1, len(values) - 1)]
    assert separation(lost[bad], lost[~bad]) >= 0.9
