"""DSRL on the walk, both learners: what reaches the sampler, what is remembered, what is learned from it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tests.kits.off_policy_kit as off
from robotrl.algos.dsrl import DsrlCfg
from robotrl.algos.dsrl_na import DISTILL, LEARN, DsrlNaCfg, Pairs, relative
from robotrl.engine.engine import Context
from robotrl.errors import CapabilityError, ConfigError, NumericsError
from robotrl.learners.learner import Setup
from robotrl.learners.steering import shifted
from robotrl.policies.flow import FlowCfg, FlowPolicy
from robotrl.policies.steered import SteeredCfg, weights_sha256
from robotrl.replay.buffer import SOURCES
from robotrl.replay.corrections import Correction
from robotrl.rollout.evaluate import evaluate
from robotrl.run.policy_checkpoint import policy_from_tree, policy_tree
from tests.kits.learner_kit import ACTION, SPECS, TRANSFORMS, flow, gaussian, same, setup, snapshot, write_walks
from tests.kits.refusals import raises_naming
from tests.kits.walk_sim import Walk

ACTOR = SteeredCfg(bound=1.5, hidden=(32, 32))
SMALL: dict[str, Any] = {
    "env_steps": 16 * 12 * 6,
    "num_steps": 12,
    "warmup": 16 * 12,
    "updates": 3,
    "batch": 32,
    "critic_hidden": (32, 32),
    "engine": "eager",
}
NA = DsrlNaCfg(**SMALL, distill_updates=2, decoded=64, pairs=1000)
SAC = DsrlCfg(**SMALL)
BOTH = pytest.mark.parametrize("cfg", [NA, SAC], ids=["na", "sac"])


def made(cfg: Any, base: Any = None, num_envs: int = 16, actor: Any = ACTOR, dataset: Any = None) -> Any:
    return cfg.build(setup(flow() if base is None else base, actor, dataset, num_envs))


class Watched(FlowPolicy):
    """A real base policy that remembers every call of its sampler."""

    def decode(self, ctx: Tensor, noise: Tensor) -> Tensor:
        out = super().decode(ctx, noise)
        self.calls.append((noise.detach().clone(), out.detach().clone(), torch.is_grad_enabled()))
        return out


def watched() -> Watched:
    base = flow()
    other = Watched(base.observation_spec, base.action_spec, base.transforms, base.cfg)
    other.load_state_dict(base.state_dict())
    other.calls = []
    return other


# what reaches the sampler


@BOTH
def test_no_noise_beyond_the_bound_is_ever_decoded_nor_any_gradient(cfg):
    """Warm-up, acting, targets, distillation and evaluation, with an actor that has run into the bound."""
    learner = made(cfg, watched())
    learner.iterate()
    with torch.no_grad():
        learner.policy.actor.net.layers[-1].weight.mul_(300)
    for _ in range(2):
        learner.iterate()
    evaluate(learner.policy, Walk(8), episodes=8)
    calls = learner.policy.base.calls
    largest = [noise.abs().max().item() for noise, _, _ in calls]
    assert max(largest) <= 1.5
    assert max(largest) > 1.49
    assert {noise.shape[1:] for noise, _, _ in calls} == {(2, 1)}
    # acting and evaluating run without gradients, and so does every decoding within a loss
    assert not any(gradients for _, _, gradients in calls)


def decisions(sim: Walk) -> int:
    """How many chunks of two steps were begun, by what the sim saw."""
    count, position = 0, torch.full((sim.num_envs,), 2)
    for record in sim.tape:
        count += int((position == 2).sum())
        position = position % 2 + 1
        position[record.terminated | record.truncated] = 2
    return count


@BOTH
def test_what_the_warm_up_executes_was_decoded_exactly_once(cfg):
    learner = made(cfg, watched())
    learner.iterate()
    assert not learner.env_steps < cfg.warmup
    calls, sim, replay = learner.policy.base.calls, learner.sim, learner.replay
    starts = replay.indices(1, decisions=True)
    # minibatches are larger; what is decoded for acting is one row for each decision, and nothing besides
    acting = [call for call in calls if len(call[0]) <= 16]
    assert sum(len(noise) for noise, _, _ in acting) == decisions(sim)
    drawn = replay.view(starts, 1, 0.9)
    decoded = {tuple(noise.flatten().tolist()): out for call in acting for noise, out in zip(*call[:2], strict=True)}
    for noise, action in zip(drawn.extras["noise"], drawn.chunk[:, 0], strict=True):
        raw = decoded[tuple(noise.flatten().tolist())]
        assert torch.equal(learner.policy.to_actions(raw[None])[0, 0], action)
    assert drawn.extras["noise"].std().item() == pytest.approx(0.74, abs=0.1)
    assert len(sim.tape) == 12


@BOTH
def test_every_element_of_a_chunk_has_noise_of_its_own(cfg):
    learner = made(cfg, num_envs=64)
    learner.iterate()
    replay = learner.replay
    noise = replay.view(replay.indices(1, decisions=True), 1, 0.9).extras["noise"].flatten(1)
    assert abs(torch.corrcoef(noise.T)[0, 1].item()) < 0.2
    assert (noise[:, 0] != noise[:, 1]).all()


# what is remembered


@BOTH
def test_env_steps_are_counted_not_chunks(cfg):
    learner = made(replace(cfg, warmup=10_000))
    assert (learner.iterations, learner.env_steps) == (6, 0)
    learner.iterate()
    assert learner.env_steps == 16 * 12 == len(learner.replay)
    assert len(learner.sim.tape) == 12
    odd = made(replace(cfg, warmup=10_000, num_steps=7))
    odd.iterate()
    assert odd.env_steps == 16 * 7


def test_an_episodes_end_stops_its_chunk_and_a_time_out_is_not_terminal():
    learner = made(replace(NA, warmup=10_000, num_steps=60))
    learner.iterate()
    replay, tape = learner.replay, learner.sim.tape
    starts = replay.indices(2, decisions=True)
    drawn = replay.view(starts, 2, 0.9)
    begun = set(starts.tolist())
    seen = {"terminated": 0, "truncated": 0, "cut short": 0}
    for row, index in enumerate(starts.tolist()):
        step, env = divmod(index, 16)
        first = tape[step]
        ended = bool(first.terminated[env] | first.truncated[env])
        assert drawn.steps[row] == (1 if ended else 2)
        # whatever follows an end, or a whole chunk, is a decision of its own
        following = index + 16 * int(drawn.steps[row])
        assert following in begun or following // 16 >= 58
        last = tape[step + int(drawn.steps[row]) - 1]
        discount = 0.0 if last.terminated[env] else 0.9 ** int(drawn.steps[row])
        assert drawn.discount[row].item() == pytest.approx(discount)
        assert torch.equal(drawn.next_obs["walk"][row], last.next_obs[env])
        seen["terminated"] += bool(last.terminated[env])
        seen["truncated"] += bool(last.truncated[env])
        seen["cut short"] += ended
    assert min(seen.values()) > 0, seen


@BOTH
def test_minibatches_hold_shifted_rewards_and_only_rollouts(cfg):
    learner = made(replace(cfg, warmup=10_000))
    learner.iterate()
    sampler = learner._decisions if cfg is SAC else learner._chunks
    state = learner.generator.get_state()
    rows = learner.rows(sampler, 2)
    learner.generator.set_state(state)
    drawn = sampler.sample(32, 2, cfg.gamma, learner.generator, 2)
    expected = drawn.reward - torch.where(drawn.steps == 2, 1 + cfg.gamma, 1.0)
    assert torch.allclose(rows["reward"], expected)
    assert set(drawn.steps.tolist()) == {1, 2}
    assert torch.equal(rows["discount"], drawn.discount)
    assert (drawn.source == SOURCES.index("rollout")).all()
    # the walk's actions are already in [-1, 1]
    assert torch.equal(rows["chunk"], drawn.chunk)
    assert torch.isfinite(rows["noise"]).flatten(1).all(1).all() == (cfg is SAC)


def test_the_shift_worked_by_hand():
    reward, steps = torch.tensor([0.0, 1.0, 0.0]), torch.tensor([4, 2, 1])
    assert shifted(reward, steps, 0.5, -1.0).tolist() == pytest.approx([-1.875, -0.5, -1.0])
    assert shifted(reward, steps, 1.0, -1.0).tolist() == pytest.approx([-4.0, -1.0, -1.0])
    assert torch.equal(shifted(reward, steps, 0.5, 0.0), reward)


# what is learned from it


def minibatch(learner: Any, phase: str = LEARN) -> tuple[dict[str, Tensor], Context]:
    """Rows of one update, and a context whose averages differ from the networks."""
    if phase == DISTILL:
        rows = learner._pairs.sample(32, learner.generator)
    else:
        rows = learner.rows(learner._decisions if isinstance(learner.cfg, DsrlCfg) else learner._chunks, 1)
    rows |= {name: learner.normal(32) for name in ("normal", "next_normal")}
    average = {f"critic.{name}": p.detach() * 0.9 for name, p in learner._loss.critic.named_parameters()}
    return rows, Context({}, average, phase)


@BOTH
def test_the_target_is_the_published_one_term_by_term(cfg):
    learner = made(cfg)
    learner.iterate()
    rows, context = minibatch(learner)
    loss, policy = learner._loss, learner.policy
    with torch.no_grad():
        found = loss._target(rows, context)
        ctx = policy.base.encode({"walk": rows["next_obs/walk"]})
        mean, log_std = policy.actor(ctx)
        u = mean + log_std.exp() * rows["next_normal"]
        density = torch.distributions.Normal(mean, log_std.exp()).log_prob(u) - (1 - u.tanh() ** 2).log()
        chunk = u.tanh()
        if cfg is NA:
            chunk = policy.base.decode(ctx, 1.5 * u.tanh()).clamp(-1, 1)
        averaged = snapshot(loss.critic)
        averaged.load_state_dict({name.removeprefix("critic."): x for name, x in context.average.items()})
        value = averaged(ctx, chunk).min(0).values - cfg.initial_alpha * density.flatten(1).sum(1)
    alpha = loss.log_alpha.exp()
    value = value + (cfg.initial_alpha - alpha) * density.flatten(1).sum(1)
    terminal = rows["discount"] == 0
    assert torch.allclose(found, rows["reward"] + rows["discount"] * value, atol=1e-4)
    assert torch.equal(found[terminal], rows["reward"][terminal])


def gradients(learner: Any, phase: str) -> dict[str, bool]:
    """Which networks a minibatch moves."""
    rows, context = minibatch(learner, phase)
    learner._loss.zero_grad()
    out = learner._loss(rows, context)
    out.loss.backward()
    moved: dict[str, bool] = {}
    for name, p in learner._loss.named_parameters():
        part = name.split(".")[0] if not name.startswith("policy") else ".".join(name.split(".")[:2])
        moved[part] = moved.get(part, False) or (p.grad is not None and bool((p.grad != 0).any()))
    return moved


def test_each_phase_moves_its_own_networks_and_never_the_base():
    learner = made(NA)
    learner.iterate()
    assert gradients(learner, LEARN) == {
        "log_alpha": True, "policy.base": False, "policy.actor": True, "critic": True, "noise_critic": False,
    }  # fmt: skip
    assert gradients(learner, DISTILL) == {
        "log_alpha": False, "policy.base": False, "policy.actor": False, "critic": False, "noise_critic": True,
    }  # fmt: skip


@BOTH
def test_the_critics_learn_from_their_error_alone(cfg):
    """The gradient of the sum of all losses is, for the critics, that of their regression."""
    learner = made(cfg)
    learner.iterate()
    rows, context = minibatch(learner)
    loss = learner._loss
    weights = list(loss.critic.parameters())
    total = torch.autograd.grad(loss(rows, context).loss, weights)
    ctx = loss.policy.encode({"walk": rows["obs/walk"]})
    values = loss.critic(ctx, rows["chunk"] if cfg is NA else rows["noise"] / 1.5)
    target = loss._target(rows, context)
    alone = torch.autograd.grad(0.5 * (values - target).square().mean(1).sum(), weights)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(total, alone, strict=True))
    assert max(b.abs().max().item() for b in alone) > 0


def test_the_noise_critic_follows_the_action_critics_through_the_base_policy():
    learner = made(replace(NA, critic_hidden=(64, 64)))
    learner.iterate()
    for _ in range(120):
        learner._distill()
    loss, policy = learner._loss, learner.policy
    with torch.no_grad():
        ctx = policy.encode({"walk": torch.tensor([[0.5, 2.0]]).expand(256, -1)})
        noise = policy.actor.plain(learner.uniform(256))
        wanted = loss.critic(ctx, loss.executed(ctx, noise)).amin(0)
        found = loss.noise_critic(ctx, noise / 1.5)[0]
    assert torch.corrcoef(torch.stack([wanted, found]))[0, 1] > 0.9


def test_pairs_are_what_the_noise_would_execute_in_remembered_states():
    learner = made(replace(NA, decoded=40, pairs=104))
    learner.iterate()
    # one round of updates so far
    rows = learner._pairs.sample(400, torch.Generator().manual_seed(0))
    assert len({tuple(noise.flatten().tolist()) for noise in rows["noise"]}) == 40
    with torch.no_grad():
        raw = learner.policy.base.decode(learner.policy.base.encode({"walk": rows["obs/walk"]}), rows["noise"])
    # the walk's bounds are -1 and 1
    assert torch.allclose(rows["chunk"], raw.clamp(-1, 1), atol=1e-6)
    assert rows["noise"].abs().max() <= 1.5
    states = rows["obs/walk"].view(-1, 8, 2)
    assert (states == states[:, :1]).all()
    seen = torch.cat([record.obs for record in learner.sim.tape])
    assert all((seen == obs).all(1).any() for obs in rows["obs/walk"])


def test_the_oldest_pairs_make_room_for_new_ones_and_groups_stay_together():
    pairs = Pairs(6, group=2)
    for begin in (0, 4, 8):
        pairs.add({"x": torch.arange(begin, begin + 4)})
    state = snapshot(pairs.state())
    fresh = Pairs(6, group=2)
    fresh.load(state)
    for one in (pairs, fresh):
        drawn = one.sample(200, torch.Generator().manual_seed(0))["x"].view(-1, 2)
        assert {tuple(group) for group in drawn.tolist()} == {(6, 7), (8, 9), (10, 11)}
        one.add({"x": torch.arange(12, 14)})
        drawn = one.sample(200, torch.Generator().manual_seed(0))["x"].view(-1, 2)
        assert {tuple(group) for group in drawn.tolist()} == {(8, 9), (10, 11), (12, 13)}


def test_values_are_told_apart_within_their_state():
    values = torch.tensor([1.0, 3.0, 10.0, 10.0, -2.0, 4.0])
    assert relative(values, 2).tolist() == [-1.0, 1.0, 0.0, 0.0, -3.0, 3.0]


@BOTH
def test_the_base_is_the_same_to_the_last_bit_at_the_end_and_its_hash_is_stored(cfg):
    base = flow()
    before, digest = snapshot(base.state_dict()), weights_sha256(base)
    learner = made(cfg, base)
    actor = snapshot(learner.policy.actor.state_dict())
    for _ in range(learner.iterations):
        learner.iterate()
    assert same(before, learner.policy.base.state_dict())
    assert not same(actor, learner.policy.actor.state_dict())
    description = policy_tree(learner.policy)["description"]
    assert description["base_sha256"] == digest == weights_sha256(learner.policy.base)
    learner.policy.base.net.layers[0].bias.data[0] += 1
    with pytest.raises(ConfigError, match="the base policy's weights have SHA-256"):
        learner.state()


@BOTH
def test_it_goes_on_identically_from_a_saved_state(cfg):
    learner = made(replace(cfg, num_steps=11))
    for _ in range(3):
        learner.iterate()
    saved, tree = snapshot(learner.state()), snapshot(policy_tree(learner.policy))
    # as the runner resumes: from the run's own policy, which is steered already
    fresh = made(replace(cfg, num_steps=11), policy_from_tree(tree, "here"))
    fresh.load(saved)
    for _ in range(2):
        assert learner.iterate() == fresh.iterate()
    assert same(comparable(learner.state()), comparable(fresh.state()))


def comparable(state: Any) -> Any:
    """A state in which steps without noise, NaN in the replay, equal each other."""
    out = snapshot(state)
    extras = out["experience"]["replay"]["columns"]["extras/noise"]
    assert np.isnan(extras).any()
    out["experience"]["replay"]["columns"]["extras/noise"] = np.nan_to_num(extras, nan=9.0)
    return out


def taken_over(sim: Any) -> Any:
    """Takes over every fourth env when it stands to the right, and does 0.25."""
    rows = torch.arange(sim.num_envs) % 4 == 0
    return off.Watcher(
        lambda obs, action, started: Correction(torch.full_like(action, 0.25), rows & (obs["walk"][:, 0] > 0))
    )


@BOTH
def test_it_learns_from_interventions(cfg):
    """Steps of a person have no noise: the critic of actions learns from it, that of noise from chunks carried out."""
    learner = made(cfg)
    learner.watch(taken_over)
    log = [learner.iterate() for _ in range(3)]
    assert 0 < log[-1]["corrected_share"] < 0.25 and np.isfinite(log[-1]["critic_loss"])
    replay, human = learner.replay, SOURCES.index("human")
    source = replay.view(replay.indices(1), 1, 0.9).source
    assert (source == human).any()
    rows = learner.rows(learner._decisions if cfg is SAC else learner._chunks, 40)
    if cfg is SAC:
        assert torch.isfinite(rows["noise"]).all()
        found = replay.view(replay.indices(2, decisions=True), 2, 0.9)
        after = replay.view(found.starts[found.steps == 2] + replay.streams, 1, 0.9).source
        assert not ((found.source == human).any() or (after == human).any())
        assert len(found.source) < len(replay.indices(2))
    else:
        assert (rows["chunk"][torch.isnan(rows["noise"]).flatten(1).all(1)] == 0.25).any()


@BOTH
def test_it_resumes_exactly_with_interventions(cfg):
    learner = made(cfg)
    learner.watch(taken_over)
    for _ in range(2):
        learner.iterate()
    saved, tree = snapshot(learner.state()), snapshot(policy_tree(learner.policy))
    fresh = made(cfg, policy_from_tree(tree, "here"))
    fresh.watch(taken_over)
    fresh.load(saved)
    assert learner.iterate() == fresh.iterate()


@pytest.mark.parametrize("cfg", [replace(NA, updates=4, distill_updates=4), replace(SAC, updates=4)], ids=["na", "sac"])
def test_it_learns(cfg):
    """The reward of the walk is where it stands: to the right is better."""
    settings = {"num_steps": 24, "warmup": 300, "lr": 3e-3, "reward_shift": 0.0, "initial_alpha": 0.02}
    learner = made(replace(cfg, **settings, target_entropy=-0.5), widened(flow()))
    before = evaluate(learner.policy, Walk(16), episodes=60).returns.mean()
    for _ in range(4):
        learner.iterate()
    after = evaluate(learner.policy, Walk(16), episodes=60).returns.mean()
    assert after > before + 4


def widened(base: FlowPolicy) -> FlowPolicy:
    """A base policy whose actions spread over the whole range with its noise."""
    with torch.no_grad():
        base.net.layers[-1].weight.mul_(10)
    return base


# demonstrations


def test_half_of_the_action_critics_rows_are_demonstrations(tmp_path):
    data = write_walks(tmp_path / "walks")
    learner = made(replace(NA, demo_share=0.5), dataset=data)
    learner.iterate()
    drawn = learner._chunks.sample(32, 2, 0.99, learner.generator, 3)
    sources = drawn.source.view(3, 32)
    assert (sources[:, :16] == SOURCES.index("demo")).all()
    assert (sources[:, 16:] == SOURCES.index("rollout")).all()
    assert torch.isfinite(torch.tensor(list(learner.iterate().values()))).all()


def test_demonstrations_that_do_not_fit_are_refused(tmp_path):
    data = write_walks(tmp_path / "walks")
    with pytest.raises(ConfigError, match=r"dataset is not given: algo.demo_share is 0.5"):
        made(replace(NA, demo_share=0.5))

    def slow() -> Walk:
        sim = Walk(16)
        sim.control_dt_s = 0.2
        return sim

    with pytest.raises(ConfigError, match=r"recorded at 10 Hz: expected 5 Hz"):
        replace(NA, demo_share=0.5).build(Setup(slow, ACTOR, flow(), data, 0))


# refusals


def test_what_it_cannot_start_from_is_refused():
    for cfg in (NA, SAC):
        with pytest.raises(ConfigError, match="init_from is not given"):
            cfg.build(setup(None, ACTOR))
        with pytest.raises(CapabilityError, match="policy GaussianPolicy lacks HasDecode"):
            made(cfg, gaussian())
        with pytest.raises(CapabilityError, match="policy config FlowCfg builds no noise actor"):
            made(cfg, actor=FlowCfg())
        with pytest.raises(ConfigError, match=r"policy.horizon is 4: the base policy's horizon is 2"):
            made(cfg, actor=replace(ACTOR, horizon=4))


def test_a_base_policy_for_another_sim_is_refused_with_both_values():
    wide = replace(ACTION, high=(2.0,))
    base = FlowCfg(horizon=2, hidden=(8,)).build(SPECS, wide, TRANSFORMS)
    with pytest.raises(ConfigError, match=r"trained for actions of high \(2.0,\): sim \w+ has \(1.0,\)"):
        made(NA, base)
    base = flow()
    base.control_dt_s = 0.05
    with pytest.raises(ConfigError, match=r"trained at 20 Hz: sim \w+ runs at 10 Hz"):
        made(NA, base)
    other = {"stand": SPECS["walk"]}
    base = FlowCfg(horizon=2, hidden=(8,)).build(other, ACTION, replace(TRANSFORMS, inputs=()))
    with pytest.raises(ConfigError, match=r"policy observes 'stand': sim \w+ has "):
        made(NA, base)


@pytest.mark.parametrize(
    ("field", "value"),
    [*itertools.product(["updates", "batch", "num_critics"], [0]), ("gamma", 0.0), ("tau", 1.5), ("lr", math.nan)],
)
@BOTH
def test_settings_out_of_range_are_refused(cfg, field, value):
    with pytest.raises(ConfigError, match=rf"algo\.{field} is {value!r}: expected"):
        made(replace(cfg, **{field: value}))


def test_settings_of_aliasing_out_of_range_are_refused():
    with raises_naming(ConfigError, "algo.distill_updates", 0, 1):
        made(replace(NA, distill_updates=0))
    with raises_naming(ConfigError, "algo.group", 1, 2):
        made(replace(NA, group=1))
    with raises_naming(ConfigError, "algo.decoded", 60, 8):
        made(replace(NA, decoded=60))
    with raises_naming(ConfigError, "algo.own_share", 2.0, 0, 1):
        made(replace(NA, own_share=2.0))
    with raises_naming(ConfigError, "algo.decoded", 2000, 1, 1000):
        made(replace(NA, decoded=2000))
    with raises_naming(ConfigError, "algo.demo_share", 1.0, 0, 1):
        made(replace(NA, demo_share=1.0))


@BOTH
def test_a_loss_that_is_not_finite_stops_with_the_iteration(cfg):
    learner = made(cfg)
    learner.iterate()
    with torch.no_grad():
        next(learner._loss.critic.parameters())[0, 0, 0] = math.nan
    with pytest.raises(NumericsError, match=r"iteration 2, minibatch 0: loss is nan"):
        learner.iterate()


def test_compiled_and_uncompiled_updates_are_the_same():
    """Of the phase that decodes, draws, averages and holds; small, since compiling takes long."""
    found = []
    for engine in ("eager", "compiled"):
        base = replace(FlowCfg(), horizon=2, denoising_steps=2, hidden=(8,)).build(SPECS, ACTION, TRANSFORMS)
        torch.manual_seed(0)
        for p in base.parameters():
            torch.nn.init.normal_(p, std=0.3)
        cfg = replace(NA, engine=engine, critic_hidden=(8,), updates=2, warmup=16 * 12 + 1)
        learner = made(cfg, base, actor=replace(ACTOR, hidden=(8,)))
        learner.iterate()
        scalars = learner._learn()
        assert learner._engine.mode == engine
        found.append((scalars, snapshot(learner._loss.state_dict())))
    for name, value in found[0][0].items():
        assert found[1][0][name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
    for name, value in found[0][1].items():
        assert torch.allclose(found[1][1][name], value, atol=1e-4), name
