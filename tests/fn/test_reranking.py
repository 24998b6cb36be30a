"""The choice among candidates and its entropy bonus, by hand; groups that tell their episodes apart."""

from __future__ import annotations

import math

import pytest
import torch

from robotrl.fn.advantage import spread_groups
from robotrl.fn.planner.reranking import choice_terms, gated_entropy

# a quarter and three quarters
LOGITS = torch.tensor([[0.0, math.log(3.0)], [1.0, 1.0]], dtype=torch.float64)
ENTROPY = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))


def test_probability_and_entropy_of_a_choice():
    terms = choice_terms(LOGITS, torch.tensor([1, 0]))
    assert terms.log_prob.tolist() == pytest.approx([math.log(0.75), math.log(0.5)])
    assert terms.entropy.tolist() == pytest.approx([ENTROPY, math.log(2.0)])
    # a constant added to all scores of a row changes nothing
    moved = choice_terms(LOGITS + 7.0, torch.tensor([1, 0]))
    assert moved.log_prob.tolist() == pytest.approx(terms.log_prob.tolist())


@pytest.mark.parametrize(("target", "active"), [(1.0, 1.0), (0.5, 0.0)])
def test_the_bonus_is_active_below_its_target_alone_and_the_temperature_follows(target, active):
    """Loss by hand: -log alpha (target - entropy) - gate alpha entropy."""
    entropy = torch.tensor([ENTROPY, ENTROPY], dtype=torch.float64, requires_grad=True)
    log_alpha = torch.tensor(math.log(0.1), dtype=torch.float64, requires_grad=True)
    found = gated_entropy(entropy, log_alpha, target)
    assert found.active.item() == active
    assert found.loss.item() == pytest.approx(-math.log(0.1) * (target - ENTROPY) - active * 0.1 * ENTROPY)
    found.loss.backward()
    assert entropy.grad is not None and log_alpha.grad is not None
    # each of the two rows has half of the mean's gradient
    assert entropy.grad.tolist() == pytest.approx([-0.05 * active] * 2)
    # a step downhill raises the temperature below the target, and lowers it above
    assert log_alpha.grad.item() == pytest.approx(ENTROPY - target)


def test_groups_of_nearly_equal_rewards_are_left_out():
    reward = torch.tensor([[1.0, 1.0, 1.0], [0.0, 1.0, 2.0], [1.0, 1.01, 1.02], [5.0, 5.0, 8.0]])
    # unbiased deviations 0, 1, 0.01 and 1.73
    assert spread_groups(reward, 0.05).tolist() == [1, 3]
    assert spread_groups(reward, 0.0).tolist() == [1, 2, 3]
    assert spread_groups(reward, 9.0).tolist() == []
