"""Losses of suggested actions, worked by hand."""

import math

import pytest
import torch

from robotrl.fn.guidance import (
    action_guidance_loss,
    held_line,
    present,
    value_margin_loss,
    warped_cosine,
)

NAN = float("nan")


def test_value_margin_loss():
    suggested = torch.tensor([[3.0, 1.0, 9.0], [2.0, 2.0, 9.0]], requires_grad=True)
    taken = torch.tensor([[1.0, 0.0, 5.0], [1.0, 1.0, 5.0]], requires_grad=True)
    has = torch.tensor([1.0, 1.0, 0.0])
    # first critic: (3 - 1 - 2)^2 = 0, (1 - 0 - 2)^2 = 1; second: (2 - 1 - 2)^2 = 1, (2 - 1 - 2)^2 = 1; three rows
    loss = value_margin_loss(suggested, taken, has, 2.0)
    assert loss.item() == pytest.approx(1 / 3 + 2 / 3)
    loss.backward()
    assert suggested.grad is not None and taken.grad is None
    # d/dq of the mean of three: 2 (q - target) / 3
    expected = torch.tensor([[0.0, -2 / 3, 0.0], [-2 / 3, -2 / 3, 0.0]])
    torch.testing.assert_close(suggested.grad, expected)


def test_action_guidance_loss():
    log_prob = torch.tensor([-1.0, -2.0, -3.0, -4.0], requires_grad=True)
    advantage = torch.tensor([2.0, -1.0, 20.0, 2.0], requires_grad=True)
    has = torch.tensor([1.0, 1.0, 1.0, 0.0])
    out = action_guidance_loss(log_prob, advantage, has, 2.0, 20.0)
    # e^1 for the first, none for the worse second, 20 instead of e^10 for the third, none for the missing last
    assert out.loss.item() == pytest.approx((math.e * 1 + 20 * 3) / 4)
    assert out.share.item() == 0.5
    out.loss.backward()
    assert advantage.grad is None
    torch.testing.assert_close(log_prob.grad, torch.tensor([-math.e / 4, 0.0, -5.0, 0.0]))


def test_a_huge_advantage_stays_finite():
    out = action_guidance_loss(torch.tensor([-1.0]), torch.tensor([1e30]), torch.ones(1), 2.0, 20.0)
    assert out.loss.item() == pytest.approx(20.0)


def test_without_suggestions_there_is_no_gradient():
    log_prob = torch.tensor([-1.0, -2.0], requires_grad=True)
    none = torch.zeros(2)
    for loss in (
        action_guidance_loss(log_prob, torch.ones(2), none, 2.0, 20.0).loss,
        value_margin_loss(log_prob[None], torch.ones(1, 2), none, 2.0),
    ):
        (gradient,) = torch.autograd.grad(loss, log_prob)
        assert loss.item() == 0 and not gradient.any()


@pytest.mark.parametrize("steps, factor", [(0, 1), (50, 1), (75, 0.75), (100, 0.5), (150, 0), (1000, 0)])
def test_held_line(steps, factor):
    assert held_line(steps, 50, 150) == pytest.approx(factor)


def test_a_line_without_hold_or_length():
    assert held_line(0, 0, 10) == 1 and held_line(5, 0, 10) == 0.5
    assert held_line(9, 10, 10) == 1 and held_line(10, 10, 10) == 0


@pytest.mark.parametrize("steps, warp, factor", [(0, 1, 1), (50, 1, 0.5), (100, 1, 0), (300, 1, 0), (50, 2, 0.8535534)])
def test_warped_cosine(steps, warp, factor):
    assert warped_cosine(steps, 100, warp) == pytest.approx(factor)


def test_present():
    value, has = present(torch.tensor([[[0.5, -1.0]], [[NAN, NAN]], [[0.5, NAN]]]))
    assert has.tolist() == [1, 0, 0]
    assert value.tolist() == [[[0.5, -1.0]], [[0.0, 0.0]], [[0.5, 0.0]]]
