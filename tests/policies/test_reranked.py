"""The reranked policy: its candidates, its choice, its encoders, its files and its bundle."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.export import export, parity_of
from robotrl.errors import CapabilityError, ConfigError, DataError
from robotrl.policies.reranked import RerankedCfg, RerankedPolicy, chosen
from robotrl.run.policy_checkpoint import policy_from_tree, policy_tree
from robotrl.spec import HasChain, HasDecode, HasKeyedNoise, HasProposals, Policy
from tests.kits.policy_kit import make_policy, observations
from tests.kits.refusals import raises_naming

CFG = RerankedCfg(candidates=5, width=16, rounds=2)
BASES = ("flow", "diffusion", "shortcut", "flow-picture", "flow-attention-set")


def reranked(base: str = "flow", cfg: RerankedCfg = CFG) -> RerankedPolicy:
    """With scores that differ more than those of fresh weights."""
    policy = cfg.build(make_policy(base))
    with torch.no_grad():
        policy.discriminator.score[1].weight *= 10
    return policy


def noise_of(policy: RerankedPolicy, batch: int, seed: int = 3) -> torch.Tensor:
    return torch.randn((batch, *policy.noise_shape), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("base", BASES)
@torch.no_grad()
def test_it_deploys_the_candidate_with_the_best_score(base):
    policy = reranked(base)
    obs, noise = observations(9, policy=policy), noise_of(policy, 9)
    assert isinstance(policy, Policy) and isinstance(policy, HasProposals) and isinstance(policy, HasKeyedNoise)
    assert not isinstance(policy, HasDecode) and not isinstance(policy, HasChain)
    ctx = policy.base.encode(obs)
    each = [policy.base.decode(ctx, noise[:, 3 * k : 3 * k + 3]) for k in range(5)]
    scores = [policy.discriminator(obs, one[:, None])[:, 0] for one in each]
    best = torch.stack(scores, dim=1).argmax(dim=1)
    expected = torch.stack(each, dim=1)[torch.arange(9), best]
    assert len(best.unique()) > 1
    assert torch.allclose(policy.deploy(obs, noise).normalized_action, expected, atol=1e-5)
    with raises_naming(ConfigError, "noise", None):
        policy.deploy(obs, None)


@torch.no_grad()
def test_candidates_are_scored_each_for_itself():
    """In another order the scores are in that order; another candidate beside it changes no score."""
    policy = reranked()
    obs = observations(4)
    chunks, logits = policy.propose(obs, noise_of(policy, 4))
    order = torch.tensor([3, 1, 4, 0, 2])
    assert torch.allclose(policy.discriminator(obs, chunks[:, order]), logits[:, order], atol=1e-5)
    changed = chunks.clone()
    changed[:, 2] += 1
    again = policy.discriminator(obs, changed)
    keeps = torch.tensor([0, 1, 3, 4])
    assert torch.allclose(again[:, keeps], logits[:, keeps], atol=1e-5)
    assert ((again[:, 2] - logits[:, 2]).abs() > 1e-5).all()


@torch.no_grad()
def test_exploring_draws_candidates_by_their_probabilities():
    policy = reranked()
    one = {key: value.expand(4000, *value.shape[1:]) for key, value in observations(1).items()}
    found = policy.explore(one, torch.Generator().manual_seed(0))
    assert torch.equal(found.actions, policy.to_actions(chosen(found.chunks, found.choice)))
    share = policy.discriminator(one, found.chunks).softmax(dim=1)
    assert torch.allclose(found.log_prob, share.gather(1, found.choice[:, None])[:, 0].log(), atol=1e-5)
    assert share.std() > 0.01
    # drawn as often as their probabilities say: the mean probability of each place
    drawn = torch.bincount(found.choice, minlength=5) / 4000
    assert torch.allclose(drawn, share.mean(dim=0), atol=0.03)
    # and the probable ones more often than by chance
    expected = share.square().sum(dim=1).mean()
    assert found.log_prob.exp().mean().item() == pytest.approx(expected.item(), abs=0.02)


@torch.no_grad()
def test_with_one_candidate_it_is_the_planner():
    policy = reranked(cfg=replace(CFG, candidates=1))
    obs = observations(6)
    acted = [one.act(obs, None, torch.Generator().manual_seed(4)).chunk for one in (policy, policy.base)]
    assert torch.equal(*acted)


def test_encoders_begin_as_copies_of_the_planners_and_are_trained_alone():
    policy = reranked("flow-attention-set")
    obs = observations(4, policy=policy)
    encoder = policy.discriminator.encoder
    with torch.no_grad():
        assert torch.equal(encoder(obs), policy.base.encode(obs))
    base, own = policy.base.scene, encoder.scene
    assert base is not None and own is not None
    assert torch.equal(base.rows["others"][0].weight, own.rows["others"][0].weight)
    logits = policy.discriminator(obs, torch.rand(4, 5, 3, 2))
    logits.square().sum().backward()
    assert all(p.grad is None for p in policy.base.parameters())
    assert all(p.grad is not None for p in policy.discriminator.parameters())
    # road users that are there count, others do not
    obs = observations(4, policy=policy)
    there = obs["others_mask"] > 0
    moved = {**obs, "others": torch.where(there[..., None], obs["others"], obs["others"] + 5)}
    chunks = torch.rand((4, 5, 3, 2), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        # the planner's context has no rows with attention, so that nothing else reads them
        assert torch.equal(policy.discriminator(moved, chunks), policy.discriminator(obs, chunks))
        moved = {**obs, "others": torch.where(there[..., None], obs["others"] + 5, obs["others"])}
        differs = (policy.discriminator(moved, chunks) != policy.discriminator(obs, chunks)).any(dim=1)
    assert torch.equal(differs, there.any(dim=1))


@pytest.mark.parametrize("base", BASES)
def test_it_comes_back_from_a_checkpoint_planner_and_all(base):
    policy = reranked(base)
    tree: Any = policy_tree(policy)
    tree["description"] = json.loads(json.dumps(tree["description"]))
    again = policy_from_tree(tree, "here")
    assert again.to_json() == policy.to_json()
    obs, noise = tree["fingerprint"]["obs"], tree["fingerprint"]["noise"]
    with torch.no_grad():
        assert torch.equal(again.deploy(obs, noise).actions, policy.deploy(obs, noise).actions)
    name = "base.net.layers.0.weight"
    broken = {**tree, "weights": {**tree["weights"], name: tree["weights"][name] + 1.0}}
    with pytest.raises(DataError, match="fingerprint action differs"):
        policy_from_tree(broken, "here")


def test_what_cannot_propose_is_refused():
    with raises_naming(CapabilityError, "policy", "GaussianPolicy", "FlowPolicy"):
        CFG.build(make_policy("gaussian"))
    for changes, field, value in (
        ({"candidates": 0}, "policy.candidates", 0),
        ({"width": 18}, "policy.width", 18),
        ({"width": 0}, "policy.width", 0),
        ({"rounds": 0}, "policy.rounds", 0),
        ({"point_width": 0}, "policy.point_width", 0),
        ({"point_width": 4}, "policy.point_width", 4),
        ({"horizon": 4}, "policy.horizon", 4),
    ):
        with raises_naming(ConfigError, field, value):
            replace(CFG, **changes).build(make_policy("flow"))
    assert replace(CFG, horizon=3, point_width=1).build(make_policy("flow")).horizon == 3


@pytest.mark.parametrize("base", ["flow", "flow-attention-set"])
def test_the_bundle_holds_planner_and_discriminator(tmp_path, base):
    policy = reranked(base)
    recorded = {key: x.numpy() for key, x in observations(1200, policy=policy).items()}
    report = export(policy, tmp_path / "bundle", observations=recorded, control_dt_s=0.1)
    assert report.parity_max_rel <= 1e-5
    bundle = open_bundle(tmp_path / "bundle")
    assert bundle.manifest.sampler.noise_shape == (15, 2)
    fresh = {key: x.numpy() for key, x in observations(100, seed=7, policy=policy).items()}
    assert parity_of(policy, bundle, fresh).max_rel <= 1e-5
    with torch.no_grad():
        policy.discriminator.score[1].weight.neg_()
    assert parity_of(policy, bundle, fresh).max_rel > 1e-3
