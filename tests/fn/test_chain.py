"""Chains: one sampler and one likelihood, whatever the kernel."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robotrl.fn.chain import (
    Kernel,
    Transition,
    chain_log_prob,
    cps,
    ddim,
    flow_sde,
    integrate,
    noise_net,
    normal_log_prob,
    ode,
    sample,
    uniform_times,
)
from robotrl.policies.networks.noise import NoiseNet
from tests.kits.policy_kit import make_policy, observations

FLOWS = ("flow", "flow-one-step")
"""tests/conformance/test_policies.py has the ratio of all others."""


def noise_kernel(policy: Any) -> Kernel:
    torch.manual_seed(3)
    net = NoiseNet(policy.context_width, policy.horizon, policy.action_width, 0.08, 0.2)
    return noise_net(net.to(next(policy.parameters()).dtype))


KERNELS = {
    "noise_net": noise_kernel,
    "flow_sde": lambda policy: flow_sde(0.7),
    "ddpm": lambda policy: ddim(1.0, 0.1),
    "ddim": lambda policy: ddim(0.5, 0.05),
    "cps": lambda policy: cps(0.7, 0.05),
}
"""Every stochastic kernel."""


def setup(name: str, dtype: torch.dtype, batch: int = 64) -> tuple[Any, Tensor, Tensor]:
    policy = make_policy(name).to(dtype)
    ctx = policy.encode({key: value.to(dtype) for key, value in observations(batch).items()})
    noise = torch.randn((batch, policy.horizon, 2), generator=torch.Generator().manual_seed(2), dtype=dtype)
    return policy, ctx, noise


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("name", FLOWS)
@torch.no_grad()
def test_the_ratio_is_one_before_the_first_update(name, kernel_name, dtype, tolerance):
    policy, ctx, noise = setup(name, dtype)
    kernel = KERNELS[kernel_name](policy)
    drawn = sample(policy, ctx, kernel, noise, torch.Generator().manual_seed(4))
    again = chain_log_prob(policy, ctx, kernel, drawn.x)
    assert drawn.log_prob.dtype == again.dtype == dtype
    assert again.shape == (64, policy.denoising_steps, policy.horizon, 2)
    assert ((again - drawn.log_prob).exp() - 1).abs().max() <= tolerance


@pytest.mark.parametrize("kernel_name", KERNELS)
@torch.no_grad()
def test_the_likelihood_is_the_normal_density_of_the_step_that_was_taken(kernel_name):
    policy, ctx, noise = setup("flow", torch.float64)
    kernel = KERNELS[kernel_name](policy)
    chain = sample(policy, ctx, kernel, noise)
    dt = torch.full((64,), 0.25, dtype=torch.float64)
    for k in range(4):
        mean, std = kernel(policy, ctx, chain.x[:, k], torch.full((64,), k / 4, dtype=torch.float64), dt)
        assert std is not None
        expected = torch.distributions.Normal(mean, std).log_prob(chain.x[:, k + 1])
        assert torch.allclose(chain.log_prob[:, k], expected, atol=1e-12)


@torch.no_grad()
def test_the_sampler_draws_what_the_kernel_says():
    policy, ctx, noise = setup("flow", torch.float64, batch=4000)
    kernel = noise_kernel(policy)
    chain = sample(policy, ctx, kernel, noise, torch.Generator().manual_seed(5))
    dt = torch.full((4000,), 0.25, dtype=torch.float64)
    for k in range(4):
        mean, std = kernel(policy, ctx, chain.x[:, k], torch.full((4000,), k / 4, dtype=torch.float64), dt)
        assert std is not None
        z = (chain.x[:, k + 1] - mean) / std
        assert z.mean().abs() < 0.03
        assert abs(z.std().item() - 1) < 0.03


@pytest.mark.parametrize("name", FLOWS)
@torch.no_grad()
def test_integrate_is_sample_with_ode_and_sde_without_noise(name):
    policy, ctx, noise = setup(name, torch.float32)
    end = integrate(policy, ctx, noise)
    chain = sample(policy, ctx, ode, noise)
    assert torch.equal(end, chain.x[:, -1])
    assert torch.equal(chain.x[:, 0], noise)
    assert (chain.log_prob == 0).all()
    assert torch.equal(sample(policy, ctx, flow_sde(0.0), noise).x, chain.x)
    assert torch.equal(sample(policy, ctx, ddim(0.0, 0.0), noise).x, chain.x)
    assert torch.equal(policy.decode(ctx, noise), end)
    assert torch.equal(policy.decode(ctx, noise), end)


class GaussianFlow:
    """The exact velocity between noise N(0, 1) and actions N(mean, std^2), K steps."""

    horizon = 1
    action_spec: Any = None

    def __init__(self, mean: float, std: float, steps: int) -> None:
        self.mean, self.std, self.denoising_steps = mean, std, steps
        self.times = uniform_times(steps)

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        return obs["x"]

    def velocity(self, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Tensor:
        t = t[:, None, None]
        variance = (1 - t) ** 2 + (t * self.std) ** 2
        centerd = x - t * self.mean
        return self.mean + centerd * (t * self.std**2 - (1 - t)) / variance


@pytest.mark.parametrize("scale", [0.0, 0.3, 0.7, 1.0])
def test_flow_sde_ends_in_the_distribution_of_the_flow(scale):
    """A wrong sign, factor or time in the drift moves the end's mean or spread far beyond these bounds."""
    policy = GaussianFlow(0.8, 0.4, 100)
    batch = 10_000
    generator = torch.Generator().manual_seed(6)
    noise = torch.randn((batch, 1, 1), generator=generator, dtype=torch.float64)
    end = sample(policy, torch.zeros(batch, 1), flow_sde(scale), noise, generator).x[:, -1]
    assert abs(end.mean().item() - 0.8) < 0.02
    assert abs(end.std().item() - 0.4) < 0.02


