"""Rewards from similarities, worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from robotrl.fn.language_reward import (
    alignment_margin,
    contrast,
    danger_probability,
    driving_synthesis,
    episode_similarity,
    goal_baseline,
    opposite,
    quantile_window,
    thresholded,
    two_paths,
    windowed,
)


def test_contrast_is_the_mean_of_good_minus_the_mean_of_bad() -> None:
    similarity = torch.tensor([[0.4, 0.2, 0.1, 0.3, 0.2], [0.0, 0.0, 0.5, 0.5, 0.5]])
    assert contrast(similarity, 2).tolist() == pytest.approx([0.1, -0.5])


@given(st.integers(0, 10_000), st.floats(0.0, 1.0))
def test_projection_is_the_one_of_the_vectors(seed: int, alpha: float) -> None:
    torch.manual_seed(seed)
    x, g, b = F.normalize(torch.randn(3, 8, dtype=torch.float64), dim=1)
    line = g - b
    on_line = b + ((x - b) @ line) / (line @ line) * line
    expected = 1 - 0.5 * (alpha * on_line + (1 - alpha) * x - g).square().sum()
    found = goal_baseline((x @ g)[None], (x @ b)[None], float(g @ b), alpha)
    assert float(found) == pytest.approx(float(expected), abs=1e-9)


def test_projection_without_strength_is_the_similarity() -> None:
    assert goal_baseline(torch.tensor([0.3]), torch.tensor([0.1]), 0.5, 0.0).item() == pytest.approx(0.3)


def test_the_opposite_takes_the_worst_prompt() -> None:
    assert opposite(torch.tensor([[0.1, 0.4], [0.0, -0.2]])).tolist() == pytest.approx([0.6, 1.0])


def test_a_threshold_gives_one_or_minus_one() -> None:
    assert thresholded(torch.tensor([0.31, 0.32, 0.4]), 0.32).tolist() == [-1.0, 1.0, 1.0]


def test_an_episode_is_compared_by_its_mean_direction() -> None:
    frames = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert episode_similarity(frames.sum(dim=0), torch.tensor([1.0, 0.0])).item() == pytest.approx(1 / math.sqrt(2))


def test_a_window_is_linear_inside_and_flat_outside() -> None:
    assert windowed(torch.tensor([-1.0, 0.0, 0.01, 0.02, 1.0]), 0.0, 0.02).tolist() == pytest.approx([0, 0, 0.5, 1, 1])


def test_a_window_from_quantiles_leaves_out_both_ends() -> None:
    assert quantile_window(torch.arange(101.0), (0.05, 0.5)) == (5.0, 50.0)


def test_synthesis_by_hand() -> None:
    # clear road at half the top speed; danger while standing; in the clear, 1.5 m of 3 m aside and 45 of 90 degrees
    found = driving_synthesis(
        torch.tensor([1.0, 0.0, 1.0]),
        torch.tensor([5.0, 0.0, 10.0]),
        torch.tensor([0.0, 0.0, 1.5]),
        torch.tensor([0.0, 0.0, -math.pi / 4]),
        max_speed_mps=10.0,
        max_offset_m=3.0,
        max_heading_rad=math.pi / 2,
    )
    assert found.tolist() == pytest.approx([0.5, 1.0, 0.25])


def test_the_margin_ignores_neighbors_of_the_taken_action() -> None:
    similarity = torch.log(torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]]))
    neighbors = torch.tensor([[True, True, False], [True, True, True], [False, True, True]])
    taken = torch.tensor([0, 0])
    # of the first, 0.5 against 0.2, as action 1 is a neighbor; of the second, 0.2 against 0.5: nothing
    assert alignment_margin(similarity, taken, neighbors, 1.0).tolist() == pytest.approx([0.3, 0.0])


def test_the_probability_of_danger_by_hand() -> None:
    # safe 0.2 in the mean, danger 0.5 at most: 0.3 / 0.1 in the exponent
    similarity = torch.tensor([[0.1, 0.3, 0.5, -0.5]])
    assert danger_probability(similarity, 2, 0.1).tolist() == pytest.approx([1 / (1 + math.exp(-3.0))])


def test_two_paths_by_hand() -> None:
    static, risk = torch.tensor([0.9, 0.3, 0.5]), torch.tensor([0.6, 0.2, math.nan])
    assert two_paths(static, risk, product=False).tolist() == pytest.approx([0.4, 0.3, 0.5])
    assert two_paths(static, risk, product=True).tolist() == pytest.approx([0.36, 0.24, 0.5])
