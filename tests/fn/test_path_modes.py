"""Paths, points along them, and the loss of several modes, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from robotrl.fn.planner.path_modes import path_of, points_at, winner_takes_all


def test_a_path_without_turns_is_straight_and_turns_add_up() -> None:
    assert torch.allclose(path_of(torch.zeros(3), 2.0), torch.tensor([[2.0, 0.0], [4.0, 0.0], [6.0, 0.0]]))
    square = path_of(torch.tensor([0.0, math.pi / 2, math.pi / 2]), 1.0)
    assert torch.allclose(square, torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]), atol=1e-6)


def test_points_of_a_path_are_equally_spaced_whatever_the_turns() -> None:
    turns = torch.randn((5, 4, 12), generator=torch.Generator().manual_seed(0))
    path = path_of(turns, 2.0)
    knots = torch.cat([torch.zeros_like(path[..., :1, :]), path], dim=-2)
    assert torch.allclose(knots.diff(dim=-2).norm(dim=-1), torch.full((5, 4, 12), 2.0), atol=1e-5)


def test_points_at_distances_between_knots_and_beyond_the_last_one() -> None:
    path = torch.tensor([[[2.0, 0.0], [2.0, 2.0]]])
    found = points_at(path, 2.0, torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0, 7.0]]))
    # beyond the last point straight on
    expected = [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [2.0, 1.0], [2.0, 2.0], [2.0, 5.0]]
    assert torch.allclose(found, torch.tensor([expected]))
    assert points_at(path, 2.0, torch.tensor([3.0])).tolist() == [[2.0, 1.0]]


def test_the_winner_alone_is_drawn_to_the_path() -> None:
    """Two modes of two points; the way is at distances 3 and 1 from them, so the second one wins."""
    way = torch.tensor([[[2.0, 0.0], [4.0, 0.0]]])
    paths = torch.stack([way + torch.tensor([0.0, 3.0]), way + torch.tensor([0.0, -1.0])], dim=1).requires_grad_()
    logits = torch.tensor([[0.0, math.log(3.0)]], requires_grad=True)
    found = winner_takes_all(paths, logits, way, torch.ones(1, 2, dtype=torch.bool))
    assert found.winner.tolist() == [1]
    assert found.regression.item() == pytest.approx(1.0, abs=1e-4)
    assert found.classification.item() == pytest.approx(-math.log(3 / 4), abs=1e-6)
    (found.regression + found.classification).backward()
    assert paths.grad is not None and logits.grad is not None
    assert paths.grad[0, 0].abs().max() == 0
    # each of two points has half of the mean, and pulls back from the right
    assert torch.allclose(paths.grad[0, 1], torch.tensor([[0.0, -0.5], [0.0, -0.5]]), atol=1e-4)
    # softmax minus winner
    assert torch.allclose(logits.grad, torch.tensor([[0.25, -0.25]]), atol=1e-6)


def test_points_that_the_log_does_not_have_count_nothing() -> None:
    way = torch.zeros(2, 2, 2)
    paths = torch.full((2, 1, 2, 2), 7.0)
    paths[0, 0, 0] = torch.tensor([0.0, 2.0])
    valid = torch.tensor([[True, False], [False, False]])
    found = winner_takes_all(paths, torch.zeros(2, 1), way, valid)
    assert found.regression.item() == pytest.approx(2.0, abs=1e-4)
    assert winner_takes_all(paths, torch.zeros(2, 1), way, torch.zeros(2, 2, dtype=torch.bool)).regression.item() == 0