@pytest.mark.parametrize("noise", [0.3, 0.7, 1.0])
def test_cps_ends_where_the_flow_does_but_narrower(noise):
    """It keeps the coefficients, not the spread: fresh noise replaces the predicted one, which varies less."""
    policy = GaussianFlow(0.8, 0.4, 100)
    batch = 10_000
    generator = torch.Generator().manual_seed(6)
    start = torch.randn((batch, 1, 1), generator=generator, dtype=torch.float64)
    end = sample(policy, torch.zeros(batch, 1), cps(noise, 1e-6), start, generator).x[:, -1]
    assert abs(end.mean().item() - 0.8) < 0.02
    assert 0.25 < end.std().item() < 0.4


@torch.no_grad()
def test_the_moments_of_cps_by_hand():
    """At t = 0.25 with velocity 2 and x = 1: a = 2.5, e = 0.5. At noise 1/3 the cosine is sqrt(3)/2, the sine 1/2."""

    class Constant(GaussianFlow):
        def velocity(self, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Tensor:
            return torch.full_like(x, 2.0)

    policy, ctx, x = Constant(0.0, 1.0, 4), torch.zeros(1, 1), torch.ones(1, 1, 1, dtype=torch.float64)
    t = torch.tensor([0.25], dtype=torch.float64)
    mean, std = cps(1 / 3, 0.01)(policy, ctx, x, t, t)
    assert std is not None
    assert mean.item() == pytest.approx(0.5 * 2.5 + 0.5 * math.sqrt(3) / 2 * 0.5)
    assert std.item() == pytest.approx(0.5 * 0.5)
    # the last step has no noise of its own: the floor, around the predicted action
    mean, std = cps(1 / 3, 0.01)(policy, ctx, x, 3 * t, t)
    assert std is not None
    assert mean.item() == pytest.approx(1 + 0.25 * 2)
    assert std.item() == pytest.approx(0.01)
    # a larger floor changes no mean
    assert cps(1 / 3, 0.6)(policy, ctx, x, t, t).mean.item() == cps(1 / 3, 0.01)(policy, ctx, x, t, t).mean.item()
    # without noise: the Euler step
    assert cps(0.0, 0.0) is ode
    euler = cps(0.0, 0.01)(policy, ctx, x, t, t).mean
    assert euler.item() == pytest.approx(1.5)


@pytest.mark.parametrize("arguments", [(-0.1, 0.1), (1.1, 0.1), (0.5, -0.1), (0.5, 0.0)])
def test_cps_refuses_what_has_no_density(arguments):
    with pytest.raises(ValueError, match="expected"):
        cps(*arguments)


@pytest.mark.parametrize("eta", [0.3, 0.7, 1.0])
def test_ddim_ends_in_the_distribution_of_the_flow(eta):
    policy = GaussianFlow(0.8, 0.4, 100)
    batch = 10_000
    generator = torch.Generator().manual_seed(6)
    noise = torch.randn((batch, 1, 1), generator=generator, dtype=torch.float64)
    end = sample(policy, torch.zeros(batch, 1), ddim(eta, 1e-6), noise, generator).x[:, -1]
    assert abs(end.mean().item() - 0.8) < 0.02
    assert abs(end.std().item() - 0.4) < 0.02


@given(abar=st.floats(0.01, 0.9), more=st.floats(1.01, 8.0), eta=st.floats(0.0, 1.0), seed=st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_ddim_is_the_published_step_of_a_diffusion(abar, more, eta, seed):
    """In the coordinates of the paper: x = sqrt(abar) a + sqrt(1 - abar) e (Song et al. 2021, eq. 12 and 16)."""
    after = min(0.99, abar * more)
    sigma = eta * math.sqrt((1 - after) / (1 - abar)) * math.sqrt(1 - abar / after)
    generator = torch.Generator().manual_seed(seed)
    action, eps = torch.randn((2, 5, 1, 1), generator=generator, dtype=torch.float64)
    expected = math.sqrt(after) * action + math.sqrt(1 - after - sigma**2) * eps

    def time(level: float) -> tuple[float, float]:
        """t of a level, and what its state is divided by to lie on the straight path."""
        length = math.sqrt(level) + math.sqrt(1 - level)
        return math.sqrt(level) / length, length

    (t, length), (t_after, length_after) = time(abar), time(after)

    class Exact(GaussianFlow):
        def velocity(self, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Tensor:
            return action - eps

    x = (math.sqrt(abar) * action + math.sqrt(1 - abar) * eps) / length
    now, step = (torch.full((5,), v, dtype=torch.float64) for v in (t, t_after - t))
    mean, std = ddim(eta, 1e-12)(Exact(0.0, 1.0, 1), torch.zeros(5, 1), x, now, step)
    assert std is not None
    assert torch.allclose(mean * length_after, expected, atol=1e-9)
    assert torch.allclose(std * length_after, torch.full_like(std, max(sigma, 1e-12)), atol=1e-9)


@pytest.mark.parametrize("arguments", [(-0.1, 0.1), (1.1, 0.1), (0.5, -1.0), (0.5, 0.0)])
def test_ddim_refuses_what_has_no_density(arguments):
    with pytest.raises(ValueError, match="expected"):
        ddim(*arguments)


@pytest.mark.parametrize("kernel_name", KERNELS)
@torch.no_grad()
def test_a_chain_may_be_drawn_and_judged_in_parts(kernel_name):
    policy, ctx, noise = setup("flow", torch.float64)
    kernel = KERNELS[kernel_name](policy)
    whole = sample(policy, ctx, kernel, noise, torch.Generator().manual_seed(4))
    generator = torch.Generator().manual_seed(4)
    first = sample(policy, ctx, kernel, noise, generator, range(3))
    rest = sample(policy, ctx, kernel, first.x[:, -1], generator, range(3, 4))
    assert torch.equal(torch.cat([first.x, rest.x[:, 1:]], 1), whole.x)
    part = chain_log_prob(policy, ctx, kernel, whole.x[:, 1:], range(1, 4))
    assert torch.allclose(part, whole.log_prob[:, 1:], atol=1e-12)
    ends = integrate(policy, ctx, integrate(policy, ctx, noise, range(1)), range(1, 4))
    assert torch.equal(ends, integrate(policy, ctx, noise))


@torch.no_grad()
def test_draws_can_be_bounded():
    policy, ctx, noise = setup("flow", torch.float64, batch=4000)
    kernel = ddim(1.0, 0.1)
    drawn = sample(policy, ctx, kernel, noise, torch.Generator().manual_seed(4), range(1), noise_bound=1.0)
    mean, std = kernel(policy, ctx, noise, torch.zeros(4000, dtype=torch.float64), torch.full((4000,), 0.25))
    assert std is not None
    z = (drawn.x[:, 1] - mean) / std
    assert z.abs().max() == pytest.approx(1.0)
    assert (z.abs() > 0.999).double().mean() > 0.25


def test_the_time_convention_is_noise_at_zero_action_at_one():
    seen: list[float] = []

    def kernel(policy: Any, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Transition:
        seen.append(float(t[0]))
        assert (dt == 0.25).all()
        return Transition(x, torch.ones_like(x))

    policy, ctx, noise = setup("flow", torch.float32)
    chain = sample(policy, ctx, kernel, noise)
    assert seen == [0.0, 0.25, 0.5, 0.75]
    chain_log_prob(policy, ctx, kernel, chain.x)


def test_a_chain_row_is_scored_with_its_own_context_and_time():
    """All K steps go through as one batch; a wrong order of its rows would mix contexts and times."""

    def kernel(policy: Any, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Transition:
        mean = (ctx[:, :1] + 10 * t[:, None])[..., None].expand_as(x)
        return Transition(mean, torch.ones_like(x))

    policy, _, _ = setup("flow", torch.float64)
    ctx = torch.arange(5, dtype=torch.float64)[:, None].repeat(1, 5)
    points = torch.randn(5, 5, 3, 2, dtype=torch.float64)
    found = chain_log_prob(policy, ctx, kernel, points)
    for row in range(5):
        for k in range(4):
            mean = torch.tensor(row + 10 * k / 4, dtype=torch.float64)
            expected = normal_log_prob(points[row, k + 1], mean, torch.ones((), dtype=torch.float64))
            assert torch.allclose(found[row, k], expected)


def test_a_deterministic_kernel_and_a_foreign_length_are_refused():
    policy, ctx, noise = setup("flow", torch.float32)
    points = sample(policy, ctx, ode, noise).x
    with pytest.raises(ValueError, match="deterministic kernel"):
        chain_log_prob(policy, ctx, ode, points)
    with pytest.raises(ValueError, match="3 steps: expected 4"):
        chain_log_prob(policy, ctx, flow_sde(0.5), points[:, :4])


def test_normal_log_prob_of_the_standard_normal():
    found = normal_log_prob(torch.tensor(1.0), torch.tensor(0.0), torch.tensor(1.0))
    assert found.item() == pytest.approx(-0.5 - 0.5 * math.log(2 * math.pi))


@settings(max_examples=50, deadline=None)
@given(
    st.floats(1e-3, 1.0),
    st.floats(1.01, 50.0),
    st.floats(-1e4, 1e4),
    st.floats(0, 1),
    st.integers(0, 5),
)
def test_the_noise_net_stays_inside_its_bounds(low, factor, scale, t, seed):
    """Whatever the context and the weights."""
    torch.manual_seed(seed)
    net = NoiseNet(3, 2, 2, low, low * factor)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter *= 1 + abs(scale)
        std = net(torch.randn(7, 3) * scale, torch.full((7,), t))
    assert std.shape == (7, 2, 2)
    assert (std >= low * (1 - 1e-5)).all()
    assert (std <= low * factor * (1 + 1e-5)).all()


def test_the_noise_net_reaches_both_bounds():
    net = NoiseNet(3, 2, 2, 0.05, 0.2)
    with torch.no_grad():
        for sign, bound in ((1, 0.2), (-1, 0.05)):
            net.net.layers[-1].bias.fill_(sign * 100.0)
            assert torch.allclose(net(torch.zeros(1, 3), torch.zeros(1)), torch.tensor(bound))


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.1), (-0.1, 0.1), (0.2, 0.1), (0.1, 0.1), (math.nan, 0.1)])
def test_the_noise_net_refuses_bounds_that_are_none(low, high):
    with pytest.raises(ValueError, match="expected 0 < low < high"):
        NoiseNet(3, 2, 2, low, high)
