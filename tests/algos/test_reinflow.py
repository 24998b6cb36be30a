"""ReinFlow on the walk."""

from __future__ import annotations

import copy
import math
from dataclasses import fields, replace

import pytest
import torch

from robotrl.algos.reinflow import ReinFlowCfg, entropy_rate, joint_log_prob, policy_loss, upper_bound
from robotrl.cli.train_help import field_texts
from robotrl.errors import CapabilityError, ConfigError, NumericsError
from robotrl.fn.chain import chain_log_prob, noise_net
from robotrl.learners.denoising import ChainCfg
from robotrl.learners.on_policy import OnPolicyBatch, epoch_order, make_batch
from robotrl.policies.networks.noise import NoiseNet
from robotrl.rollout.evaluate import evaluate
from robotrl.run.policy_checkpoint import policy_tree
from tests.kits.learner_kit import (
    ACTION,
    FLOW,
    REINFLOW,
    SHORTCUT,
    SPECS,
    TRANSFORMS,
    flow,
    gaussian,
    same,
    setup,
    snapshot,
)
from tests.kits.walk_sim import Walk


def batch_of(learner, steps: int = 8) -> OnPolicyBatch:
    rollout = learner._collector.rollout(steps)
    return make_batch(rollout, learner.loss.value, 0.99, 0.95)


def surrogate(learner, batch: OnPolicyBatch, clip_coef: float = 0.01):
    rows = batch.rows()
    return policy_loss(learner.loss.log_prob(rows, learner.policy.encode(batch.obs)), rows, clip_coef)


def test_the_ratio_is_one_before_the_first_update():
    """Per decision through the learner, and per element of the chain."""
    learner = replace(REINFLOW, critic_warmup_env_steps=0).build(setup(flow()))
    batch = batch_of(learner)
    ctx = learner.policy.encode(batch.obs)
    found = chain_log_prob(learner.policy, ctx, noise_net(learner.loss.std), batch.record["chain"])
    assert (joint_log_prob(found) - batch.record["log_prob"]).abs().max() * found[0].numel() < 1e-4
    assert learner.iterate()["ratio_error"] <= 1e-5


def test_only_decisions_begun_before_an_update_have_another_ratio():
    learner = replace(REINFLOW, critic_warmup_env_steps=0, num_steps=5).build(setup(flow()))
    for iteration in range(3):
        carried = learner._collector.state()["pending_envs"].tolist()
        rollout = learner._collector.rollout(5)
        assert bool(carried) == (iteration > 0)
        old = torch.tensor([row == 0 and env in carried for row, env in torch.nonzero(rollout.valid).tolist()])
        batch = make_batch(rollout, learner.loss.value, 0.99, 0.95)
        kernel, ctx = noise_net(learner.loss.std), learner.policy.encode(batch.obs)
        log_prob = joint_log_prob(chain_log_prob(learner.policy, ctx, kernel, batch.record["chain"]))
        assert ((log_prob - batch.record["log_prob"]).exp() - 1).abs()[~old].max() <= 1e-5
        learner.iterate()


