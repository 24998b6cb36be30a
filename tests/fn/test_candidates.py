"""Losses over groups of candidates with padding, against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from robotrl.fn.advantage import group_relative, spread_groups
from robotrl.fn.planner.candidates import dual_clip, masked_log_softmax

ALL = torch.ones(1, 1, dtype=torch.bool)


def test_padding_has_no_part_in_the_softmax() -> None:
    scores, valid = torch.tensor([[0.0, math.log(3.0), 50.0]]), torch.tensor([[True, True, False]])
    log_probs = masked_log_softmax(scores, valid)
    assert log_probs[0, :2].exp().tolist() == pytest.approx([0.25, 0.75])
    assert log_probs[0, 2] == 0.0
    other = masked_log_softmax(torch.tensor([[0.0, math.log(3.0), -7.0]]), valid)
    assert torch.equal(log_probs, other)


def test_padding_has_no_gradient() -> None:
    scores = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    masked_log_softmax(scores, torch.tensor([[True, True, False]])).sum().backward()
    assert scores.grad is not None and scores.grad[0, 2] == 0.0 and scores.grad[0, 0] != 0.0


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective"),
    [
        (1.0, 2.0, 2.0),
        (1.5, 2.0, 2.4),  # clipped to 1.2
        (0.5, 2.0, 1.0),  # a ratio below the range is not clipped where the advantage is positive
        (1.1, -2.0, -2.2),
        (0.5, -2.0, -1.6),  # clipped to 0.8
        (2.0, -2.0, -4.0),  # not clipped at 1.2
        (5.0, -2.0, -6.0),  # dual clip: no less than 3 A
        (2.0, 0.0, 0.0),
    ],
)
def test_dual_clip_by_hand(ratio: float, advantage: float, objective: float) -> None:
    log_prob = torch.tensor([[math.log(ratio)]])
    out = dual_clip(log_prob, torch.zeros(1, 1), torch.tensor([[advantage]]), ALL, 0.2, 0.2, 3.0)
    assert float(out.loss) == pytest.approx(-objective, abs=1e-6)


def test_beyond_the_dual_clip_there_is_no_gradient() -> None:
    for ratio, flows in ((2.0, True), (5.0, False)):
        log_prob = torch.tensor([[math.log(ratio)]], requires_grad=True)
        dual_clip(log_prob, torch.zeros(1, 1), torch.tensor([[-1.0]]), ALL, 0.2, 0.2, 3.0).loss.backward()
        assert log_prob.grad is not None and bool(log_prob.grad.abs().sum() > 0) is flows


def test_the_loss_is_a_mean_over_valid_candidates() -> None:
    log_prob, old = torch.zeros(2, 3), torch.zeros(2, 3)
    advantage = torch.tensor([[1.0, 2.0, 99.0], [3.0, 99.0, 99.0]])
    valid = torch.tensor([[True, True, False], [True, False, False]])
    out = dual_clip(log_prob, old, advantage, valid, 0.2, 0.2, 3.0)
    assert float(out.loss) == pytest.approx(-2.0)
    assert float(out.ratio_error) == 0.0 and float(out.clip_fraction) == 0.0


def test_group_relative_with_padding_by_hand() -> None:
    reward = torch.tensor([[1.0, 3.0, 500.0], [2.0, 4.0, 6.0], [7.0, 0.0, 0.0], [5.0, 5.0, 1.0]])
    valid = torch.tensor([[True, True, False], [True] * 3, [True, False, False], [True, True, False]])
    out = group_relative(reward, valid)
    assert out[0].tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5, 0.0], abs=1e-5)
    assert out[1].tolist() == pytest.approx([-1.0, 0.0, 1.0], abs=1e-5)
    assert out[2].tolist() == [0.0, 0.0, 0.0] and out[3].tolist() == [0.0, 0.0, 0.0]
    assert torch.allclose(group_relative(reward, torch.ones(4, 3, dtype=torch.bool)), group_relative(reward))


def test_groups_are_kept_by_their_valid_members() -> None:
    reward = torch.tensor([[1.0, 1.0, 500.0], [0.0, 1.0, 0.0]])
    valid = torch.tensor([[True, True, False], [True, True, False]])
    assert spread_groups(reward, 0.1, valid).tolist() == [1]
    assert spread_groups(reward, 0.1).tolist() == [0, 1]
