"""Arithmetic of learned dynamics, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from robotrl.errors import ConfigError
from robotrl.fn.dynamics.along import value_along
from robotrl.fn.dynamics.gaussian import (
    Moments,
    Prediction,
    bounded,
    choose_elites,
    gaussian_nll,
    of_network,
    squared_error,
)


def test_the_likelihood_of_two_networks() -> None:
    """Errors of 2 and 0 with variances 4 and 1; then of 1 and 1 with variance 1."""
    mean = torch.tensor([[[1.0, 3.0]], [[2.0, 2.0]]])
    log_var = torch.tensor([[[math.log(4.0), 0.0]], [[0.0, 0.0]]])
    target = torch.tensor([[3.0, 3.0]])
    nll = gaussian_nll(Prediction(mean, log_var), target)
    # 1/2 (4 / 4 + log 4) and 0, of which the mean; 1/2 twice
    assert torch.allclose(nll, torch.tensor([(0.5 + 0.5 * math.log(4.0)) / 2, 0.5]))
    assert squared_error(Prediction(mean, log_var), target).tolist() == [2.0, 1.0]


def test_the_best_variance_is_the_squared_error() -> None:
    log_var = torch.tensor([[[0.3]]], requires_grad=True)
    gaussian_nll(Prediction(torch.zeros(1, 1, 1), log_var), torch.full((1, 1), math.exp(0.15))).sum().backward()
    assert log_var.grad is not None and log_var.grad.abs().item() < 1e-6


def test_log_variances_stay_within_bounds_and_have_a_gradient() -> None:
    x = torch.tensor([-40.0, -3.0, 30.0], requires_grad=True)
    y = bounded(x, -10.0, 1.0)
    assert y[0].item() == pytest.approx(-10.0, abs=1e-4) and y[2].item() == pytest.approx(1.0, abs=1e-4)
    assert y[1].item() == pytest.approx(-3.0, abs=0.02)
    y[1].backward()
    assert x.grad is not None and x.grad[1] > 0.9


def test_normalization_is_exact_and_leaves_constants_alone() -> None:
    x = torch.tensor([[1.0, 5.0, 0.1], [3.0, 5.0, 0.1], [1.0, 5.0, 0.1], [3.0, 5.0, 0.1]])
    found = Moments.of(x)
    assert found.mean.tolist() == [2.0, 5.0, pytest.approx(0.1)] and found.std.tolist() == [1.0, 1.0, 1.0]
    assert found.normalize(x)[:, 0].tolist() == [-1.0, 1.0, -1.0, 1.0]
    assert torch.equal(found.restore(found.normalize(x)), x)


def test_elites_are_the_smallest_errors() -> None:
    error = torch.tensor([3.0, math.nan, 1.0, 3.0, math.inf, 2.0])
    assert choose_elites(error, 3).tolist() == [2, 5, 0]
    assert choose_elites(error, 6).tolist() == [2, 5, 0, 3, 1, 4]
    with pytest.raises(ConfigError, match="elites is 7: expected 1 to 6"):
        choose_elites(error, 7)


def test_each_row_is_of_its_own_network() -> None:
    x = torch.arange(12.0).view(3, 2, 2)
    assert of_network(x, torch.tensor([2, 0])).tolist() == [[8.0, 9.0], [2.0, 3.0]]


def test_the_value_along_three_steps_of_a_known_model() -> None:
    """The state doubles and the action is added: 1 and 10 become 3 and 22 with actions 1 and 2 of step 0."""
    start = torch.tensor([[1.0], [10.0]])
    seen = list[int]()

    def act(ctx: torch.Tensor, step: int) -> torch.Tensor:
        seen.append(step)
        return torch.tensor([1.0, 2.0]).view(2, 1, 1) + step

    def value(ctx: torch.Tensor, chunk: torch.Tensor) -> torch.Tensor:
        return ctx[:, 0] + 100 * chunk[:, 0, 0]

    def move(ctx: torch.Tensor, chunk: torch.Tensor) -> torch.Tensor:
        return 2 * ctx + chunk[:, 0]

    assert value_along(start, 1, act, value, move).tolist() == [101.0, 210.0]
    # states 1, 3, 8 and 10, 22, 47; actions 1, 2, 3 and 2, 3, 4
    assert value_along(start, 3, act, value, move).tolist() == [12 + 600, 79 + 900]
    assert seen == [0, 0, 1, 2]
