"""SAC and RLPD with suggestions: nothing changes without them, what is learned from them, exact resume."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl.config import ActorCfg
from robotrl.engine.engine import Context
from robotrl.engine.minibatches import part
from robotrl.errors import CapabilityError, ConfigError
from robotrl.learners.guidance.cfg import GuidanceCfg
from robotrl.learners.guidance.losses import coefficients, suggested_rows
from robotrl.learners.guidance.recorder import COLUMN, SUGGESTED
from robotrl.replay.corrections import Correction
from robotrl.run.checkpoint import write_checkpoint
from robotrl.run.policy_checkpoint import policy_tree
from tests.kits.guided_kit import GuidedWalk, guided_setup
from tests.kits.refusals import raises_naming

EXPERT = GuidanceCfg(by="expert", noise=0.2, episode_noise=0.5, margin=0.5, action_weight=0.1)
SAC = replace(off.SAC, env_steps=800, utd_ratio=0.25)
NETWORKS = ("networks", "normalizer", "generator", "updates")


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    return off.write_random_walks(tmp_path_factory.mktemp("guided") / "demos")


def build(algo, guidance, demos, policy=off.POLICY, **changes):
    cfg = replace(SAC if algo == "sac" else off.RLPD, guidance=guidance, **changes)
    return cfg.build(guided_setup(policy, demos if algo == "rlpd" else None))


@pytest.mark.parametrize("algo", ["sac", "rlpd"])
def test_without_guidance_nothing_changes(algo, demos):
    """Not a bit: suggestions that weigh nothing train the same networks as none."""
    weightless = replace(EXPERT, margin_weight=0.0, action_weight=0.0)
    off_with_settings = replace(EXPERT, by="nobody", policy="nowhere", every=7)
    found = []
    for guidance in (GuidanceCfg(), off_with_settings, weightless):
        learner = build(algo, guidance, demos)
        found.append((off.run(learner, 8), learner.state()))
    (plain_log, plain), (_, settings), (log, state) = found
    assert "critic_loss" in plain_log[-1]
    assert kit.same(plain, settings)
    assert "guide" not in plain["experience"] and "extras/suggested" not in plain["experience"]["replay"]["columns"]
    for name in NETWORKS:
        assert kit.same(plain[name], state[name]), name
    assert kit.same(plain["experience"]["collector"], state["experience"]["collector"])
    for before, after in zip(plain_log, log, strict=True):
        assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("policy", [off.POLICY, off.CHUNKS])
def test_losses_are_those_of_the_formulas(policy):
    learner = build("sac", replace(EXPERT, margin_hold_env_steps=0, margin_end_env_steps=512), None, policy)
    off.run(learner, 6)
    carry = {name: float(value) for name, value in learner._engine.carry.items()}
    assert carry == pytest.approx(coefficients(learner.cfg.guidance, learner.env_steps))
    assert carry["margin_coef"] == pytest.approx(1 - learner.env_steps / 512)
    loss, rows = learner._loss, learner._draw(1)
    suggested = rows[SUGGESTED].clone()
    assert suggested.shape == rows["chunk"].shape and torch.isfinite(suggested).all()
    assert suggested.abs().max() <= EXPERT.reach + 1e-6
    rows[SUGGESTED][::2] = torch.nan
    averages = {f"critic.{name}": value for name, value in learner._engine.averages("critic.").items()}
    info = loss(rows, Context(dict(learner._engine.carry), averages, "")).info
    with torch.no_grad():
        ctx = loss.policy.encode(part(rows, "obs/"))
        q, wanted = loss.critic(ctx, rows["chunk"]), loss.critic(ctx, suggested)
        own = loss.policy.draw_with(ctx, rows["noise"]).normalized_action
        advantage = (wanted.min(0).values - loss.critic(ctx, own).min(0).values)[1::2]
        log_prob = loss.policy.log_prob_of(ctx, suggested).sum((1, 2))[1::2]
    margin = ((wanted - q - 0.5) ** 2)[:, 1::2].sum() / len(q[0])
    weight = torch.where(advantage > 0, (advantage / 2).exp().clamp(max=20), 0.0)
    assert info["margin_loss"].item() == pytest.approx(margin.item(), rel=1e-5)
    assert info["action_guidance_loss"].item() == pytest.approx(-(weight * log_prob).sum().item() / len(q[0]), rel=1e-4)
    assert info["suggested"].item() == 0.5
    assert info["guided"].item() == pytest.approx((advantage > 0).sum().item() / len(q[0]))


def test_a_chunk_has_the_suggestions_for_its_steps():
    """An expert follows each step; a step between two suggestions keeps the one before."""
    for every in (1, 3):
        learner = build("sac", replace(EXPERT, every=every), None, off.CHUNKS)
        off.run(learner, 4)
        replay = learner.experience.memory.replay
        index = replay.indices(3)
        alone = replay.view(index, 1, 1.0).extras[COLUMN][:, 0]
        got = replay.view(index, 3, 1.0)
        for k in (1, 2):
            # the next step of a stream is as many indices on as there are streams
            later = replay.view(index[got.valid[:, k]] + k * off.ENVS, 1, 1.0).extras[COLUMN][:, 0]
            assert torch.equal(got.extras[COLUMN][got.valid[:, k], k].nan_to_num(9), later.nan_to_num(9))
        rows = suggested_rows(got, learner._unit, EXPERT.reach)
        first = torch.isfinite(alone).all(1)
        assert torch.isfinite(rows[first]).all() and rows[~first, 0].isnan().all()
        whole = first & got.valid.all(1)
        same = (rows[whole] == rows[whole][:, :1]).all(2).all(1)
        assert bool(same.all()) == (every == 3)


def test_a_row_without_a_suggestion_adds_nothing():
    learner = build("sac", EXPERT, None)
    off.run(learner, 4)
    rows = learner._draw(1)
    rows[SUGGESTED][:] = torch.nan
    averages = {f"critic.{name}": value for name, value in learner._engine.averages("critic.").items()}
    out = learner._loss(rows, Context(dict(learner._engine.carry), averages, ""))
    plain = copy.deepcopy(learner._loss)
    plain._cfg = replace(learner.cfg, guidance=GuidanceCfg())
    assert out.loss.item() == plain(rows, Context({}, averages, "")).loss.item()
    assert out.info["margin_loss"] == 0 and out.info["action_guidance_loss"] == 0


def test_suggestions_make_it_learn_sooner():
    """Ending an episode at the goal is worth 5 or so, standing short of it 9: the expert knows, SAC finds out late."""
    returns = []
    for guidance in (GuidanceCfg(), replace(EXPERT, margin=1.0, noise=0.3)):
        log = off.run(build("sac", guidance, None), 25)
        returns.append(np.mean([line["rollout_return"] for line in log[-5:] if "rollout_return" in line]))
    assert returns[0] < 5.5 and returns[1] > 6.5, returns


@pytest.mark.parametrize("algo", ["sac", "rlpd"])
@pytest.mark.parametrize("disk", [False, True])
def test_it_resumes_exactly(tmp_path, algo, disk, demos):
    changes = {"replay": str(tmp_path / "replay") if disk else None}
    learner = build(algo, replace(EXPERT, every=3), demos, **changes)
    off.run(learner, 5)
    state = kit.snapshot(learner.state())
    expected = off.run(learner, 4)
    end = kit.snapshot(learner.state())
    learner.experience.memory.replay.close()
    resumed = learner.cfg.build(
        guided_setup(off.POLICY, demos if algo == "rlpd" else None, copy.deepcopy(learner.policy))
    )
    resumed.load(state)
    assert off.run(resumed, 4) == expected
    found = resumed.state()
    for name in (*NETWORKS, "engine"):
        assert kit.same(found[name], end[name]), name
    assert kit.same(found["experience"]["guide"], end["experience"]["guide"])


def test_every_third_step_has_a_suggestion():
    learner = build("sac", replace(EXPERT, every=3), None)
    off.run(learner, 3)
    replay = learner.experience.memory.replay
    got = replay.view(replay.indices(), 1, 1.0)
    there = torch.isfinite(got.extras[COLUMN][:, 0, 0]).reshape(off.ENVS, -1)
    assert there.shape[1] > 10 and torch.equal(there[:, ::3], torch.ones_like(there[:, ::3]))
    assert not there[:, 1::3].any() and not there[:, 2::3].any()


def test_a_policy_suggests_what_it_would_do(tmp_path):
    policy = kit.gaussian()
    path = tmp_path / "teacher"
    write_checkpoint(path, {"policy": policy_tree(policy)}, step=0, kind="base")
    learner = build("sac", GuidanceCfg(by="policy", policy=str(path)), None)
    off.run(learner, 2)
    replay = learner.experience.memory.replay
    got = replay.view(replay.indices(), 1, 1.0)
    with torch.no_grad():
        wanted = policy.act(got.obs, None, None, "mean").chunk[:, 0]
    torch.testing.assert_close(got.extras[COLUMN][:, 0], wanted.clamp(-1, 1), rtol=1e-4, atol=1e-5)


def test_corrections_and_suggestions_go_together(demos):
    learner = build("rlpd", EXPERT, demos)
    took = lambda obs, action, started: Correction(torch.full_like(action, 0.25), obs["walk"][:, 0] > 0)  # noqa: E731
    learner.watch(lambda sim: off.Watcher(took))
    off.run(learner, 12)
    memory = learner.experience.memory
    assert len(memory.corrections) > 0
    got = memory.replay.view(memory.replay.indices(), 1, 1.0)
    assert torch.isfinite(got.extras[COLUMN]).all()
    assert (got.chunk[:, 0, 0][got.source == 2] == 0.25).all()


def test_refusals(demos):
    with raises_naming(ConfigError, "actor.process", "algo.guidance.by"):
        replace(SAC, guidance=EXPERT).build(guided_setup(off.POLICY)._replace(actor=ActorCfg(process=True)))
    with raises_naming(CapabilityError, "Walk", "HasExpert"):
        replace(SAC, guidance=EXPERT).build(off.setup())
    with raises_naming(CapabilityError, "Walk", "picture"):
        endpoint = replace(EXPERT.endpoint, model="m")
        replace(SAC, guidance=replace(EXPERT, by="endpoint", prompt="?", endpoint=endpoint)).build(off.setup())
    with raises_naming(ConfigError, "algo.guidance.policy"):
        build("sac", GuidanceCfg(by="policy"), None)


@pytest.mark.parametrize(
    "field, value",
    [
        ("by", "expret"),
        ("every", 0),
        ("noise", -0.1),
        ("episode_noise", 1.5),
        ("margin", float("nan")),
        ("margin_weight", -1.0),
        ("margin_hold_env_steps", -1),
        ("margin_end_env_steps", 10),
        ("action_weight", float("inf")),
        ("action_end_env_steps", 0),
        ("action_warp", 0.0),
        ("temperature", 0.0),
        ("max_weight", 0.5),
        ("reach", 1.0),
        ("wait_s", -1.0),
    ],
)
def test_ranges(field, value):
    EXPERT.check()
    with raises_naming(ConfigError, f"algo.guidance.{field}"):
        replace(EXPERT, **{field: value}).check()


def test_the_expert_is_asked_at_every_step():
    """Its plan follows the episode, whether its answer is stored or not."""
    sims = []

    def make():
        sims.append(GuidedWalk(off.ENVS))
        return sims[-1]

    learner = replace(SAC, guidance=replace(EXPERT, every=5)).build(guided_setup(off.POLICY)._replace(make_sim=make))
    off.run(learner, 2)
    actor = learner.experience._guide.suggester._actor
    assert actor._expert.asked == 2 * SAC.num_steps
