"""The residual policy: it begins as its base, its correction is bounded, and its bundle holds both networks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.export import export, parity_of
from robotrl.errors import CapabilityError, ConfigError
from robotrl.fn.candidates.proposals import sampler_of
from robotrl.policies.best_of import BestOfCfg
from robotrl.policies.residual import ResidualPolicy, ResidualPolicyCfg
from robotrl.run.policy_checkpoint import policy_from_tree, policy_tree
from tests.kits.policy_kit import make_policy, observations
from tests.kits.refusals import raises_naming

CFG = ResidualPolicyCfg(candidates=5, num_critics=2, critic_hidden=(16, 16), hidden=(16,))
BASES = ("flow", "diffusion", "shortcut", "gaussian", "squashed")


def residual_policy(base: str, moved: bool = False, **changes: Any) -> ResidualPolicy:
    torch.manual_seed(1)
    policy = ResidualPolicyCfg(**{**vars(CFG), **changes}).build(make_policy(base))
    with torch.no_grad():
        # values that differ by more than rounding
        policy.critic.layers[-1].weight.mul_(30)
        if moved:
            policy.residual.layers[-1].weight.normal_()
    return policy


@pytest.mark.parametrize("base", BASES)
@torch.no_grad()
def test_it_begins_as_its_base_bit_for_bit(base: str) -> None:
    obs, draw = observations(9), torch.Generator().manual_seed(3)
    for residual_input in ("noise", "chunk"):
        one = residual_policy(base, candidates=1, residual_input=residual_input)
        noise = torch.randn((9, 3, 2), generator=draw)
        sample = one.executed.clip(sampler_of(one.base).sample(one.base.encode(obs), noise))
        deployed = one.deploy(obs, noise)
        assert torch.equal(deployed.normalized_action, sample)
        assert torch.equal(deployed.actions, one.base.to_actions(sample))
        if base not in ("gaussian", "squashed"):
            # the mean of these is deployed, and no sample
            assert torch.equal(deployed.actions, one.base.deploy(obs, noise).actions)
    many = residual_policy(base)
    chooser = BestOfCfg(candidates=5, num_critics=2, critic_hidden=(16, 16)).build(many.base)
    chooser.critic.load_state_dict(many.critic.state_dict())
    noise = torch.randn((9, 15, 2), generator=draw)
    assert torch.equal(many.deploy(obs, noise).actions, chooser.deploy(obs, noise).actions)


@torch.no_grad()
def test_a_chunk_is_corrected_by_at_most_the_scale_and_clipped() -> None:
    obs, noise = observations(9), torch.randn(9, 3, 2, generator=torch.Generator().manual_seed(3))
    policy = residual_policy("flow", moved=True, scale=0.25, candidates=1)
    ctx = policy.encode(obs)
    base, change, chunk = policy.corrected(ctx, noise)
    r = policy.residual(torch.cat([ctx[:, : policy.context_width], noise.flatten(1)], 1)).view(9, 3, 2).tanh()
    assert torch.allclose(change, 0.25 * r) and 0.01 < float(change.abs().max()) <= 0.25
    assert torch.equal(chunk, (base + change).clamp(-1, 1))
    assert torch.equal(policy.deploy(obs, noise).normalized_action, chunk)
    # the critics are not asked
    policy.critic.layers[-1].bias.fill_(torch.nan)
    assert torch.equal(policy.deploy(obs, noise).normalized_action, chunk)


def test_only_the_residual_and_the_critics_are_trained() -> None:
    policy = residual_policy("gaussian")
    trained = {name.split(".")[0] for name, x in policy.named_parameters() if x.requires_grad}
    assert trained == {"residual", "critic"}
    policy.train()
    assert policy.residual.training and not policy.base.training


@pytest.mark.parametrize("base", ["flow", "gaussian"])
@torch.no_grad()
def test_a_copy_draws_with_its_own_base(base: str) -> None:
    obs, noise = observations(9), torch.randn(9, 15, 2, generator=torch.Generator().manual_seed(3))
    policy = residual_policy(base, moved=True)
    one, again = copy.deepcopy(policy), policy_from_tree(policy_tree(policy), "checkpoint")
    before = policy.deploy(obs, noise).actions
    assert torch.equal(again.deploy(obs, noise).actions, before)
    for parameter in policy.base.parameters():
        parameter.zero_()
    assert torch.equal(one.deploy(obs, noise).actions, before)


def test_the_bundle_holds_base_residual_and_critics(tmp_path) -> None:
    for name, candidates, base in (("many", 3, "gaussian"), ("one", 1, "gaussian")):
        policy = residual_policy(base, moved=True, candidates=candidates, residual_input="chunk")
        recorded = {key: x.numpy() for key, x in observations(1100, policy=policy).items()}
        report = export(policy, tmp_path / name, observations=recorded, control_dt_s=0.1)
        assert report.parity_max_rel <= 1e-5
        bundle = open_bundle(tmp_path / name)
        assert bundle.manifest.sampler.noise_shape == (3 * candidates, 2)
        fresh = {key: x.numpy() for key, x in observations(100, seed=7, policy=policy).items()}
        assert parity_of(policy, bundle, fresh).max_rel <= 1e-5
        with torch.no_grad():
            policy.residual.layers[-1].weight.neg_()
        assert parity_of(policy, bundle, fresh).max_rel > 1e-3


def test_what_cannot_be_is_refused() -> None:
    for field, value, expected in (
        ("candidates", 0, 1),
        ("scale", 0.0, 0),
        ("residual_input", "nois", "noise"),
        ("reduction", "most", "mean"),
    ):
        with raises_naming(ConfigError, f"policy.{field}", value, expected):
            residual_policy("flow", **{field: value})
    with pytest.raises(CapabilityError, match="BetaPolicy"):
        CFG.build(make_policy("beta"))
