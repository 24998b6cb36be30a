"""The steered policy: its noise, its bound, its frozen base, its files and its bundle."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.export import export, parity_of
from robotrl.errors import CapabilityError, ConfigError, DataError
from robotrl.policies.flow import FlowPolicy
from robotrl.policies.steered import NoiseActor, SteeredCfg, SteeredPolicy
from robotrl.registry import POLICIES
from robotrl.run.policy_checkpoint import policy_from_tree, policy_tree
from robotrl.spec import HasDecode, Policy
from tests.kits.policy_kit import OBSERVATION_SPEC, make_policy, observations
from tests.kits.refusals import raises_naming

CFG = SteeredCfg(bound=1.5, hidden=(32, 32))
MEAN = replace(CFG, deploy="mean")


def steered(base: str = "flow", cfg: SteeredCfg = CFG, seed: int = 0) -> SteeredPolicy:
    """Steered by an actor that has learned to say something: its mean is far from 0."""
    policy = cfg.build(make_policy(base, seed))
    with torch.no_grad():
        policy.actor.net.layers[-1].weight *= 30
    return policy


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def test_it_is_a_policy_that_draws_noise_with_what_it_is_given():
    policy, obs = steered(), observations(9)
    assert policy.noise_shape == (3, 2)
    with torch.no_grad():
        drawn = policy.actor.draw(policy.encode(obs), normal(9, 3, 2)).noise
        assert torch.equal(policy.deploy(obs, normal(9, 3, 2)).actions, policy.base.deploy(obs, drawn).actions)
    with raises_naming(ConfigError, "noise", None):
        policy.deploy(obs, None)
    with raises_naming(ConfigError, "policy.deploy", "men", nearest="mean"):
        replace(CFG, deploy="men").build(make_policy("flow"))  # pyright: ignore


def test_deployed_by_its_mean_it_takes_no_noise():
    policy = steered(cfg=MEAN)
    assert isinstance(policy, Policy)
    assert not isinstance(policy, HasDecode)
    assert policy.noise_shape is None
    assert POLICIES.load("steered") is SteeredPolicy
    obs = observations(9)
    with torch.no_grad():
        deployed = policy.deploy(obs, None)
        assert torch.equal(deployed.actions, policy.act(obs, mode="mean").chunk)
        assert torch.equal(deployed.actions, policy.deploy(obs, normal(9, 3, 2)).actions)
        drawn = [policy.act(obs, None, torch.Generator().manual_seed(seed)).chunk for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("base", ["flow", "diffusion", "shortcut"])
@torch.no_grad()
def test_what_is_deployed_is_the_base_policy_at_the_actors_mean(base):
    policy, obs = steered(base, MEAN), observations(9)
    noise = policy.actor.mean(policy.base.encode(obs))
    assert (noise.abs() > 0.1).any()
    assert torch.equal(policy.deploy(obs, None).actions, policy.base.deploy(obs, noise).actions)


class Watched(FlowPolicy):
    """A real base policy that remembers what reached its sampler."""

    def decode(self, ctx: Tensor, noise: Tensor) -> Tensor:
        self.seen = noise.detach().clone()
        return super().decode(ctx, noise)


def watched() -> SteeredPolicy:
    base = make_policy("flow")
    other = Watched(base.observation_spec, base.action_spec, base.transforms, base.cfg)
    other.load_state_dict(base.state_dict())
    return CFG.build(other)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.1, 5.0), st.floats(-1e4, 1e4), st.integers(0, 5))
def test_no_element_beyond_the_bound_reaches_the_sampler(bound, size, seed):
    policy = replace(CFG, bound=bound).build(watched().base)
    draws = torch.Generator().manual_seed(seed)
    ctx = policy.encode(observations(4))
    with torch.no_grad():
        policy.steer(ctx, size * torch.randn(4, 3, 2, generator=draws))
        assert policy.base.seen.abs().max() <= bound
        policy.actor.net.layers[-1].weight.mul_(size)
        given_out = policy.actor.draw(ctx, torch.randn(4, 3, 2, generator=draws)).noise
        for noise in (given_out, policy.actor.mean(ctx), policy.actor.plain(torch.rand(4, 3, 2, generator=draws))):
            assert noise.abs().max() <= bound
            policy.steer(ctx, noise)
            # the bound of the sampler changes nothing of what the actor says
            assert torch.equal(policy.base.seen, noise)


def test_plain_noise_at_the_ends_of_the_unit_interval_is_finite():
    actor = NoiseActor(2, 2, 1, CFG)
    ends = torch.tensor([0.0, 0.5, 1.0 - 2**-24]).view(-1, 1, 1).expand(-1, 2, 1)
    found = actor.plain(ends)[:, 0, 0]
    assert found.tolist() == pytest.approx([-1.5, 0.0, 1.5], abs=1e-4)


def test_plain_noise_has_the_moments_of_a_truncated_normal():
    # variance 1 - 2 b phi(b) / (2 Phi(b) - 1)
    bound, density = 1.5, math.exp(-(1.5**2) / 2) / math.sqrt(2 * math.pi)
    variance = 1 - 2 * bound * density / math.erf(bound / math.sqrt(2))
    noise = NoiseActor(2, 3, 2, CFG).plain(torch.rand(40_000, 3, 2, generator=torch.Generator().manual_seed(0)))
    assert noise.mean().item() == pytest.approx(0, abs=0.01)
    assert noise.var().item() == pytest.approx(variance, rel=0.02)
    # every element of a chunk is a number of its own: nothing is repeated along it
    table = torch.corrcoef(noise.flatten(1).T) - torch.eye(6)
    assert table.abs().max() < 0.03


@torch.no_grad()
def test_the_density_is_that_of_a_squashed_normal():
    policy = steered()
    ctx = policy.encode(observations(64)).double()
    actor = policy.actor.double()
    drawn = actor.draw(ctx, normal(64, 3, 2).double())
    mean, log_std = actor(ctx)
    squashed = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, log_std.exp()), [torch.distributions.TanhTransform(cache_size=1)]
    )
    expected = squashed.log_prob(drawn.noise / 1.5).flatten(1).sum(1)
    inside = (drawn.noise / 1.5).abs().flatten(1).amax(1) < 1 - 1e-6
    assert inside.sum() > 30
    assert torch.allclose(drawn.log_prob[inside], expected[inside], atol=1e-4)


@torch.no_grad()
def test_a_fresh_actor_is_about_as_wide_as_plain_noise():
    policy = CFG.build(make_policy("flow"))
    noise = policy.actor.draw(policy.encode(observations(4000)), normal(4000, 3, 2)).noise
    assert noise.std().item() == pytest.approx(0.94, abs=0.1)
    assert noise.mean().item() == pytest.approx(0, abs=0.2)


@pytest.mark.parametrize("shape", [(4, 1, 2), (4, 3, 1), (3, 3, 2), (4, 6), (4, 2)])
def test_noise_of_another_shape_is_refused_with_both_shapes(shape):
    policy = steered()
    with pytest.raises(ConfigError, match=r"noise has shape .*: expected \(4, 3, 2\), a whole chunk"):
        policy.steer(policy.encode(observations(4)), torch.zeros(shape))


@pytest.mark.parametrize("base", ["flow", "diffusion", "shortcut", "flow-picture"])
def test_it_comes_back_from_a_checkpoint_base_and_all(base):
    policy = steered(base)
    tree = policy_tree(policy)
    tree["description"] = json.loads(json.dumps(tree["description"]))
    again = policy_from_tree(tree, "here")
    assert again.to_json() == policy.to_json()
    assert again.to_json()["base"]["kind"] == base.split("-")[0]
    again.check_base()
    obs, noise = tree["fingerprint"]["obs"], tree["fingerprint"]["noise"]
    with torch.no_grad():
        assert torch.equal(again.deploy(obs, noise).actions, policy.deploy(obs, noise).actions)


def test_a_changed_or_missing_base_weight_is_refused():
    policy = steered()
    tree: Any = policy_tree(policy)
    name = "base.net.layers.0.weight"
    broken = {**tree, "weights": {**tree["weights"], name: tree["weights"][name] + 0.1}}
    with pytest.raises(DataError, match="fingerprint action differs"):
        policy_from_tree(broken, "here")
    broken = {**tree, "weights": {key: x for key, x in tree["weights"].items() if key != name}}
    with pytest.raises(DataError, match="lacks weights: base"):
        policy_from_tree(broken, "here")
    with torch.no_grad():
        policy.base.net.layers[0].weight[0, 0] += 1e-6
    with pytest.raises(ConfigError, match="the base policy's weights have SHA-256"):
        policy.check_base()


def test_the_base_is_frozen_and_stays_as_it_is_deployed():
    policy = steered().train()
    assert policy.training
    assert not policy.base.training
    assert not any(p.requires_grad for p in policy.base.parameters())
    assert all(p.requires_grad for p in policy.actor.parameters())


def test_what_cannot_be_steered_is_refused():
    with pytest.raises(CapabilityError, match="policy GaussianPolicy lacks HasDecode: its noise cannot be steered"):
        CFG.build(make_policy("gaussian"))
    with pytest.raises(ConfigError, match=r"policy.horizon is 4: the base policy's horizon is 3"):
        replace(CFG, horizon=4).build(make_policy("flow"))
    for bound in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match=r"policy.bound is .*: expected above 0"):
            replace(CFG, bound=bound).build(make_policy("flow"))
    assert replace(CFG, horizon=3).build(make_policy("flow")).horizon == 3


@pytest.mark.parametrize("cfg", [CFG, MEAN], ids=["sample", "mean"])
def test_the_bundle_holds_actor_and_base(tmp_path, cfg):
    policy = steered(cfg=cfg)
    recorded = {key: x.numpy() for key, x in observations(1200).items()}
    report = export(policy, tmp_path / "bundle", observations=recorded, control_dt_s=0.1)
    assert report.parity_max_rel <= 1e-5
    bundle = open_bundle(tmp_path / "bundle")
    assert (bundle.golden.noise is None) == (cfg.deploy == "mean")
    assert (bundle.manifest.sampler.kind, bundle.manifest.sampler.steps) == (
        ("flow", 4) if cfg.deploy == "sample" else ("none", 0)
    )
    assert set(bundle.golden.observations) == set(OBSERVATION_SPEC)
    fresh = {key: x.numpy() for key, x in observations(200, seed=7).items()}
    assert parity_of(policy, bundle, fresh).max_rel <= 1e-5
    with torch.no_grad():
        policy.actor.net.layers[-1].weight *= 0.5
    assert parity_of(policy, bundle, fresh).max_rel > 1e-3
