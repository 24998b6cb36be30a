"""SAC: one update against a plain one, what is bootstrapped, learning, exact resume, faults."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl.algos.sac import SacLoss
from robotrl.engine.engine import Context
from robotrl.engine.minibatches import part
from robotrl.errors import CapabilityError, ConfigError, NumericsError
from robotrl.replay.buffer import Replay

SMALL = replace(off.SAC, env_steps=400)


def warm(cfg=SMALL, policy=off.POLICY, iterations: int = 3, **options):
    learner = cfg.build(off.setup(policy, **options))
    off.run(learner, iterations)
    return learner


def values_of(critic: nn.Module, ctx, chunk):
    """The critics' values, layer by layer with plain products."""
    x = torch.cat([ctx, chunk.flatten(1)], 1).expand(critic.members, -1, -1)
    for layer in critic.layers:
        x = x.relu() if isinstance(layer, nn.ReLU) else torch.bmm(x, layer.weight) + layer.bias
    return x[..., 0]


@pytest.mark.parametrize("policy", [off.POLICY, off.CHUNKS])
def test_an_update_is_that_of_a_plain_implementation(policy):
    """Adam steps on the three losses of the paper, one after the other, each on its own parameters."""
    learner = warm(policy=policy, iterations=2)
    learner.learn(1)
    loss: SacLoss = learner._loss
    rows = learner._draw(1)
    actor, critic = copy.deepcopy(loss.policy), copy.deepcopy(loss.critic)
    log_alpha = nn.Parameter(loss.log_alpha.detach().clone())
    target = copy.deepcopy(critic)
    with torch.no_grad():
        for name, value in target.named_parameters():
            value.copy_(learner._engine.averages("critic.")[name])
    old = copy.deepcopy(target)
    alpha = log_alpha.exp().detach()
    with torch.no_grad():
        following = actor.draw_with(actor.encode(part(rows, "next_obs/")), rows["next_noise"])
        log_prob = following.log_prob.sum((1, 2))
        value = values_of(target, actor.encode(part(rows, "next_obs/")), following.normalized_action).min(0).values
        y = rows["reward"] + rows["discount"] * (value - alpha * log_prob)
    ctx = actor.encode(part(rows, "obs/"))
    q1, q2 = values_of(critic, ctx, rows["chunk"])
    critic_loss = 0.5 * ((q1 - y) ** 2).mean() + 0.5 * ((q2 - y) ** 2).mean()
    drawn = actor.draw_with(ctx, rows["noise"])
    log_prob = drawn.log_prob.sum((1, 2))
    actor_loss = (alpha * log_prob - values_of(critic, ctx, drawn.normalized_action).min(0).values).mean()
    elements = policy.horizon * 1
    alpha_loss = -(log_alpha * (log_prob.detach() - elements)).mean()
    gradients = [
        (list(critic.parameters()), torch.autograd.grad(critic_loss, list(critic.parameters()), retain_graph=True)),
        (list(actor.net.parameters()), torch.autograd.grad(actor_loss, list(actor.net.parameters()))),
        ([log_alpha], torch.autograd.grad(alpha_loss, [log_alpha])),
    ]
    # moments and counts of the updates made before
    before = {name: value.clone() for name, value in learner._engine.state().items()}
    names = [name for name, _ in loss.named_parameters()]
    sizes = dict(loss.named_parameters())
    order = [n for prefix in ("policy.net.", "critic.", "log_alpha") for n in names if n.startswith(prefix)]
    first = dict(zip(order, before["first"].split([sizes[n].numel() for n in order]), strict=True))
    second = dict(zip(order, before["second"].split([sizes[n].numel() for n in order]), strict=True))
    expected = {}
    for (parameters, grads), prefix, group in zip(
        gradients, ("critic.", "policy.net.", "log_alpha"), (1, 0, 2), strict=True
    ):
        module = {"critic.": critic, "policy.net.": actor.net}.get(prefix)
        own = ["log_alpha"] if module is None else [prefix + name for name, _ in module.named_parameters()]
        t = before["steps"][group] + 1
        for name, parameter, gradient in zip(own, parameters, grads, strict=True):
            m = 0.9 * first[name].view_as(gradient) + 0.1 * gradient
            v = 0.999 * second[name].view_as(gradient) + 0.001 * gradient**2
            step = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
            expected[name] = parameter.detach() - 3e-3 * step
    learner._engine.run(rows, torch.arange(32), 32, "here")
    for name, parameter in loss.named_parameters():
        assert torch.allclose(parameter, expected[name], atol=2e-6), name
    for name, value in learner._engine.averages("critic.").items():
        blend = 0.98 * dict(old.named_parameters())[name] + 0.02 * expected[f"critic.{name}"]
        assert torch.allclose(value, blend, atol=2e-6), name


def test_ends_are_not_bootstrapped_and_time_limits_are():
    learner = warm()
    learner.learn(4)
    rows = learner._draw(1)
    huge = {name: value * 0 + 1e3 for name, value in learner._engine.averages("critic.").items()}
    with torch.no_grad():
        for name, value in learner._engine.averages("critic.").items():
            value.copy_(huge[name])
    averages = {f"critic.{name}": value for name, value in learner._engine.averages("critic.").items()}
    target, _ = learner._loss._target(rows, Context({}, averages, ""))
    over = rows["discount"] == 0
    assert over.any() and (~over).any()
    assert torch.equal(target[over], rows["reward"][over])
    assert (target[~over].abs() > 100).all()
    transitions = learner.experience.memory.replay.view(learner.experience.memory.replay.indices(), 1, 0.9)
    limits = transitions.truncated & ~transitions.terminated
    assert limits.any() and torch.allclose(transitions.discount[limits], torch.tensor(0.9))


