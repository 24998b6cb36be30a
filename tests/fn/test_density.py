"""Densities in closed form, against numbers worked by hand, torch's own distributions, and quadrature."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robotrl.fn.density import EDGE, BetaDensity, NormalDensity

F64 = torch.float64
parameter = st.floats(1.0, 60.0)


def beta(a: float, b: float, dtype: torch.dtype = F64) -> BetaDensity:
    return BetaDensity(torch.full((1, 1, 1), a, dtype=dtype), torch.full((1, 1, 1), b, dtype=dtype))


def test_a_parabola_worked_by_hand():
    """Beta(2, 2) on [0, 1] is 6 u (1 - u); on twice the length it is half as high."""
    density = beta(2, 2)
    raw = torch.tensor([[[0.0]], [[0.5]], [[-0.5]]], dtype=F64)
    assert density.log_prob(raw).exp().flatten().tolist() == pytest.approx([0.75, 0.5625, 0.5625])
    assert density.mean.item() == 0
    assert density.std.item() == pytest.approx(2 / math.sqrt(20))
    # ln B(2, 2) + 2 (psi(4) - psi(2)) + ln 2, where psi(4) - psi(2) = 1/2 + 1/3
    assert density.entropy().item() == pytest.approx(math.log(1 / 6) + 2 * (1 / 2 + 1 / 3) + math.log(2))


def test_with_both_parameters_one_it_is_uniform():
    density = beta(1, 1)
    raw = torch.linspace(-1, 1, 9, dtype=F64).reshape(9, 1, 1)
    assert density.log_prob(raw).flatten().tolist() == pytest.approx([-math.log(2)] * 9)
    assert density.entropy().item() == pytest.approx(math.log(2))
    assert density.std.item() == pytest.approx(2 / math.sqrt(12))


@settings(max_examples=60, deadline=None)
@given(parameter, parameter)
def test_a_beta_density_integrates_to_one(a, b):
    """And its first moments and entropy are what the closed forms say."""
    x, weight = (torch.from_numpy(values) for values in np.polynomial.legendre.leggauss(400))
    density = beta(a, b)
    log_prob = density.log_prob(x.reshape(-1, 1, 1)).flatten()
    mass = weight * log_prob.exp()
    mean = (mass * x).sum()
    assert mass.sum().item() == pytest.approx(1, abs=1e-4)
    assert density.mean.item() == pytest.approx(mean.item(), abs=1e-4)
    assert density.std.item() == pytest.approx(((mass * (x - mean) ** 2).sum()).sqrt().item(), abs=1e-4)
    assert density.entropy().item() == pytest.approx(-(mass * log_prob).sum().item(), abs=2e-4)


@settings(max_examples=60, deadline=None)
@given(parameter, parameter, st.floats(-0.999, 0.999))
def test_it_is_the_beta_distribution_of_torch_stretched(a, b, raw):
    density = beta(a, b)
    theirs = torch.distributions.Beta(density.alpha, density.beta)
    x = torch.full((1, 1, 1), raw, dtype=F64)
    expected = theirs.log_prob((x + 1) / 2) - math.log(2)
    assert density.log_prob(x).item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-9)
    assert density.entropy().item() == pytest.approx(theirs.entropy().item() + math.log(2), abs=1e-9)
    assert density.mean.item() == pytest.approx(2 * theirs.mean.item() - 1, abs=1e-12)
    assert density.std.item() == pytest.approx(2 * theirs.stddev.item(), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_it_and_its_slopes_are_finite_everywhere(dtype):
    """At the bounds and beyond them, as a recorded action may lie."""
    ends = torch.tensor([-2.0, -1.0, -1 + EDGE, 1.0, 2.0], dtype=dtype).reshape(-1, 1, 1)
    a, b = (torch.full((5, 1, 1), value, dtype=dtype, requires_grad=True) for value in (30.0, 1.0))
    density = BetaDensity(a, b)
    found = density.log_prob(ends).sum() + density.entropy().sum()
    found.backward()
    for value in (found, a.grad, b.grad):
        assert value is not None
        assert value.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_samples_have_the_moments_that_they_claim_and_lie_inside(dtype):
    a = torch.tensor([[1.0, 1.7], [4.0, 200.0]], dtype=dtype)
    b = torch.tensor([[60.0, 1.7], [2.0, 100.0]], dtype=dtype)
    density = BetaDensity(a, b)
    many = BetaDensity(a.expand(40_000, 2, 2), b.expand(40_000, 2, 2))
    raw = many.sample(torch.Generator().manual_seed(1))
    assert raw.dtype == dtype
    assert raw.abs().max() < 1
    assert torch.allclose(raw.std(0), density.std, rtol=0.03)
    assert ((raw.mean(0) - density.mean).abs() < 0.03 * density.std).all()
    # the mean of the log-density over samples is the entropy, but for its sign
    assert torch.allclose(-many.log_prob(raw).mean(0), density.entropy(), atol=0.03)


def test_a_generator_gives_the_same_samples_again():
    density = BetaDensity(torch.full((64, 2, 3), 1.7), torch.full((64, 2, 3), 2.5))

    def draw(seed: int) -> torch.Tensor:
        return density.sample(torch.Generator().manual_seed(seed))

    assert torch.equal(draw(0), draw(0))
    assert not torch.equal(draw(0), draw(1))
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(density.sample(generator), draw(0))
    assert not torch.equal(density.sample(generator), draw(0))


def test_the_normal_density_is_that_of_torch():
    mean, log_std = torch.randn(5, 2, 3, dtype=F64), torch.randn(2, 3, dtype=F64)
    density = NormalDensity(mean, log_std)
    theirs = torch.distributions.Normal(mean, log_std.exp())
    raw = density.sample(torch.Generator().manual_seed(0))
    assert torch.allclose(density.log_prob(raw), theirs.log_prob(raw))
    assert torch.allclose(density.entropy().expand_as(mean), theirs.entropy())
    assert torch.allclose(density.std.expand_as(mean), theirs.stddev)
