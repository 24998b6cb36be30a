"""Policies with a condition: their beginning, the dropped condition, guidance, files and bundles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.export import export, parity_of
from robotrl.errors import CapabilityError, ConfigError
from robotrl.policies.conditioned import ConditionedCfg, ConditionedPolicy
from robotrl.policies.networks.condition import DROPPED, NEGATIVE, POSITIVE, appended
from robotrl.run.policy_checkpoint import changed
from robotrl.spec import HasChain, HasDecode, HasDensity, HasLogProb
from robotrl.testing.policies import deploy_noise
from tests.kits.policy_kit import make_policy, observations
from tests.kits.refusals import raises_naming

CFG = ConditionedCfg(hidden=(16,))
BASES = ["flow", "shortcut", "diffusion", "gaussian", "beta"]


def conditioned(base: str, trained: bool = True, **changes: Any) -> ConditionedPolicy:
    torch.manual_seed(1)
    policy = replace(CFG, **changes).build(make_policy(base))
    if trained:
        with torch.no_grad():
            torch.nn.init.normal_(policy.condition.net.layers[-1].weight, std=0.3)
    return policy


@pytest.mark.parametrize("base", BASES)
@torch.no_grad()
def test_it_begins_as_the_policy_that_it_comes_from(base: str) -> None:
    for guidance in (1.0, 1.7) if base in ("flow", "shortcut", "diffusion") else (1.0,):
        plain, policy, obs = make_policy(base), conditioned(base, False, guidance=guidance), observations(9)
        noise = deploy_noise(plain, 9)
        assert torch.equal(policy.deploy(obs, noise).actions, plain.deploy(obs, noise).actions)
        for mode in ("sample", "mean"):
            acts = [one.act(obs, None, torch.Generator().manual_seed(2), mode).chunk for one in (policy, plain)]
            assert torch.equal(*acts)


@pytest.mark.parametrize("base", BASES)
@torch.no_grad()
def test_a_dropped_condition_is_none(base: str) -> None:
    """Whatever the condition network learned: without the condition it is the base policy, to the last bit."""
    policy, obs = conditioned(base), observations(9)
    ctx = policy.base.encode(obs)
    assert torch.equal(policy.conditioned(appended(ctx, DROPPED)), ctx)
    assert not torch.equal(policy.conditioned(appended(ctx, POSITIVE)), policy.conditioned(appended(ctx, NEGATIVE)))
    assert torch.equal(policy.encode(obs), appended(ctx, POSITIVE))
    noise = deploy_noise(policy, 9)
    assert not torch.equal(policy.deploy(obs, noise).actions, policy.base.deploy(obs, noise).actions)


@pytest.mark.parametrize("base", ["flow", "shortcut", "diffusion"])
@torch.no_grad()
def test_the_velocity_is_guided(base: str) -> None:
    """v = v(dropped) + beta (v(positive) - v(dropped)); 0 is the base policy, 1 the conditioned one."""
    obs, x, t = observations(9), torch.randn(9, 3, 2, generator=torch.Generator().manual_seed(3)), torch.full((9,), 0.5)

    def velocity(policy: Any, ctx: Tensor) -> Tensor:
        return policy.velocity(ctx, x, t, 1 - t)

    plain = conditioned(base)
    ctx = plain.encode(obs)
    free, positive = velocity(plain.base, plain.dropped(ctx)), velocity(plain.base, plain.conditioned(ctx))
    assert not torch.allclose(free, positive, atol=1e-3)
    assert torch.equal(velocity(plain, ctx), positive)
    assert torch.equal(velocity(changed(plain, {"guidance": 0.0}), ctx), free)
    assert torch.allclose(velocity(changed(plain, {"guidance": 2.5}), ctx), free + 2.5 * (positive - free), atol=1e-6)
    noise = deploy_noise(plain, 9)
    still = changed(plain, {"guidance": 0.0}).deploy(obs, noise).actions
    assert torch.equal(still, plain.base.deploy(obs, noise).actions)


def test_it_has_the_capabilities_of_its_base() -> None:
    chain, closed = conditioned("flow"), conditioned("gaussian")
    assert isinstance(chain, HasChain) and isinstance(chain, HasDecode) and not isinstance(chain, HasLogProb)
    assert isinstance(closed, HasLogProb) and isinstance(closed, HasDensity) and not isinstance(closed, HasChain)


@pytest.mark.parametrize(("base", "guidance"), [("flow", 2.0), ("gaussian", 1.0)])
def test_the_bundle_holds_the_condition(tmp_path: Path, base: str, guidance: float) -> None:
    policy = conditioned(base, guidance=guidance)
    recorded = {key: x.numpy() for key, x in observations(1200, policy=policy).items()}
    report = export(policy, tmp_path / "bundle", observations=recorded, control_dt_s=0.1)
    assert report.parity_max_rel <= 1e-5
    bundle = open_bundle(tmp_path / "bundle")
    fresh = {key: x.numpy() for key, x in observations(100, seed=7, policy=policy).items()}
    assert parity_of(policy, bundle, fresh).max_rel <= 1e-5
    with torch.no_grad():
        policy.condition.net.layers[-1].weight.zero_()
    assert parity_of(policy, bundle, fresh).max_rel > 1e-3


def test_what_cannot_be_is_refused() -> None:
    with raises_naming(ConfigError, "policy.guidance", -1.0, 0):
        conditioned("flow", guidance=-1.0)
    with raises_naming(ConfigError, "policy.hidden", 0, 1):
        conditioned("flow", hidden=(0,))
    with raises_naming(ConfigError, "policy.horizon", 5, 3):
        conditioned("flow", horizon=5)
    with pytest.raises(CapabilityError, match="guidance is 2: expected 1"):
        conditioned("gaussian", guidance=2.0)
    with pytest.raises(CapabilityError, match="SquashedPolicy cannot be conditioned"):
        conditioned("squashed")
    with pytest.raises(CapabilityError, match="ConditionedChainPolicy cannot be conditioned"):
        CFG.build(conditioned("flow"))
