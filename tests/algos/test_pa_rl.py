"""PA-RL: what its critics aim at, what is chosen and cloned, its stages, and what it refuses."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl.algos.pa_rl import CLONE, CRITIC, PaRlCfg
from robotrl.engine.engine import Context
from robotrl.errors import CapabilityError, ConfigError
from robotrl.fn.bc_loss import flow_matching_loss
from tests.kits.refusals import raises_naming

CFG = off.PA_RL


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return off.write_random_walks(tmp_path_factory.mktemp("pa-rl") / "data", episodes=80)


def mean_step(policy: Any) -> float:
    """The first step that a policy takes from the middle of the walk."""
    obs = {"walk": torch.tensor([[0.0, 1.0]]).expand(256, -1)}
    with torch.no_grad():
        return float(policy.act(obs, None, torch.Generator().manual_seed(0)).chunk[:, 0].mean())


def average_of(learner: Any) -> dict[str, Tensor]:
    return {f"critic.{name}": x for name, x in learner._engine.averages("critic.").items()}


def test_the_critics_aim_at_the_best_of_the_policys_samples(data: Path) -> None:
    learner = CFG.build(off.setup(None, data, kit.flow()))
    loss, rows = learner._loss, learner._critic_rows(1)
    with torch.no_grad():
        for _, parameter in loss.critic.named_parameters():
            parameter.mul_(3)
        info = loss(rows, Context({"updates": torch.zeros(())}, average_of(learner), CRITIC)).info
        ctx = loss.base.encode({"walk": rows["next_obs/walk"]})
        values = []
        for k in range(CFG.target_candidates):
            chunk = loss.base.decode(ctx, rows["next_noise"][:, k]).clamp(-1, 1)
            average = learner._engine.averages("critic.")
            values.append(torch.func.functional_call(loss.critic, average, (ctx, chunk)).mean(0))
    wanted = rows["reward"] + rows["discount"] * torch.stack(values).amax(0)
    assert info["target"].item() == pytest.approx(wanted.mean().item(), rel=1e-5)
    assert not torch.equal(values[0], torch.stack(values).amax(0))


def test_the_best_samples_are_cloned_in_every_state(data: Path) -> None:
    """The chosen chunk of a state is one of the policy's own samples there, and of all of them the best."""
    learner = replace(CFG, critic_updates=40, updates_per_iteration=40).build(off.setup(None, data, kit.flow()))
    off.run(learner, 1)
    before = learner._generator.get_state()
    learner._choose()
    chunks, loss, value = learner._chosen.chunks, learner._loss, learner._value()
    assert chunks is not None and len(chunks) == len(learner._logs.replay)
    again = torch.Generator()
    again.set_state(before)
    noise = torch.randn(len(chunks), 4, 2, 1, generator=again)
    with torch.no_grad():
        ctx = loss.base.encode(learner._observed(torch.arange(len(chunks))))
        each = torch.stack([loss.base.decode(ctx, noise[:, k]).clamp(-1, 1) for k in range(4)], 1)
        values = torch.stack([value(ctx, each[:, k]) for k in range(4)], 1)
    assert torch.allclose(chunks, each[torch.arange(len(chunks)), values.argmax(1)], atol=1e-5)
    gain = (values.amax(1) - values.mean(1)).mean().item()
    assert learner._chosen.scalars["chosen_gain"] == pytest.approx(gain, rel=1e-4)


def test_the_policy_clones_the_choice_and_nothing_else(data: Path) -> None:
    learner = CFG.build(off.setup(None, data, kit.flow()))
    learner._choose()
    rows = learner._clone_rows(1)
    out = learner._loss(rows, Context({"updates": torch.zeros(())}, average_of(learner), CLONE))
    policy, valid = learner._loss.policy, torch.ones(32, 2, dtype=torch.bool)
    ctx = policy.encode({"walk": rows["obs/walk"]})
    wanted = flow_matching_loss(policy, ctx, rows["chosen"], valid, rows["drawn/noise"], rows["drawn/t"])
    assert out.loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    assert out.lr[1] is None and float(out.lr[0]) == pytest.approx(CFG.lr)
    grads = torch.autograd.grad(out.loss, list(learner._loss.critic.parameters()), allow_unused=True)
    assert all(grad is None for grad in grads)


