"""Losses of preferences, worked by hand."""

import math

import pytest
import torch

from robotrl.fn.preferences import (
    best_temperature,
    deterministic_regret,
    ensemble_probability,
    preference_loss,
    preference_probability,
    segment_score,
    step_regret,
)


def test_a_segments_score_is_the_sum_over_its_valid_steps():
    step = torch.tensor([[1.0, 2.0, float("nan")], [4.0, -1.0, 0.5]])
    valid = torch.tensor([[True, True, False], [True, True, True]])
    assert segment_score(step, valid).tolist() == [3.0, 3.5]


def test_the_loss_of_partial_returns_by_hand():
    # returns 1 and 3: the second is preferred with probability 1 / (1 + e^-2) = 0.8808
    logit = torch.tensor([2.0, 2.0])
    assert preference_probability(logit)[0].item() == pytest.approx(0.8807971)
    first, second = preference_loss(logit, torch.tensor([0.0, 1.0])).tolist()
    assert second == pytest.approx(-math.log(0.8807971)) and first == pytest.approx(-math.log(1 - 0.8807971))


def test_answers_drawn_at_random_bound_the_loss_of_a_wrong_one():
    # a tenth is drawn at random: 0.9 * 0.8808 + 0.05
    assert preference_probability(torch.tensor(2.0), 0.1).item() == pytest.approx(0.8427174)
    sure = torch.tensor([100.0])
    assert preference_loss(sure, torch.tensor([0.0]), 0.1).item() == pytest.approx(-math.log(0.05), rel=1e-4)


def test_the_loss_of_regrets_by_hand():
    # softplus(0) = ln 2 of each of two steps against softplus(ln(e - 1)) = 1 of one: 1 < 2 ln 2 = 1.386
    regret = step_regret(torch.tensor([[0.0, 0.0], [math.log(math.e - 1), 5.0]]))
    score = -segment_score(regret, torch.tensor([[True, True], [True, False]]))
    assert score.tolist() == pytest.approx([-2 * math.log(2), -1.0])
    expected = math.log(1 + math.exp(-(2 * math.log(2) - 1)))
    loss = preference_loss(score[1] - score[0], torch.tensor(1.0))
    assert loss.item() == pytest.approx(expected)


def test_a_true_regret_by_hand():
    # V(s0) = 10; two steps of reward 1 and 2, and then V = 8, discounted by 0.5: 10 - (1 + 1) - 0.25 * 8 = 6
    reward = torch.tensor([[1.0, 2.0], [1.0, 7.0]])
    valid = torch.tensor([[True, True], [True, False]])
    regret = deterministic_regret(reward, valid, torch.tensor([10.0, 10.0]), torch.tensor([8.0, 0.0]), 0.5)
    # of the second, only one step is its own, and the task has ended: 10 - 1 - 0
    assert regret.tolist() == [6.0, 9.0]


def test_the_best_possible_behavior_has_no_regret():
    value = torch.tensor([2 - 0.5**2])  # rewards of 1 for two steps at a discount of 0.5 and then 0.5: 1 + 0.5 + 0.25
    reward = torch.ones(1, 2)
    regret = deterministic_regret(reward, torch.ones(1, 2, dtype=torch.bool), value, torch.ones(1), 0.5)
    assert regret.item() == pytest.approx(0.0)


def test_the_temperature_undoes_an_exaggeration():
    draw = torch.Generator().manual_seed(0)
    logit = 2 * torch.randn(4000, generator=draw)
    second = (torch.rand(4000, generator=draw) < torch.sigmoid(logit)).float()
    exaggerated = (5 * logit)[None]
    temperature = best_temperature(exaggerated, second)
    assert temperature == pytest.approx(5.0, rel=0.1)
    assert torch.allclose(ensemble_probability(exaggerated, 5.0), torch.sigmoid(logit), atol=1e-6)
