"""PPO with suggestions: nothing changes without them, the loss by hand, late answers, exact resume."""

from __future__ import annotations

import copy
import itertools
import threading
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import tests.kits.learner_kit as kit
from robotrl.algos.ppo import PpoLoss
from robotrl.engine.engine import Context
from robotrl.errors import CapabilityError, ConfigError
from robotrl.learners.guidance.cfg import GuidanceCfg
from robotrl.learners.guidance.recorder import SUGGESTED
from robotrl.rewards.endpoint.cfg import EndpointCfg
from tests.kits.chat_server import ChatServer
from tests.kits.guided_kit import guided_setup, place
from tests.kits.refusals import raises_naming

POLICY = replace(kit.GAUSSIAN, horizon=1)
EXPERT = GuidanceCfg(by="expert", noise=0.2, episode_noise=0.5, action_weight=0.1)
PPO = replace(kit.PPO, env_steps=8 * 16 * 6)


def build(guidance, policy=POLICY, init_policy=None):
    return replace(PPO, guidance=guidance).build(guided_setup(policy, init_policy=init_policy, envs=8))


def run(learner, iterations):
    return [learner.iterate() for _ in range(iterations)]


def test_without_guidance_nothing_changes():
    found = []
    for guidance in (GuidanceCfg(), replace(EXPERT, by="nobody", every=7), replace(EXPERT, action_weight=0.0)):
        learner = build(guidance)
        found.append((run(learner, 4), learner.state()))
    (log, plain), (_, settings), (guided_log, guided) = found
    assert kit.same(plain, settings) and "guide" not in plain
    for name in ("policy", "critic", "obs_normalizer", "generator", "collector"):
        assert kit.same(plain[name], guided[name]), name
    for before, after in zip(log, guided_log, strict=True):
        assert {name: after[name] for name in before} == before


def test_losses_are_those_of_the_formulas():
    """Two rows with a suggestion, one of them better than the action taken by the critics of actions; one without."""
    learner = build(replace(EXPERT, margin=0.5, margin_hold_env_steps=0, margin_end_env_steps=512, temperature=0.5))
    run(learner, 2)
    carry = {name: float(value) for name, value in learner._engine.carry.items()}
    assert carry["margin_coef"] == pytest.approx(1 - learner.env_steps / 512)
    loss = PpoLoss(learner.policy, learner.critic, learner.cfg, learner._judge)
    obs = torch.tensor([[0.5, 1.0], [-1.0, 2.0], [1.0, 0.0], [0.2, -1.0]])
    rows = {
        "obs/walk": obs,
        "raw": torch.tensor([[[0.1]], [[-1.5]], [[0.3]], [[0.8]]]),
        "log_prob": torch.zeros(4),
        "advantage": torch.zeros(4),
        "value_target": torch.tensor([1.0, 0.0, -1.0, 0.5]),
        "value": torch.zeros(4),
        SUGGESTED: torch.tensor([[[0.5]], [[-0.25]], [[float("nan")]], [[-0.9]]]),
    }
    out = loss(rows, Context(dict(learner._engine.carry), {}, ""))
    with torch.no_grad():
        ctx = loss.policy.encode({"walk": obs})
        q = loss.judge(ctx, rows["raw"].clamp(-1, 1))
        wanted = loss.judge(ctx, rows[SUGGESTED].nan_to_num(0.0))
        log_prob = loss.policy.density(ctx).log_prob(rows[SUGGESTED].nan_to_num(0.0)).flatten()
    has = torch.tensor([1.0, 1.0, 0.0, 1.0])
    gap = wanted.min(0).values - q.min(0).values
    weight = has * (gap > 0) * (gap / 0.5).exp().clamp(max=20.0)
    info = out.info
    assert info["action_value_loss"].item() == pytest.approx(
        sum(float(((one - rows["value_target"]) ** 2).mean()) / 2 for one in q), rel=1e-4
    )
    assert info["margin_loss"].item() == pytest.approx(
        sum(float((has * (w - one - 0.5) ** 2).mean()) for w, one in zip(wanted, q, strict=True)), rel=1e-4
    )
    assert info["action_guidance_loss"].item() == pytest.approx(-float((weight * log_prob).mean()), rel=1e-4)
    assert info["guided"].item() == pytest.approx(float((has * (gap > 0)).mean()))
    assert info["suggested"].item() == 0.75


def test_the_critics_of_actions_learn():
    learner = build(EXPERT)
    before = {name: p.clone() for name, p in learner._judge.named_parameters()}
    log = run(learner, 4)
    assert not any(torch.equal(before[name], p) for name, p in learner._judge.named_parameters())
    assert 0 < log[-1]["guided"] <= log[-1]["suggested"] == 1.0


def test_suggestions_make_it_learn_sooner():
    returns = []
    for guidance in (GuidanceCfg(), replace(EXPERT, noise=0.3)):
        log = run(replace(PPO, lr=3e-3, guidance=guidance).build(guided_setup(POLICY, envs=8)), 8)
        returns.append(np.mean([line["rollout_return"] for line in log[-4:]]))
    assert returns[1] > returns[0] + 1.0, returns


def test_it_resumes_exactly():
    learner = build(replace(EXPERT, every=3, action_end_env_steps=512))
    run(learner, 2)
    state = kit.snapshot(learner.state())
    expected = run(learner, 2)
    end = kit.snapshot(learner.state())
    resumed = build(learner.cfg.guidance, init_policy=copy.deepcopy(learner.policy))
    resumed.load(state)
    assert run(resumed, 2) == expected
    assert kit.same(resumed.state(), end)
    resumed.close()


@pytest.mark.parametrize("wait_s", [0.0, 30.0])
def test_answers_stand_at_their_own_decision(wait_s):
    delays = np.random.default_rng(0).uniform(0, 0.03, 100_000)
    calls, over = itertools.count(), threading.Event()

    def seen(call):
        if next(calls) % 20 == 0 and not wait_s:
            over.wait(120)  # a share of the answers is late on a machine of any speed
        return {"values": [round(place(float(call.picture[0, 0, 0])) / 2, 6)]}

    with ChatServer(seen, delay_s=lambda n: float(delays[n])) as server, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cfg = EndpointCfg(base_url=server.base_url, model="small", concurrency=16, queue_size=4096)
        learner = build(GuidanceCfg(by="endpoint", prompt="Where?", pixels=8, endpoint=cfg, wait_s=wait_s))
        found = []
        add_to = learner._guide.add_to

        def watched(rollout):
            add_to(rollout)
            found.append((rollout.obs["walk"][..., 0].clone(), rollout.record[SUGGESTED][:, :, 0, 0].clone()))

        learner._guide.add_to = watched
        log = run(learner, 3)
        over.set()
        learner.close()
    unit = learner._guide._unit
    for x, suggested in found:
        there = torch.isfinite(suggested)
        wanted = unit((x / 2)[..., None])[..., 0].clamp(-0.98, 0.98)
        assert (suggested[there] - wanted[there]).abs().max() < 0.01 if there.any() else wait_s == 0
        assert wait_s == 0 or there.all()
    assert log[-1]["suggested"] == 1.0 if wait_s else log[-1]["suggested"] < 1.0


def test_refusals():
    with raises_naming(ConfigError, "policy.horizon", 2, 1):
        build(EXPERT, kit.GAUSSIAN)
    with raises_naming(ConfigError, "algo.guidance.by", nearest="expert"):
        build(replace(EXPERT, by="expret"))
    with raises_naming(CapabilityError, "Walk", "HasExpert"):
        replace(PPO, guidance=EXPERT).build(kit.setup(policy_cfg=POLICY))
