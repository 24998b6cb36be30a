"""Losses, against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from robotrl.fn.loss import behavior_weight, explained_variance, masked_mse, ppo_clip, value_clipped_mse, value_mse


def test_ppo_clip_worked_by_hand():
    # ratios 1.5 and 0.5 with clip 0.2: min(1.5 * 2, 1.2 * 2) = 2.4; min(0.5 * -1, 0.8 * -1) = -0.8
    log_prob = torch.tensor([1.5, 0.5], dtype=torch.float64).log()
    out = ppo_clip(log_prob, torch.zeros(2, dtype=torch.float64), torch.tensor([2.0, -1.0]), 0.2)
    assert out.loss.item() == pytest.approx(-(2.4 - 0.8) / 2)
    # mean of (ratio - 1) - log ratio
    assert out.approx_kl.item() == pytest.approx(((0.5 - math.log(1.5)) + (-0.5 - math.log(0.5))) / 2)
    assert out.clip_fraction.item() == 1
    assert out.ratio_error.item() == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [(1.5, 1.0, False), (1.5, -1.0, True), (0.5, 1.0, True), (0.5, -1.0, False), (1.1, 1.0, True)],
)
def test_clipping_stops_only_what_would_go_further(ratio, advantage, moves):
    log_prob = torch.tensor([ratio]).log().requires_grad_()
    ppo_clip(log_prob, torch.zeros(1), torch.tensor([advantage]), 0.2).loss.backward()
    assert log_prob.grad is not None
    assert (log_prob.grad.item() != 0) == moves


def test_zero_advantage_gives_exactly_zero_gradient():
    log_prob = torch.tensor([0.3, -0.2]).requires_grad_()
    ppo_clip(log_prob, torch.zeros(2), torch.zeros(2), 0.2).loss.backward()
    assert log_prob.grad is not None
    assert (log_prob.grad == 0).all()


def test_the_untouched_policy_has_ratio_one_and_no_kl():
    log_prob = torch.randn(64)
    out = ppo_clip(log_prob, log_prob.clone(), torch.randn(64), 0.01)
    assert (out.ratio_error, out.approx_kl, out.clip_fraction) == (0, 0, 0)


def test_value_mse_worked_by_hand():
    assert value_mse(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0])).item() == 1.0


def test_value_clipped_mse_worked_by_hand():
    """Old value 0, clip 0.5, target 2 (but 1 in the last row): values 0.2, 1, -1, 1.2."""
    value = torch.tensor([0.2, 1.0, -1.0, 1.2], requires_grad=True)
    old, target = torch.zeros(4), torch.tensor([2.0, 2.0, 2.0, 1.0])
    loss = value_clipped_mse(value, old, target, 0.5)
    # within the clip: 1.8^2; too far towards the target: held at 0.5, 1.5^2; away from it: 3^2, more than 2.5^2;
    # beyond the target: held at 0.5, 0.5^2, more than 0.2^2
    assert loss.item() == pytest.approx(0.5 * (1.8**2 + 1.5**2 + 3**2 + 0.5**2) / 4)
    loss.backward()
    assert value.grad is not None
    assert value.grad.tolist() == pytest.approx([-1.8 / 4, 0, -3 / 4, 0])


def test_a_wide_value_clip_changes_nothing():
    value, old, target = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    assert value_clipped_mse(value, old, target, 100.0) == value_mse(value, target)
    assert value_clipped_mse(value, old, target, 0.1) >= value_mse(value, target)


def test_explained_variance():
    target = torch.tensor([1.0, 2.0, 3.0])
    assert explained_variance(target, target).item() == 1
    assert explained_variance(torch.full((3,), 2.0), target).item() == pytest.approx(0)
    assert explained_variance(torch.randn(3), torch.ones(3)).item() == 0
    # a constant bias is not the critic's failure to explain
    assert explained_variance(target + 5, target).item() == pytest.approx(1)


def test_masked_mse_worked_by_hand():
    prediction = torch.tensor([[[1.0, 2.0], [9.0, 9.0]], [[0.0, 0.0], [4.0, 0.0]]])
    valid = torch.tensor([[True, False], [True, True]])
    # squared errors 1, 4, 0, 0, 16, 0 over 6 valid elements
    assert masked_mse(prediction, torch.zeros(2, 2, 2), valid).item() == pytest.approx(21 / 6)


def test_masked_mse_ignores_padding_and_its_gradient():
    prediction = torch.randn(3, 4, 2, requires_grad=True)
    valid = torch.tensor([[True, True, False, False], [True, False, False, False], [True] * 4])
    target = torch.randn(3, 4, 2)
    other = torch.where(valid[..., None], target, torch.full_like(target, 1e6))
    assert masked_mse(prediction, target, valid) == masked_mse(prediction, other, valid)
    masked_mse(prediction, other, valid).backward()
    assert prediction.grad is not None
    assert (prediction.grad[~valid] == 0).all()
    assert (prediction.grad[valid] != 0).all()


def test_masked_mse_of_no_valid_entry_is_zero():
    assert masked_mse(torch.ones(1, 2, 3), torch.zeros(1, 2, 3), torch.zeros(1, 2, dtype=torch.bool)).item() == 0


def test_the_weight_of_an_older_policys_decisions_worked_by_hand():
    now, then = torch.tensor([0.5, 0.2, 0.9]).log(), torch.tensor([0.25, 0.4, 0.1]).log()
    assert behavior_weight(now, then, most=5.0).tolist() == pytest.approx([2.0, 0.5, 5.0])


def test_the_decoupled_objective_is_ppo_of_weighted_advantages():
    """w min(r A, clip(r) A) with w = 2: proximal ratio 1.5, advantage 1, clipped to 1.2."""
    weight = behavior_weight(torch.tensor([0.5]).log(), torch.tensor([0.25]).log(), most=5.0)
    out = ppo_clip(torch.tensor([0.75]).log(), torch.tensor([0.5]).log(), torch.tensor([1.0]) * weight, 0.2)
    assert out.loss.item() == pytest.approx(-2 * 1.2)
