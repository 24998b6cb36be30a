"""RLPD: what is in a batch, what each phase trains, its targets, corrections, exact resume, refusals."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.func import functional_call

import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl.algos.rlpd import BOTH, CRITIC, RlpdCfg
from robotrl.engine.engine import Context
from robotrl.engine.minibatches import part
from robotrl.errors import CapabilityError, ConfigError
from robotrl.replay.buffer import SOURCES
from robotrl.replay.corrections import Correction
from tests.kits.walk_sim import Walk

DEMO, ROLLOUT, HUMAN = (SOURCES.index(name) for name in ("demo", "rollout", "human"))


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return off.write_random_walks(tmp_path_factory.mktemp("rlpd") / "demos")


def warm(demos: Path, cfg: RlpdCfg = off.RLPD, policy=off.POLICY, iterations: int = 4):
    learner = cfg.build(off.setup(policy, demos))
    off.run(learner, iterations)
    return learner


@pytest.mark.parametrize(("share", "rows"), [(0.5, 16), (0.25, 8)])
def test_a_batch_has_its_share_of_demonstrations(demos, share, rows):
    learner = warm(demos, replace(off.RLPD, demo_share=share))
    drawn = learner._sampler().sample(32, 1, 0.9, torch.Generator().manual_seed(0), updates=3)
    source = drawn.source.view(3, 32)
    assert ((source == DEMO).sum(1) == rows).all() and ((source == ROLLOUT).sum(1) == 32 - rows).all()


def networks(learner) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in learner._loss.named_parameters()}


@pytest.mark.parametrize(("phase", "trained"), [(CRITIC, {"critic"}), (BOTH, {"critic", "policy", "log_alpha"})])
def test_each_phase_trains_its_networks(demos, phase, trained):
    learner = warm(demos)
    before = networks(learner)
    learner._engine.run(learner._draw(1), torch.arange(32), 32, "here", phase)
    moved = {name.split(".")[0] for name, value in networks(learner).items() if not torch.equal(value, before[name])}
    assert moved == trained


def test_the_policy_learns_once_for_each_env_step(demos):
    learner = warm(demos, iterations=2)
    steps = learner._engine.state()["steps"].clone()
    learner.iterate()
    # 16 env steps, a ratio of 3: policy, critics, temperature
    assert (learner._engine.state()["steps"] - steps).tolist() == [16, 48, 16]
    assert learner.updates == 48


def test_targets_are_the_least_of_the_subset_without_entropy(demos):
    learner = warm(demos)
    loss, rows = learner._loss, learner._draw(2)
    averages = learner._engine.averages("critic.")
    context = Context({}, {f"critic.{name}": value for name, value in averages.items()}, BOTH)
    found = loss._target(rows, context)
    with torch.no_grad():
        ctx = loss.policy.encode(part(rows, "next_obs/"))
        values = functional_call(
            loss.critic, averages, (ctx, loss.policy.draw_with(ctx, rows["next_noise"]).normalized_action)
        )
    for row in range(64):
        members = rows["members"][row].tolist()
        assert len(set(members)) == 2 and members == rows["members"][row // 32 * 32].tolist()
        least = min(values[m, row].item() for m in members)
        expected = rows["reward"][row] + rows["discount"][row] * least
        assert found[row].item() == pytest.approx(expected.item(), abs=1e-6)


def test_a_fresh_policy_sees_the_demonstrations_statistics(demos):
    learner = off.RLPD.build(off.setup(dataset=demos))
    rows = learner._demos.view(learner._demos.indices(), 1, 0.9).obs
    ctx = learner.policy.encode(rows)
    assert ctx.mean(0).abs().max() < 0.01 and (ctx.std(0) - 1).abs().max() < 0.02


def test_corrections_count_as_prior_data(demos):
    learner = off.RLPD.build(off.setup(dataset=demos))

    def corrector(obs, action, started):
        return Correction(torch.full_like(action, 0.25), torch.tensor([True, False, False, True]))

    learner.watch(lambda sim: off.Watcher(corrector))
    log = off.run(learner, 4)
    assert log[0]["corrected_share"] == 0.5
    drawn = learner._sampler().sample(32, 1, 0.9, torch.Generator().manual_seed(0), updates=50)
    prior, own = drawn.source.view(50, 32)[:, :16], drawn.source.view(50, 32)[:, 16:]
    corrected = len(learner.experience.memory.corrections.indices(1))
    share = corrected / (corrected + len(learner._demos))
    assert ((prior == HUMAN).sum(1) == round(16 * share)).all() and ((prior == DEMO) | (prior == HUMAN)).all()
    # intervened steps are in both
    assert ((own == HUMAN) | (own == ROLLOUT)).all() and (own == HUMAN).float().mean() == pytest.approx(0.5, abs=0.1)
    assert (drawn.chunk[drawn.source == HUMAN] == 0.25).all()


def test_it_resumes_exactly_with_corrections(demos):
    def corrector(obs, action, started):
        return Correction(-action, obs["walk"][:, 0] > 0.5)

    def make(init_policy=None):
        learner = off.RLPD.build(off.setup(dataset=demos, init_policy=init_policy))
        learner.watch(lambda sim: off.Watcher(corrector))
        return learner

    learner = make()
    off.run(learner, 3)
    state = kit.snapshot(learner.state())
    expected = off.run(learner, 2)
    resumed = make(copy.deepcopy(learner.policy))
    resumed.load(state)
    assert off.run(resumed, 2) == expected
    assert kit.same(kit.snapshot(resumed.state())["networks"], kit.snapshot(learner.state())["networks"])


def test_it_learns_the_walk_in_chunks(demos):
    learner = replace(off.RLPD, env_steps=240, alpha_lr=3e-3).build(off.setup(off.CHUNKS, demos))
    log = off.run(learner, learner.iterations)
    returns = [line["rollout_return"] for line in log if "rollout_return" in line]
    assert sum(returns[-4:]) / 4 > sum(returns[:3]) / 3 + 1.5


class Fast(Walk):
    control_dt_s = 0.05


class Wide(Walk):
    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        spec = self.action_spec
        names = ("x", "y")
        self.action_spec = type(spec)((2,), names, spec.units * 2, spec.low * 2, spec.high * 2)


@pytest.mark.parametrize(
    ("sim", "message"),
    [(Fast, "is recorded at 10 Hz: expected 20 Hz"), (Wide, r"has shape \(1,\): expected \(2,\)")],
)
def test_demonstrations_of_another_rate_or_action_are_refused(demos, sim, message):
    setup = off.setup(dataset=demos)._replace(make_sim=lambda: sim(4))
    with pytest.raises(ConfigError, match=message):
        off.RLPD.build(setup)


def test_what_cannot_work_is_refused(demos):
    with pytest.raises(ConfigError, match="dataset is not given: RLPD learns from demonstrations"):
        off.RLPD.build(off.setup())
    with pytest.raises(CapabilityError, match=r"FlowPolicy lacks draw_with.*RLPD"):
        off.RLPD.build(off.setup(dataset=demos, init_policy=kit.flow()))
    for field, value, expected in (
        ("subset", 4, "1 to 3"),
        ("demo_share", 1.0, "above 0 and below 1"),
        ("utd_ratio", 1.5, "a whole number"),
        ("num_critics", 0, "1 or more"),
    ):
        with pytest.raises(ConfigError, match=f"algo.{field} .*{expected}"):
            replace(off.RLPD, **{field: value}).build(off.setup(dataset=demos))
