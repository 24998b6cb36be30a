"""The best-of-n policy: its choice, and its bundle, which holds candidates and critics."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.export import export, parity_of
from robotrl.errors import CapabilityError, ConfigError
from robotrl.policies.best_of import BestOfCfg, BestOfPolicy
from robotrl.spec import HasChain, HasDecode, HasProposals
from tests.kits.policy_kit import make_policy, observations
from tests.kits.refusals import raises_naming

CFG = BestOfCfg(candidates=5, num_critics=2, critic_hidden=(16, 16))


def best_of_policy(base: str, **changes: Any) -> BestOfPolicy:
    torch.manual_seed(1)
    policy = BestOfCfg(**{**vars(CFG), **changes}).build(make_policy(base))
    with torch.no_grad():
        # values that differ by more than rounding
        policy.critic.layers[-1].weight.mul_(30)
    return policy


@pytest.mark.parametrize("base", ["flow", "diffusion", "gaussian", "squashed"])
@torch.no_grad()
def test_it_executes_the_sample_of_the_largest_value(base: str) -> None:
    obs, noise = observations(9), torch.randn(9, 15, 2, generator=torch.Generator().manual_seed(3))
    for reduction in ("mean", "min"):
        policy = best_of_policy(base, reduction=reduction)
        assert isinstance(policy, HasProposals)
        assert not isinstance(policy, HasDecode) and not isinstance(policy, HasChain)
        found = policy.propose(obs, noise)
        best = found.logits.argmax(1)
        assert len(best.unique()) > 1
        assert torch.equal(policy.deploy(obs, noise).normalized_action, found.chunks[torch.arange(9), best])
        values = policy.critic(policy.encode(obs), found.chunks[:, 2])
        reduced = values.mean(0) if reduction == "mean" else values.amin(0)
        assert torch.allclose(found.logits[:, 2], reduced, atol=1e-5)
    with raises_naming(ValueError, "noise", None):
        policy.deploy(obs, None)


def test_the_bundle_holds_candidates_and_critics(tmp_path) -> None:
    policy = best_of_policy("flow")
    recorded = {key: x.numpy() for key, x in observations(1200, policy=policy).items()}
    report = export(policy, tmp_path / "bundle", observations=recorded, control_dt_s=0.1)
    assert report.parity_max_rel <= 1e-5
    bundle = open_bundle(tmp_path / "bundle")
    assert bundle.manifest.sampler.noise_shape == (15, 2)
    fresh = {key: x.numpy() for key, x in observations(100, seed=7, policy=policy).items()}
    assert parity_of(policy, bundle, fresh).max_rel <= 1e-5
    with torch.no_grad():
        policy.critic.layers[-1].weight.neg_()
    assert parity_of(policy, bundle, fresh).max_rel > 1e-3


def test_what_cannot_be_is_refused() -> None:
    for field, value, expected in (("candidates", 0, 1), ("reduction", "most", "mean")):
        with raises_naming(ConfigError, f"policy.{field}", value, expected):
            best_of_policy("flow", **{field: value})
    with pytest.raises(CapabilityError, match="BetaPolicy"):
        CFG.build(make_policy("beta"))