def test_an_iteration_is_what_plain_torch_would_do():
    """The engine against autograd, two Adams and torch's own clipping, written out, over one iteration."""
    cfg = replace(REINFLOW, critic_warmup_env_steps=0, entropy_coef=0.01)
    learner = cfg.build(setup(flow()))
    plain = copy.deepcopy(learner.loss)
    actor = torch.optim.Adam(plain.actor.parameters(), lr=cfg.lr)
    critic = torch.optim.Adam(plain.critic.parameters(), lr=cfg.critic_lr)
    rollout = learner._collector.rollout(cfg.num_steps)
    learner._collector.collect = lambda decide, steps: rollout
    generator = torch.Generator()
    generator.set_state(learner._generator.get_state())
    batch = make_batch(rollout, learner.loss.value, cfg.gamma, cfg.gae_lambda)
    learner.iterate()
    policy, noise = plain.actor["policy"], plain.actor["noise"]
    orders = epoch_order(len(batch.advantage), cfg.minibatch, cfg.epochs, generator, keep_all=False)
    for rows in orders.view(-1, cfg.minibatch):
        ctx = policy.encode({key: x[rows] for key, x in batch.obs.items()})
        chain, total = batch.record["chain"][rows], torch.zeros(cfg.minibatch)
        entropy = torch.zeros(())
        for k in range(3):
            t = torch.full((cfg.minibatch,), k / 3)
            std = noise(ctx, t)
            law = torch.distributions.Normal(chain[:, k] + policy.velocity(ctx, chain[:, k], t, t) / 3, std)
            total = total + law.log_prob(chain[:, k + 1]).sum((1, 2))
            entropy = entropy + law.entropy().mean() / 3
        ratio = ((total / (4 * 2 * 1)) - batch.record["log_prob"][rows]).exp()
        advantage = batch.advantage[rows]
        loss = -torch.minimum(ratio * advantage, ratio.clamp(0.99, 1.01) * advantage).mean() - 0.01 * entropy
        actor.zero_grad()
        critic.zero_grad()
        (loss + 0.5 * ((plain.critic(ctx) - batch.value_target[rows]) ** 2).mean()).backward()
        for optimizer, module in ((actor, plain.actor), (critic, plain.critic)):
            torch.nn.utils.clip_grad_norm_(module.parameters(), cfg.max_grad_norm)
            optimizer.step()
    for found, wanted in zip(learner.loss.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(found, wanted, atol=2e-6)


def test_the_joint_density_worked_by_hand():
    # K = 2, H = 1, A = 3: the sum 21 over (K + 1) H A = 9
    log_prob = torch.arange(1.0, 7.0).reshape(1, 2, 1, 3)
    assert joint_log_prob(log_prob).item() == pytest.approx(21 / 9)


def test_the_entropy_rate_is_that_of_the_steps():
    noise = NoiseNet(2, 2, 1, 0.05, 0.3)
    ctx = torch.randn(5, 2)
    expected = torch.stack(
        [torch.distributions.Normal(0.0, noise(ctx, torch.full((5,), k / 4))).entropy().mean() for k in range(4)]
    ).mean()
    assert torch.allclose(entropy_rate(noise, ctx, (0.0, 0.25, 0.5, 0.75, 1.0)), expected)


def test_zero_advantage_gives_exactly_zero_gradient():
    learner = REINFLOW.build(setup(flow()))
    batch = batch_of(learner)
    surrogate(learner, batch._replace(advantage=torch.zeros(len(batch.advantage)))).loss.backward()
    assert all((p.grad == 0).all() for p in learner.loss.actor.parameters())


def test_the_first_gradient_is_the_policy_gradient():
    """At ratio 1: minus the mean of advantage times the gradient of the joint log-density."""
    learner = REINFLOW.build(setup(flow()))
    batch = batch_of(learner)
    weights = list(learner.loss.actor.parameters())
    clipped = torch.autograd.grad(surrogate(learner, batch).loss, weights)
    ctx = learner.policy.encode(batch.obs)
    log_prob = chain_log_prob(learner.policy, ctx, noise_net(learner.loss.std), batch.record["chain"])
    plain = torch.autograd.grad(-(batch.advantage * joint_log_prob(log_prob)).mean(), weights)
    for a, b in zip(clipped, plain, strict=True):
        assert torch.allclose(a, b, atol=1e-6)
        assert b.abs().max() > 0


def test_the_actions_executed_are_the_ends_of_the_recorded_chains():
    learner = REINFLOW.build(setup(flow()))
    rollout = learner._collector.rollout(2)
    chain = rollout.record["chain"][0]
    executed = torch.stack([record.action for record in learner.sim.tape[:2]], 1)
    length = rollout.length[0]
    wanted = learner.policy.to_actions(chain[:, -1])
    assert torch.equal(executed[:, 0], wanted[:, 0])
    assert torch.equal(executed[length == 2, 1], wanted[length == 2, 1])
    assert chain.shape == (32, 4, 2, 1)


def test_exploration_noise_is_what_the_network_says():
    learner = REINFLOW.build(setup(flow(), num_envs=400))
    rollout = learner._collector.rollout(4)
    batch = make_batch(rollout, learner.loss.value, 0.99, 0.95)
    chain = batch.record["chain"]
    for k in range(3):
        t, dt = torch.full((len(chain),), k / 3), torch.full((len(chain),), 1 / 3)
        with torch.no_grad():
            ctx = learner.policy.encode(batch.obs)
            mean, std = noise_net(learner.loss.std)(learner.policy, ctx, chain[:, k], t, dt)
        z = (chain[:, k + 1] - mean) / std
        assert abs(z.std().item() - 1) < 0.06
        assert (std > 0.08 - 1e-6).all()
        assert (std < 0.2 + 1e-6).all()


def test_noise_is_off_at_deployment():
    learner = REINFLOW.build(setup(flow()))
    learner.iterate()
    assert not [name for name in policy_tree(learner.policy)["weights"] if "noise" in name]
    obs, noise = {"walk": torch.randn(5, 2)}, torch.randn(5, 2, 1)
    with torch.no_grad():
        assert torch.equal(learner.policy.deploy(obs, noise).actions, learner.policy.deploy(obs, noise).actions)


def test_critic_warm_up_leaves_policy_and_noise_alone():
    learner = replace(REINFLOW, critic_warmup_env_steps=2 * 16 * 32).build(setup(flow()))
    before, critic = snapshot(learner.loss.actor.state_dict()), snapshot(learner.loss.critic.state_dict())
    learner.iterate()
    assert learner.iterate()["actor_updates"] == 0
    assert same(before, learner.loss.actor.state_dict())
    assert not same(critic, learner.loss.critic.state_dict())
    assert learner.iterate()["actor_updates"] > 0
    after = learner.loss.actor.state_dict()
    assert all(not torch.equal(before[name], after[name]) for name in before if name.endswith("weight"))


def test_ema_weights_lag_behind_and_are_what_is_evaluated():
    learner = replace(REINFLOW, critic_warmup_env_steps=0, ema=0.9).build(setup(flow()))
    start = snapshot(learner.policy.state_dict())
    learner.iterate()
    model, policy = learner.loss.policy.state_dict(), learner.policy.state_dict()
    moved = {k: (model[k] - start[k]).norm() for k in start}
    lagged = {k: (policy[k] - start[k]).norm() for k in start}
    assert all(0 < lagged[k] < moved[k] for k in start)
    plain = REINFLOW.build(setup(flow()))
    assert plain.policy is plain.loss.policy


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_it_goes_on_identically_from_a_saved_state(ema):
    cfg = replace(REINFLOW, ema=ema, entropy_coef=0.01, noise_hold=0.0, noise_end=0.5, lr_end=0.1)
    learner = cfg.build(setup(flow()))
    learner.iterate()
    learner.iterate()
    saved = snapshot(learner.state())
    fresh = cfg.build(setup(flow(seed=5)))
    fresh.load(saved)
    for _ in range(2):
        assert learner.iterate() == fresh.iterate()
    assert same(snapshot(learner.state()), snapshot(fresh.state()))
    assert same(learner.policy.state_dict(), fresh.policy.state_dict())


def test_env_steps_are_counted_once():
    learner = REINFLOW.build(setup(flow()))
    assert (learner.iterations, learner.env_steps) == (4, 0)
    learner.iterate()
    assert learner.env_steps == 32 * 16


def test_it_learns():
    # the ratio is to the power 1 / 8 here, and 1 / 80 where the default clip range belongs
    cfg = replace(REINFLOW, lr=3e-3, critic_lr=3e-3, epochs=4, clip_coef=0.1, noise_low=0.2, noise_high=0.5)
    learner = cfg.build(setup(flow()))
    before = evaluate(learner.policy, Walk(16), episodes=60).returns.mean()
    for _ in range(12):
        learner.iterate()
    after = evaluate(learner.policy, Walk(16), episodes=60).returns.mean()
    assert after > before + 2


def test_the_bound_of_the_noise_is_held_and_lowered():
    """As published: held for 35 %, then half a cosine to 0.7 of the way from low to high."""
    at = [upper_bound(0.1, 0.2, 0.35, 0.7, progress) for progress in (0.0, 0.35, 0.675, 1.0)]
    assert at == pytest.approx([0.2, 0.2, (0.2 + 0.17) / 2, 0.17])
    assert upper_bound(0.1, 0.2, 1.0, 0.0, 1.0) == 0.2


def test_the_noise_falls_with_its_bound():
    cfg = replace(REINFLOW, noise_low=0.05, noise_high=0.5, noise_hold=0.0, noise_end=0.0)
    learner = cfg.build(setup(flow()))
    ctx, stds = torch.zeros(1, 2), []
    for _ in range(4):
        learner.iterate()
        stds.append(learner.loss.std(ctx, torch.zeros(1)).mean().item())
    assert stds == sorted(stds, reverse=True)
    assert stds[-1] < 0.5 * stds[0]


def test_a_learning_rate_falls_along_a_line_and_a_kl_limit_ends_the_epochs():
    learner = replace(REINFLOW, lr_end=0.0, lr=4e-4).build(setup(flow()))
    assert [learner.iterate()["lr"] for _ in range(4)] == pytest.approx([4e-4, 3e-4, 2e-4, 1e-4])
    limited = replace(REINFLOW, critic_warmup_env_steps=0, target_kl=1e-12, epochs=4).build(setup(flow()))
    limited.iterate()
    actor, critic = limited.state()["engine"]["steps"].tolist()
    assert actor <= 2
    assert critic > 10


def test_the_critic_learns_the_same_whether_or_not_the_actor_was_stopped():
    """Where the limit stops the actor, later epochs are of the critic's phase: cheaper, with the same numbers."""
    critics = []
    for limit in (None, 1e-12):
        learner = replace(REINFLOW, critic_warmup_env_steps=0, target_kl=limit, epochs=4).build(setup(flow()))
        learner.iterate()
        critics.append(list(learner.loss.critic.parameters()))
    assert same(*critics)


@pytest.mark.parametrize(("steps", "kind"), [(1, "flow"), (1, "shortcut"), (2, "shortcut")])
def test_any_number_of_steps_down_to_one(steps, kind):
    cfg = {"flow": FLOW, "shortcut": SHORTCUT}[kind]
    torch.manual_seed(0)
    learner = replace(REINFLOW, critic_warmup_env_steps=0).build(
        setup(replace(cfg, denoising_steps=steps).build(SPECS, ACTION, TRANSFORMS))
    )
    before = snapshot(learner.policy.state_dict())
    assert learner.iterate()["ratio_error"] <= 1e-5
    assert not same(before, learner.policy.state_dict())


def test_nan_in_the_weights_stops_with_the_iteration_and_the_field():
    learner = replace(REINFLOW, critic_warmup_env_steps=0).build(setup(flow()))
    learner.iterate()
    with torch.no_grad():
        learner.loss.critic.net.net.layers[0].weight[0, 0] = math.nan
    before = snapshot(learner.policy.state_dict())
    with pytest.raises(NumericsError, match=r"iteration 2, minibatch 0: loss is nan \(not finite: .*value_loss"):
        learner.iterate()
    assert same(before, learner.policy.state_dict())


def test_what_it_cannot_start_from_is_refused():
    with pytest.raises(ConfigError, match="init_from is not given"):
        REINFLOW.build(setup(None))
    with pytest.raises(CapabilityError, match="GaussianPolicy lacks HasChain"):
        REINFLOW.build(setup(gaussian()))
    with pytest.raises(ConfigError, match=r"noise_low, algo.noise_high is \(0.2, 0.1\): expected 0 < noise_low"):
        replace(REINFLOW, noise_low=0.2, noise_high=0.1).build(setup(flow()))
    for name, value in (
        ("ema", 1.0),
        ("noise_hold", 1.5),
        ("noise_end", -0.1),
        ("entropy_coef", -1.0),
        ("lr_end", 2.0),
        ("start_noise", 1.5),
        ("muon", -1.0),
    ):
        with pytest.raises(ConfigError, match=rf"algo\.{name} is {value}: expected"):
            replace(REINFLOW, **{name: value}).build(setup(flow()))


def test_its_settings_are_those_that_the_family_shares_and_its_own():
    """The file shows them whole: defaults and texts that stand in both places are the same ones."""
    shared, own = field_texts(ChainCfg), field_texts(ReinFlowCfg)
    for field in fields(ChainCfg):
        assert field.default == next(one.default for one in fields(ReinFlowCfg) if one.name == field.name), field.name
        assert own[field.name] == shared[field.name], field.name
