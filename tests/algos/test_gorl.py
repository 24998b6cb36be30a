"""GoRL on the walk: losses and stages by hand, decoders that keep both modes, and exact resume in each phase."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import robotrl.algos.gorl as gorl
from robotrl.algos.gorl import CollectedChunks, DecoderFit, GorlCfg, GorlLoss
from robotrl.engine.engine import Context
from robotrl.errors import CapabilityError, ConfigError
from robotrl.fn.bc_loss import mean_loss
from robotrl.learners.collection.stages import StagePosition, SwitchDrop, plan, position
from robotrl.learners.learner import Setup
from robotrl.policies.flow import FlowCfg
from robotrl.policies.shortcut import ShortcutCfg
from robotrl.policies.steered import SteeredCfg, weights_sha256
from robotrl.rollout.evaluate import evaluate
from robotrl.run.policy_checkpoint import policy_from_tree, policy_tree
from tests.kits.learner_kit import ACTION, DIFFUSION, FLOW, GAUSSIAN, SHORTCUT, SPECS, TRANSFORMS, flow, same, setup
from tests.kits.policy_kit import SMALL
from tests.kits.refusals import raises_naming
from tests.kits.walk_sim import Walk

ENVS = 8
# 7 rollouts of 64 env steps: 2 of PPO, 2 of collection and 2 updates of the fit for the first decoder, 3 of PPO
CFG = GorlCfg(
    env_steps=ENVS * 8 * 7,
    stage_shares=(2.0, 3.0),
    collect_env_steps=ENVS * 8 * 2,
    num_steps=8,
    encoder=SteeredCfg(bound=3.0, hidden=(32,)),
    epochs=2,
    minibatch=16,
    critic_hidden=(32,),
    fit_updates=5,
    fit_updates_per_iteration=3,
    fit_batch=32,
    engine="eager",
)


def made(cfg: Any = CFG, policy: Any = FLOW) -> Any:
    return cfg.build(setup(None, policy, None, ENVS))


# stages


def test_the_plan_by_hand():
    """9 rollouts, 2 for each of two collections: 5 for PPO in three stages of shares 2, 2, 1."""
    assert plan(9, 2, 3, (2.0, 2.0, 1.0)) == (
        ("ppo", 0, 2),
        ("collect", 0, 2),
        ("fit", 0, 3),
        ("ppo", 1, 2),
        ("collect", 1, 2),
        ("fit", 1, 3),
        ("ppo", 2, 1),
    )
    assert plan(4, 2, 3, (1.0,)) == (("ppo", 0, 4),)


def test_positions_by_hand():
    segments = plan(7, 2, 2, (2.0, 3.0))
    found = [position(segments, i) for i in range(10)]
    assert [(p.phase, p.stage, p.number) for p in found] == [
        ("ppo", 0, 0),
        ("ppo", 0, 1),
        ("collect", 0, 0),
        ("collect", 0, 1),
        ("fit", 0, 0),
        ("fit", 0, 1),
        ("ppo", 1, 0),
        ("ppo", 1, 1),
        ("ppo", 1, 2),
        # beyond the plan
        ("ppo", 1, 0),
    ]
    assert [i for i, p in enumerate(found) if p.last] == [1, 3, 5, 8]
    assert found[9] == StagePosition("ppo", 1, 0, last=False)


def test_a_budget_without_ppo_in_each_stage_is_refused():
    with raises_naming(ConfigError, "algo.env_steps", "4 iterations", "fewer stages"):
        plan(4, 2, 1, (1.0, 1.0, 1.0))


def test_each_env_step_counts_and_each_phase_does_its_part():
    learner = made()
    assert learner.iterations == 9
    sims, weights = [], []
    for _ in range(learner.iterations):
        before = learner.env_steps
        scalars = learner.iterate()
        sims.append(learner.env_steps - before)
        weights.append((weights_sha256(learner.policy.base), weights_sha256(learner.policy.actor)))
        assert all(math.isfinite(value) for value in scalars.values())
    assert sims == [64, 64, 64, 64, 0, 0, 64, 64, 64]
    assert learner.env_steps == CFG.env_steps
    decoders, encoders = zip(*weights, strict=True)
    # one switch, at the end of the fit; the encoder learns in PPO and begins anew at the switch
    assert [a != b for a, b in itertools.pairwise(decoders)] == [False] * 4 + [True] + [False] * 3
    assert [a != b for a, b in itertools.pairwise(encoders)] == [True] + [False] * 3 + [True] * 4
    assert learner.policy.base_sha256 == decoders[-1]
    learner.policy.check_base()


def test_an_encoder_that_is_kept_goes_on():
    learner = made(replace(CFG, restart_encoder=False))
    for _ in range(5):
        learner.iterate()
    before, moments = weights_sha256(learner.policy.actor), copy.deepcopy(learner._ppo_engine.state())
    learner.iterate()
    assert weights_sha256(learner.policy.actor) == before
    assert same(learner._ppo_engine.state(), moments)


def test_a_restart_forgets_adams_moments_and_draws_noise_near_the_standard_normal():
    learner = made()
    for _ in range(6):
        learner.iterate()
    assert not learner._ppo_engine.state()["first"].any() and not learner._ppo_engine.state()["steps"].any()
    actor = learner.policy.actor
    ctx = torch.zeros(4000, learner.policy.context_width)
    noise = actor.draw(ctx, torch.randn(4000, *learner.policy.base_noise)).noise.detach()
    assert abs(float(noise.mean())) < 0.3 and abs(float(noise.std()) - 0.92) < 0.1


def test_statistics_of_observations_stay_once_a_decoder_reads_them():
    learner = made()
    found = []
    for _ in range(9):
        learner.iterate()
        found.append(learner.policy.transforms)
    assert found[0] != found[1] and all(one == found[1] for one in found[2:])


def test_the_drop_at_a_switch_by_hand():
    drop = SwitchDrop(3)
    assert drop.seen(torch.tensor([9.0])) == {}
    drop.collected(torch.tensor([4.0, math.nan]))
    drop.collected(torch.tensor([6.0]))
    drop.switched()
    assert drop.seen(torch.tensor([1.0, 2.0])) == {}
    again = SwitchDrop(3)
    again.load(copy.deepcopy(drop.state()))
    for one in (drop, again):
        # mean of 4 and 6, less that of 1, 2 and 3
        assert one.seen(torch.tensor([3.0])) == {"switch_drop": 5.0 - 2.0}
        assert one.seen(torch.tensor([3.0])) == {}
    # a switch whose episodes never ended is forgotten
    drop.collected(torch.tensor([100.0]))
    drop.switched()
    drop.collected(torch.tensor([7.0]))
    drop.switched()
    assert drop.seen(torch.tensor([7.0, 7.0, 1.0])) == {"switch_drop": 2.0}


def test_the_drop_is_logged_once():
    learner = made()
    found = [learner.iterate() for _ in range(9)]
    # episodes of the walk have 6 steps or fewer: all 8 envs have ended one in the first iteration of 8 steps
    assert ["switch_drop" in scalars for scalars in found] == [False] * 6 + [True, False, False]
    before = np.concatenate([[found[i]["rollout_return"]] * int(found[i]["rollout_episodes"]) for i in (2, 3)])
    assert found[6]["switch_drop"] == pytest.approx(before.mean() - found[6]["rollout_return"], abs=1e-5)


# losses


def test_the_penalty_by_hand():
    mean = torch.tensor([[[1.0, -2.0]], [[0.0, 0.0]]])
    log_std = torch.tensor([[0.5, 2.0], [1.0, 1.0]]).log()[:, None]
    # rows: 1 + 4 + 0.5 + 2 = 7.5, and 0 + 0 + 1 + 1 = 2
    assert float(gorl.latent_penalty(mean, log_std)) == pytest.approx((7.5 + 2.0) / 2)


def test_the_loss_by_hand_and_its_penalty():
    policy = SteeredCfg(bound=3.0, hidden=(8,)).build(flow())
    rows = {
        "obs/walk": torch.tensor([[0.0, 1.0], [1.0, 2.0]]),
        "latent": torch.tensor([[[0.3], [0.1]], [[-0.2], [0.4]]]),
        "advantage": torch.tensor([1.0, -2.0]),
        "value_target": torch.tensor([0.5, -0.5]),
    }
    torch.manual_seed(0)
    losses = []
    with torch.no_grad():
        mean, log_std = policy.actor(policy.encode({"walk": rows["obs/walk"]}))
        std = log_std.exp()
        normal = torch.distributions.Normal(mean, std)
        old = normal.log_prob(rows["latent"]).sum((1, 2))
        # ratios of exp(0.1) and exp(-0.5): the first within the clip range of 0.2, the second clipped to 0.8
        rows["log_prob"] = old - torch.tensor([0.1, -0.5])
        for coef in (0.0, 0.25):
            loss = GorlLoss(policy, replace(CFG, latent_coef=coef, entropy_coef=0.0))
            loss.critic.load_state_dict({name: torch.zeros_like(x) for name, x in loss.critic.state_dict().items()})
            losses.append(loss(rows, Context({"actor_active": torch.tensor(1.0)}, {}, "")))
    surrogate = -(math.exp(0.1) * 1.0 + 0.8 * -2.0) / 2
    value = 0.5 * 0.25
    penalty = float((mean**2 + std).sum((1, 2)).mean())
    assert float(losses[0].loss) == pytest.approx(surrogate + value, abs=1e-5)
    assert float(losses[1].loss - losses[0].loss) == pytest.approx(0.25 * penalty, abs=1e-5)
    assert float(losses[1].info["latent_penalty"]) == pytest.approx(penalty, abs=1e-5)


def test_ratios_begin_at_one_in_every_stage():
    # chunks of one action: none begins before an update and ends after it
    learner = made(policy=replace(FLOW, horizon=1))
    for _ in range(9):
        scalars = learner.iterate()
        assert scalars.get("ratio_error", 0.0) < 1e-5


# decoder


@pytest.mark.parametrize("network", ["mlp", "residual", "unet", "transformer"])
def test_the_first_decoder_is_the_identity_exactly(network):
    cfgs: list[Any] = [FlowCfg(horizon=4, denoising_steps=3, network=network, hidden=SMALL[network])]
    if network == "mlp":
        cfgs.append(ShortcutCfg(horizon=4, denoising_steps=4, hidden=(32, 32)))
    for cfg in cfgs:
        decoder = cfg.build(SPECS, ACTION, TRANSFORMS)
        noise = torch.randn(5, *decoder.noise_shape)
        ctx = torch.randn(5, decoder.context_width)
        assert not torch.equal(decoder.decode(ctx, noise), noise)
        gorl.make_identity(decoder)
        assert torch.equal(decoder.decode(ctx, noise), noise)


def test_the_first_policy_acts_by_its_latent():
    learner = made()
    policy = learner.policy
    obs = {"walk": torch.tensor([[0.5, 0.0]] * 3)}
    decision = learner._collector._acting.decide(obs, torch.Generator().manual_seed(0), learner._collector)
    latent = decision.record["latent"]
    assert torch.equal(decision.record["chunk"], 3.0 * torch.tanh(latent))
    assert torch.equal(decision.chunk, (3.0 * torch.tanh(latent)).clamp(-1, 1))
    assert policy.horizon == 2


def two_goals(count: int = 512) -> CollectedChunks:
    """Chunks of a mass between two goals that went to either, half and half, from the same place."""
    side = torch.where(torch.arange(count) % 2 == 0, 1.0, -1.0)
    out = CollectedChunks()
    valid = torch.ones(count, 1, dtype=torch.bool)
    out.add({"ctx": torch.zeros(count, 2), "chunk": (0.8 * side)[:, None, None], "valid": valid})
    return out


def test_a_fitted_decoder_keeps_both_modes_and_a_mean_keeps_neither():
    torch.manual_seed(0)
    cfg = replace(CFG, fit_updates=600, fit_updates_per_iteration=600, fit_batch=128, fit_lr=1e-2)
    one = replace(FLOW, horizon=1, denoising_steps=8)
    decoder, rows = one.build(SPECS, ACTION, TRANSFORMS), two_goals()
    fit = DecoderFit(decoder, rows, cfg, setup(None, one))
    fit.run(600, torch.Generator().manual_seed(0), "test")
    fit.write(decoder)
    noise = torch.randn(1000, *decoder.noise_shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        first = decoder.decode(torch.zeros(1000, 2), noise)[:, 0, 0]
    right, left = (float((abs(first - goal) < 0.4).float().mean()) for goal in (0.8, -0.8))
    assert 0.3 < right < 0.7 and 0.3 < left < 0.7 and right + left > 0.8, (right, left)
    # what a Gaussian's mean is cloned to lies between the goals, where nothing ever went
    policy = replace(GAUSSIAN, horizon=1).build(SPECS, ACTION, TRANSFORMS)
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        mean_loss(policy, rows.rows["ctx"], rows.rows["chunk"], rows.rows["valid"]).backward()
        optimizer.step()
    assert float(policy.mean(torch.zeros(1, 2)).detach().abs().max()) < 0.1


def test_the_fit_reads_fresh_noise_and_chunks_before_the_clip():
    """The collected rows hold no latent; chunks are clipped at `action_clip`, steps that were not executed are not
    valid."""
    learner = made(replace(CFG, action_clip=1.25))
    for _ in range(3):
        learner.iterate()
    rows = learner._collected.rows
    assert rows.keys() == {"ctx", "chunk", "valid"}
    assert 1.0 < float(rows["chunk"].max()) <= 1.25 and float(rows["chunk"].min()) >= -1.25
    assert rows["valid"][:, 0].all() and not rows["valid"].all()
    count = len(rows["ctx"])
    learner.iterate()
    assert len(learner._collected.rows["ctx"]) > count
    learner.iterate()
    learner.iterate()
    assert learner._collected.rows == {}


# resume, evaluation, refusals


@pytest.mark.parametrize("stop", [1, 3, 5, 6, 7], ids=["ppo", "collect", "fit", "switch", "second ppo"])
def test_a_run_resumes_bit_for_bit_in_each_phase(stop):
    learner = made(replace(CFG, normalize_reward=True))
    for _ in range(stop):
        learner.iterate()
    state, tree = copy.deepcopy(learner.state()), copy.deepcopy(policy_tree(learner.policy))
    expected = [learner.iterate() for _ in range(stop, 9)]
    torch.manual_seed(99)
    policy = policy_from_tree(tree, "checkpoint")
    again = replace(CFG, normalize_reward=True).build(Setup(lambda: Walk(ENVS), FLOW, policy, None, 0, resumed=True))
    again.load(state)
    assert [again.iterate() for _ in range(stop, 9)] == expected
    assert same(again.state(), learner.state())
    assert same(policy_tree(again.policy), policy_tree(learner.policy))


def test_the_policy_is_stored_and_evaluated_as_a_steered_flow(tmp_path: Path):
    learner = made()
    for _ in range(9):
        learner.iterate()
    again = policy_from_tree(policy_tree(learner.policy), "checkpoint")
    assert again.kind == "steered" and again.base.kind == "flow" and again.control_dt_s == Walk.control_dt_s
    again.check_base()
    found = [evaluate(policy, Walk(8), episodes=8) for policy in (learner.policy, again)]
    assert np.array_equal(found[0].success, found[1].success) and np.array_equal(found[0].returns, found[1].returns)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"stage_shares": ()}, "algo.stage_shares"),
        ({"stage_shares": (1.0, 0.0)}, "algo.stage_shares"),
        ({"action_clip": 0.5}, "algo.action_clip"),
        ({"latent_coef": -1.0}, "algo.latent_coef"),
        ({"encoder": SteeredCfg(bound=0.1)}, "algo.encoder.bound"),
        ({"fit_updates": 0}, "algo.fit_updates"),
        ({"collect_env_steps": 0}, "algo.collect_env_steps"),
        ({"gamma": 1.5}, "algo.gamma"),
    ],
)
def test_settings_out_of_range_are_refused(change, field):
    with raises_naming(ConfigError, field):
        replace(CFG, **change).check()


def test_policies_that_cannot_be_decoders_are_refused():
    with raises_naming(ConfigError, "init_from is a FlowPolicy", "dsrl"):
        CFG.build(setup(flow(), FLOW))
    with raises_naming(CapabilityError, "DiffusionPolicy", "flow or shortcut"):
        made(policy=DIFFUSION)
    with raises_naming(ConfigError, "algo.num_steps", "2 or more"):
        made(replace(CFG, num_steps=1))
    assert made(policy=SHORTCUT).policy.base.kind == "shortcut"