def test_it_learns_the_walk():
    """Walking towards the goal, and stopping short of it while time is left, is worth several times a random walk."""
    learner = replace(off.SAC, env_steps=1800, utd_ratio=0.4).build(off.setup())
    log = off.run(learner, learner.iterations)
    returns = [line["rollout_return"] for line in log if "rollout_return" in line]
    assert np.mean(returns[:5]) < 2
    assert np.mean(returns[-10:]) > 4


def test_chunks_learn_as_well():
    learner = replace(off.SAC, env_steps=1400, utd_ratio=0.4).build(off.setup(off.CHUNKS))
    log = off.run(learner, learner.iterations)
    returns = [line["rollout_return"] for line in log if "rollout_return" in line]
    assert np.mean(returns[-8:]) > np.mean(returns[:5]) + 1.5


def test_an_iteration_makes_the_updates_that_its_steps_are_worth():
    learner = replace(SMALL, utd_ratio=0.5).build(off.setup())
    log = off.run(learner, 5)
    # 32 env steps an iteration, 64 of warm-up
    assert [line["updates"] for line in log] == [0, 0, 16, 32, 48]
    assert learner.env_steps == 160 and learner.iterations == 13
    assert "critic_loss" not in log[1] and "critic_loss" in log[2]


@pytest.mark.parametrize("disk", [False, True])
def test_it_resumes_exactly(tmp_path: Path, disk):
    cfg = replace(SMALL, replay=str(tmp_path / "replay") if disk else None, utd_ratio=0.25)
    learner = warm(cfg, iterations=4)
    state = kit.snapshot(learner.state())
    expected = off.run(learner, 3)
    end = kit.snapshot(learner.state())
    learner.experience.memory.replay.close()
    resumed = cfg.build(off.setup(init_policy=copy.deepcopy(learner.policy)))
    resumed.load(state)
    assert off.run(resumed, 3) == expected
    found = resumed.state()
    for name in ("networks", "engine", "normalizer", "generator", "updates", "owed"):
        assert kit.same(found[name], end[name]), name
    assert kit.same(found["experience"]["collector"], end["experience"]["collector"])


def test_a_resumed_warm_up_goes_on_at_random():
    learner = SMALL.build(off.setup())
    learner.iterate()
    state = kit.snapshot(learner.state())
    expected = off.run(learner, 3)
    resumed = SMALL.build(off.setup(init_policy=copy.deepcopy(learner.policy)))
    resumed.load(state)
    assert off.run(resumed, 3) == expected


@pytest.mark.timeout(600)
def test_compiled_updates_see_the_running_normalisation():
    """The same numbers as uncompiled, after the policy's constants have changed as well."""
    cfg = replace(SMALL, utd_ratio=0.25, batch=16, critic_hidden=(16,))
    logs = []
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*could not be compiled")
        for engine in ("eager", "compiled"):
            learner = replace(cfg, engine=engine).build(off.setup(replace(off.POLICY, hidden=(16,))))
            logs.append(off.run(learner, 5))
    assert learner._engine.mode == "compiled"
    for eager, compiled in zip(*logs, strict=True):
        assert eager.keys() == compiled.keys()
        for name in eager:
            assert compiled[name] == pytest.approx(eager[name], rel=2e-3, abs=2e-4), name


def test_bfloat16_stays_close():
    """Losses of one update on the same rows: within 2 % of those in float32."""
    learner = warm()
    learner.learn(8)
    rows = learner._draw(1)
    found = []
    for bf16 in (False, True):
        one = copy.deepcopy(learner._loss)
        one._cfg = replace(SMALL, bf16=bf16)
        averages = {f"critic.{name}": value for name, value in learner._engine.averages("critic.").items()}
        found.append(one(rows, Context({}, averages, "")).info)
    for name in ("critic_loss", "actor_loss", "q", "target", "entropy"):
        assert found[1][name].dtype == torch.float32
        assert found[1][name] != found[0][name], "it did not compute in fewer bits"
        scale = max(1.0, abs(found[0][name].item()))
        assert abs(found[1][name] - found[0][name]).item() < 0.02 * scale, name


def test_a_loss_that_is_not_finite_is_named_with_its_iteration():
    learner = warm()
    with torch.no_grad():
        learner._loss.critic.layers[0].weight[0, 0, 0] = float("inf")
    with pytest.raises(NumericsError, match=r"iteration 4, minibatch 0: loss is .*expected finite"):
        learner.iterate()


def test_a_policy_without_bounded_actions_is_refused():
    with pytest.raises(CapabilityError, match=r"GaussianPolicy lacks draw_with.*SAC needs a tanh-Gaussian policy"):
        SMALL.build(off.setup(init_policy=kit.gaussian()))


def test_a_resumed_run_with_another_replay_is_refused(tmp_path: Path):
    cfg = replace(SMALL, replay=str(tmp_path / "replay"), utd_ratio=0.25)
    learner = warm(cfg)
    state = kit.snapshot(learner.state())
    learner.experience.memory.replay.close()
    elsewhere = tmp_path / "elsewhere"
    Replay.create(elsewhere, kit.SPECS, kit.ACTION, streams=off.ENVS, capacity=99, control_dt_s=0.1).close()
    other = replace(cfg, replay=str(elsewhere)).build(off.setup(init_policy=learner.policy))
    with pytest.raises(ConfigError, match="has capacity 99: expected 2000"):
        other.load(state)