@pytest.mark.parametrize("kind", ["flow", "diffusion", "gaussian"])
def test_any_policy_with_samples_prefers_the_better_of_its_own(data: Path, kind: str) -> None:
    """Actions to the right are worth more; a fresh policy samples to both sides."""
    policy = {"flow": kit.flow, "diffusion": kit.diffusion, "gaussian": kit.gaussian}[kind]()
    before = mean_step(policy)
    cfg = replace(CFG, critic_updates=90, updates=120, updates_per_iteration=30, lr=3e-3, candidates=8)
    learner = cfg.build(off.setup(None, data, policy))
    log = off.run(learner, learner.iterations)
    assert learner.iterations == 7 and log[-1]["updates"] == 210
    # samples of the Gaussian kinds vary by a fifth of the range
    assert mean_step(learner.policy) > before + (0.1 if kind == "gaussian" else 0.25)
    assert log[2]["critic/heldout_rank"] > 0.5 and log[2]["critic/heldout_auc"] > 0.6
    assert log[-1]["critic/heldout_rank"] == log[2]["critic/heldout_rank"]


def test_ascent_moves_the_choice_uphill_within_the_bounds(data: Path) -> None:
    base = replace(CFG, critic_updates=40, updates_per_iteration=40)
    chunks = []
    for steps in (0, 5):
        learner = replace(base, ascent_steps=steps, ascent_size=0.05).build(off.setup(None, data, kit.flow()))
        off.run(learner, 1)
        learner._choose()
        chunks.append(learner._chosen.chunks)
    ctx = learner._loss.base.encode(learner._observed(torch.arange(len(chunks[0]))))
    value = learner._value()
    assert (chunks[0] - chunks[1]).abs().max() <= 0.25 + 1e-6 and chunks[1].abs().max() <= 1
    assert (value(ctx, chunks[1]) - value(ctx, chunks[0])).mean() > 0.01


@pytest.mark.parametrize("at", [1, 3, 4])
def test_it_resumes_exactly_in_both_stages(data: Path, at: int) -> None:
    cfg = replace(CFG, ema=0.9)
    learner = cfg.build(off.setup(None, data, kit.flow()))
    off.run(learner, at)
    state = kit.snapshot(learner.state())
    expected = off.run(learner, 1)
    made = off.setup(None, data, copy.deepcopy(learner.policy))._replace(resumed=True)
    resumed = replace(cfg, init_critic="is gone").build(made) if at == 4 else cfg.build(made)
    resumed.load(state)
    assert off.run(resumed, 1) == expected
    assert kit.same(kit.snapshot(resumed.state()), kit.snapshot(learner.state()))


def test_the_policy_stays_as_it_is_while_the_critics_learn(data: Path) -> None:
    policy = kit.flow()
    before = copy.deepcopy(policy.state_dict())
    learner = replace(CFG, updates=0).build(off.setup(None, data, policy))
    off.run(learner, learner.iterations)
    assert all(torch.equal(x, before[name]) for name, x in learner.policy.state_dict().items())
    tree = learner.critic_tree()
    assert tree is not None and "critic/heldout_auc" in tree["quality"]


def test_what_cannot_work_is_refused(data: Path) -> None:
    with raises_naming(ConfigError, "init_from"):
        CFG.build(off.setup(kit.FLOW, data))
    with raises_naming(ConfigError, "dataset"):
        CFG.build(off.setup(None, None, kit.flow()))
    with pytest.raises(CapabilityError, match="BetaPolicy"):
        CFG.build(off.setup(None, data, kit.beta()))
    for field, value, expected in (
        ("candidates", 0, 1),
        ("target_candidates", 0, 1),
        ("held_out", 1.0, 1),
        ("tau", 0.0, 0),
        ("num_critics", 0, 1),
        ("lr", 0.0, 0),
        ("reduction", "median", "mean"),
        ("rewards", "scaled", "stored"),
        ("critic_updates", 0, "algo.init_critic"),
    ):
        with raises_naming(ConfigError, f"algo.{field}", value if isinstance(value, float | int) else "", expected):
            replace(CFG, **{field: value}).check()
    with raises_naming(ConfigError, "algo.critic_updates", 0):
        PaRlCfg(critic_updates=0, updates=0, init_critic="run").check()
