"""The guided policy: its correction by hand, its units, its files, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch

from robotrl.errors import CapabilityError, ConfigError
from robotrl.fn import chain
from robotrl.policies.flow import FlowCfg, FlowPolicy
from robotrl.policies.gaussian import GaussianCfg
from robotrl.policies.guided import GuidedCfg, GuidedPolicy
from robotrl.registry import POLICIES
from robotrl.spec import COMMITTED, COMMITTED_MASK, Spec, committed_specs, overlap_weights
from robotrl.transforms import Affine, Clip, TransformGroup

OBS = {"state": Spec((2,), ("a", "b"), ("m", "m"), (-1.0,) * 2, (1.0,) * 2)}
ACT = Spec((2,), ("x", "y"), ("m", "m"), (-4.0, -4.0), (4.0, 4.0))
# an action is 2 z + 1, in metres
TRANSFORMS = TransformGroup(outputs=(Affine("action", (2.0, 2.0), (1.0, 1.0)), Clip("action", ACT.low, ACT.high)))


def flow(steps: int = 4, horizon: int = 6, specs: dict[str, Spec] | None = None) -> FlowPolicy:
    torch.manual_seed(0)
    policy = FlowCfg(horizon=horizon, denoising_steps=steps, hidden=(16,)).build(specs or OBS, ACT, TRANSFORMS)
    policy.control_dt_s = 0.05
    return policy


def observed(planned: torch.Tensor, weights: torch.Tensor) -> dict[str, torch.Tensor]:
    state = torch.tensor([[0.3, -0.2]]).expand(len(planned), 2)
    return {"state": state, COMMITTED: planned.flatten(1), COMMITTED_MASK: weights}


def test_weights_decay_from_the_committed_actions_to_the_end_of_the_plan() -> None:
    assert overlap_weights(0, 0, 3) == (0.0, 0.0, 0.0)
    assert overlap_weights(3, 3, 3) == (1.0, 1.0, 1.0)
    # d = 1, n = 3: c is 1, 2/3 and 1/3
    weights = overlap_weights(1, 3, 4)
    expected = [c * (math.exp(c) - 1) / (math.e - 1) for c in (1, 2 / 3, 1 / 3)]
    assert weights == pytest.approx((*expected, 0.0))


def test_one_step_of_the_correction_by_hand() -> None:
    class Still:
        """Velocity 1 everywhere."""

        def velocity(self, ctx, x, t, dt):
            return torch.ones_like(x)

    target, weight = torch.full((1, 2, 1), 3.0), torch.tensor([[[1.0], [0.5]]])
    x, t, dt = torch.zeros(1, 2, 1), torch.tensor([0.5]), torch.tensor([0.25])
    # x_1 = 0 + 0.5 * 1; errors 2.5 and 1.25; r^2 = 0.25 / 0.5, gain = 0.5 / (0.5 * 0.5) = 2
    mean, std = chain.guided(target, weight, most=5.0)(Still(), torch.zeros(1, 1), x, t, dt)
    assert std is None and mean.flatten().tolist() == pytest.approx([0.25 * (1 + 2 * 2.5), 0.25 * (1 + 2 * 1.25)])
    # the gain is limited: by `most`, and at t = 0, where it is infinite, by 1 / dt, at which the target is reached
    mean, _ = chain.guided(target, weight, most=1.0)(Still(), torch.zeros(1, 1), x, t, dt)
    assert mean.flatten().tolist() == pytest.approx([0.25 * (1 + 2.5), 0.25 * (1 + 1.25)])
    mean, _ = chain.guided(target, weight, most=5.0)(Still(), torch.zeros(1, 1), x, 0 * t, torch.ones(1))
    assert mean.flatten().tolist() == pytest.approx([3.0, 2.0])


def test_without_planned_actions_it_is_its_base_bit_for_bit() -> None:
    base = flow()
    policy = GuidedCfg(overlap=3).build(base)
    noise = torch.randn(5, 6, 2)
    obs = observed(torch.rand(5, 3, 2), torch.zeros(5, 3))
    assert torch.equal(policy.deploy(obs, noise).actions, base.deploy({"state": obs["state"]}, noise).actions)


def test_committed_actions_are_kept_in_the_units_of_the_sim() -> None:
    # one step ends at the target exactly
    policy = GuidedCfg(overlap=3, max_gain=50.0).build(flow(steps=1))
    planned = torch.tensor([[[1.5, -0.5], [2.0, 0.0], [2.5, 0.5]]])
    chunk = policy.deploy(observed(planned, torch.tensor([[1.0, 1.0, 0.0]])), torch.randn(1, 6, 2)).actions
    assert torch.allclose(chunk[:, :2], planned[:, :2], atol=1e-6)
    # with four steps and a network they are met closely, and the free actions are the base's own
    base = flow()
    policy = GuidedCfg(overlap=3).build(base)
    noise = torch.randn(1, 6, 2)
    plain = base.deploy({"state": observed(planned, torch.ones(1, 3))["state"]}, noise).actions
    guided = policy.deploy(observed(planned, torch.tensor([[1.0, 1.0, 1.0]])), noise).actions
    before, after = (plain - guided.new_zeros(1))[:, :3] - planned, guided[:, :3] - planned
    assert after.abs().max() < 0.35 * before.abs().max()


def test_it_is_described_and_built_again() -> None:
    policy = GuidedCfg(overlap=2, max_gain=3.0).build(flow())
    again = POLICIES.load("guided").from_json(policy.to_json())
    assert isinstance(again, GuidedPolicy)
    again.load_state_dict(policy.state_dict())
    obs, noise = observed(torch.rand(2, 2, 2), torch.ones(2, 2)), torch.randn(2, 6, 2)
    assert torch.equal(policy.deploy(obs, noise).actions, again.deploy(obs, noise).actions)
    assert again.overlap == 2 and again.control_dt_s == 0.05
    chunk = policy.act(obs, None, torch.Generator().manual_seed(0)).chunk
    assert chunk.shape == (2, 6, 2) and not torch.equal(chunk, policy.act(obs, mode="mean").chunk)


def test_what_cannot_be_guided_is_refused() -> None:
    gaussian = GaussianCfg(horizon=4).build(OBS, ACT, TRANSFORMS)
    with pytest.raises(CapabilityError, match="GaussianPolicy has no denoising chain that could be guided"):
        GuidedCfg().build(gaussian)
    trained = flow(specs=OBS | committed_specs(ACT, 2))
    with pytest.raises(CapabilityError, match="was trained with its committed actions"):
        GuidedCfg(overlap=2).build(trained)
    for overlap in (0, 6):
        with pytest.raises(ConfigError, match=f"overlap is {overlap}: expected a whole number from 1 to 5"):
            GuidedCfg(overlap=overlap).build(flow())
    with pytest.raises(ConfigError, match="horizon is 1: expected 2 or more"):
        GuidedCfg(overlap=1).build(flow(horizon=1))
    with pytest.raises(ConfigError, match="max_gain is 0"):
        GuidedCfg(max_gain=0.0).build(flow())
