"""RL-100: what its critics aim at, its ratios and advantages, its gate and what it undoes, and what it refuses."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl.algos.flow_sde import policy_loss
from robotrl.algos.rl100 import POLICY, Rl100Cfg, chunk_advantage
from robotrl.engine.engine import Context
from robotrl.errors import CapabilityError, ConfigError
from robotrl.fn.loss import ppo_clip
from robotrl.learners.critics.gate_record import GateRecord
from robotrl.learners.critics.iql_critic import IqlValues, iql_critic_loss
from robotrl.learners.denoising_sampling import chain_log_prob, step_log_prob
from tests.kits.refusals import raises_naming

CFG = off.RL100


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return off.write_random_walks(tmp_path_factory.mktemp("rl100") / "data", episodes=60)


def built(data: Path, policy: Any = None, **changes: Any) -> Any:
    return replace(CFG, **changes).build(off.setup(None, data, kit.flow() if policy is None else policy))


def mean_step(policy: Any) -> float:
    """The first step that a policy takes from the middle of the walk."""
    obs = {"walk": torch.tensor([[0.0, 1.0]]).expand(256, -1)}
    with torch.no_grad():
        return float(policy.act(obs, None, torch.Generator().manual_seed(0)).chunk[:, 0].mean())


def test_the_critics_losses_by_hand() -> None:
    """Two rows and two critics: r + d V(s') is 1.5 and 2; the state value is below its target once, above it once."""
    found = IqlValues(
        values=torch.tensor([[1.0, 2.0], [1.5, 3.0]]),
        value=torch.tensor([0.0, 2.0]),
        target_q=torch.tensor([1.0, 1.0]),
        next_value=torch.tensor([1.0, 7.0]),
    )
    loss, info = iql_critic_loss(found, torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.0]), 0.75)
    # half the mean squares of errors (0.5, 0) and (0, 1)
    assert info["critic_loss"].item() == pytest.approx(0.5 * (0.25 / 2 + 1 / 2))
    # errors +1 and -1 with weights 0.75 and 0.25
    assert info["value_loss"].item() == pytest.approx(0.5)
    assert loss.item() == pytest.approx(0.3125 + 0.5)


def test_advantages_and_clipping_of_two_rows_by_hand() -> None:
    advantage = chunk_advantage(torch.tensor([3.0, 1.0, 7.0, 7.0]), torch.tensor([1.0, 1.0, 2.0, 2.0]), 2)
    # Q - V is (2, 0) and (5, 5): normalized in each minibatch of 2, and 0 where all are the same
    assert torch.allclose(advantage, torch.tensor([1.0, -1.0, 0.0, 0.0]), atol=1e-6)
    ratio = torch.tensor([[1.5, 0.9], [0.5, 1.1]])
    out = ppo_clip(ratio.log(), torch.zeros(2, 2), advantage[:2, None], 0.2)
    # row 1 gains: 1.5 is clipped to 1.2; row 2 loses: 0.5 is clipped to 0.8, and 1.1 counts whole
    assert out.loss.item() == pytest.approx(-(1.2 + 0.9 - 0.8 - 1.1) / 4)


def test_the_loss_is_the_chains_of_the_old_policy(data: Path) -> None:
    """At the start policy and old policy are the same: all ratios are 1, and the loss is minus the mean advantage."""
    learner = built(data)
    rows = learner._policy_rows(2)
    steps = learner.model.denoising_steps
    assert rows["chain"].shape == (64, steps + 1, 2, 1) and rows["log_prob"].shape == (64, steps)
    first = {name: x[:32] for name, x in rows.items()}
    out = learner._loss(first, Context({}, {}, POLICY))
    assert out.info["ratio_error"].item() < 1e-4
    assert out.loss.item() == pytest.approx(0.0, abs=1e-5)
    for block in rows["advantage"].split(32):
        assert block.mean().item() == pytest.approx(0.0, abs=1e-5)
        assert block.std(correction=0).item() == pytest.approx(1.0, abs=1e-3)
    value, loss = learner._value(), learner._loss
    with torch.no_grad():
        q = value(rows["ctx"], rows["chain"][:, -1]) - loss.state_value(rows["ctx"])
    assert torch.allclose(rows["advantage"], chunk_advantage(q, torch.zeros_like(q), 32), atol=1e-5)
    # the terms are those of Flow-SDE, whatever the kernel
    log_prob = step_log_prob(chain_log_prob(loss.policy, first["ctx"], loss.kernel, first["chain"]))
    assert out.loss.item() == policy_loss(log_prob, first, CFG.clip_coef).loss.item()
    assert out.lr[1] is None and out.lr[2] is None and float(out.lr[0]) == pytest.approx(CFG.lr)


def test_the_ratio_is_one_at_the_first_minibatch_of_each_iteration(data: Path) -> None:
    learner = built(data)
    log = off.run(learner, learner.iterations)
    assert len(log) == 5 and log[-1]["updates"] == 50
    assert all(entry["ratio_error"] < 1e-4 for entry in log[2:])
    assert log[1]["critic/heldout_episodes"] == 6
    assert {"gate/score", "gate/before", "gate/accepted", "gate/gain"} <= log[-1].keys()


@pytest.mark.parametrize("kind", ["flow", "diffusion"])
def test_a_policy_goes_where_the_critics_say(data: Path, kind: str) -> None:
    """Actions to the right are worth more; a fresh policy samples to both sides."""
    policy = {"flow": kit.flow, "diffusion": kit.diffusion}[kind]()
    before = mean_step(policy)
    learner = built(data, policy, critic_updates=60, updates=80, updates_per_iteration=20, lr=3e-3, clip_coef=0.1)
    log = off.run(learner, learner.iterations)
    assert mean_step(learner.policy) > before + 0.05
    assert log[-1]["gate/gain"] > 0
    tree = learner.critic_tree()
    assert tree["reduction"] == "min" and "critic/heldout_auc" in tree["quality"]


def everything(learner: Any) -> dict[str, Any]:
    """All that updates change: weights, moments, averages, and the policy that is saved."""
    moved = {"networks": learner._loss.state_dict(), "policy": learner.policy.state_dict()}
    return kit.snapshot(moved | {"engine": learner._engine.state()})


@pytest.mark.parametrize(("cfg", "seed"), [*((CFG, seed) for seed in range(5)), (off.ALONG, 0), (off.ALONG, 1)])
def test_a_bad_update_is_undone_bit_for_bit(data: Path, cfg: Rl100Cfg, seed: int) -> None:
    """A good iteration first, so that moments and averages are not 0; then a learning rate 100 times as large, uphill
    on the loss: on a walk whose best action is a bound, a leap alone may well land there.
    """
    good = replace(cfg, updates=20, updates_per_iteration=10)
    learner: Any = good.build(off.setup(None, data, kit.flow(), seed))
    off.run(learner, learner.iterations - 1)
    before, score, updates = everything(learner), learner._gate.score, learner.updates
    learner._loss._cfg = replace(good, lr=100 * CFG.lr)
    rows_of = learner._policy_rows
    learner._policy_rows = lambda count: (made := rows_of(count)) | {"advantage": -made["advantage"]}
    found = learner.iterate()
    assert found["gate/accepted"] == 0.0 and found["gate/score"] < found["gate/before"]
    assert kit.same(everything(learner), before)
    assert learner._gate.score == score and learner.updates == updates + 10
    assert any(bool((x != 0).any()) for name, x in before["engine"].items() if name in ("first", "second"))


def test_one_step_is_the_value_of_the_first_decision(data: Path) -> None:
    learner = built(data, critic_updates=4)
    learner.iterate()
    value, ctx = learner._value(), learner._loss.old.encode(learner._observed(learner._gate_frames))
    with torch.no_grad():
        expected = value(ctx, learner.policy.decode(ctx, learner._gate_noise)).double().mean().item()
    assert learner._score() == pytest.approx(expected, rel=1e-12)
    assert learner._dynamics is None and "dynamics" not in learner.critic_tree()


class Doubling(torch.nn.Module):
    """A model of two networks under which the place doubles, whatever is done."""

    elites = torch.arange(2)

    def step(self, ctx: torch.Tensor, chunk: torch.Tensor, network: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        assert chunk.shape[1:] == (2, 1) and chunk.abs().max() <= 1 and network.max() <= 1 and len(noise) == len(ctx)
        return torch.cat([2 * ctx[:, :1], ctx[:, 1:]], 1)


def test_the_score_along_three_steps_by_hand(data: Path) -> None:
    """With the place as the value and a model that doubles it, J is the mean of x + 2 x + 4 x."""
    learner = built(data, gate_steps=3, dynamics=off.ALONG.dynamics)
    learner._dynamics.model = Doubling()
    learner._value = lambda: lambda ctx, chunk: ctx[:, 0]
    x = learner._loss.old.encode(learner._observed(learner._gate_frames))[:, 0].double()
    assert learner._score() == pytest.approx(7 * x.mean().item(), rel=1e-6)


def test_the_gate_along_a_model_learns_the_logs_dynamics(data: Path) -> None:
    """The stages are critics, dynamics, policy; chunks that ended their episode are no data."""
    learner = built(data, gate_steps=3, dynamics=replace(off.ALONG.dynamics, updates=60))
    learned = learner._dynamics._learned
    # the place moves by the sum of two executed actions: the logs' x is normalized to itself, the time to (t - 3) / 2
    assert torch.allclose(learned.next_ctx[:, 0], learned.ctx[:, 0] + learned.chunk.sum((1, 2)), atol=1e-5)
    assert torch.allclose(learned.next_ctx[:, 1], learned.ctx[:, 1] + 1.0, atol=1e-5)
    log = off.run(learner, learner.iterations)
    assert learner.iterations == 2 + 6 + 3 and learner.updates == 20 + 60 + 30
    assert "dynamics/nll" in log[2] and "gate/score" not in log[7] and "gate/score" in log[8]
    assert log[7]["dynamics/heldout_error"] < 0.5
    assert learner._score() == learner._score()
    assert "dynamics" in learner.critic_tree() and "state_value" in learner.critic_tree()


def test_an_accepted_update_makes_a_new_old_policy(data: Path) -> None:
    learner = built(data, margin=0.0)
    off.run(learner, 2)
    learner._gate.judge = lambda after, margin: True
    off.run(learner, 1)
    old, new = learner._loss.old.state_dict(), learner._loss.policy.state_dict()
    assert all(torch.equal(x, new[name]) for name, x in old.items())


def test_the_record_keeps_the_score_of_the_policy_that_stays() -> None:
    record = GateRecord()
    record.begin(2.0)
    assert record.judge(3.0, 0.25) and record.score == 3.0 and record.scalars["gate/gain"] == 1.0
    assert not record.judge(3.5, 0.25) and record.score == 3.0
    assert record.scalars == {"gate/score": 3.5, "gate/before": 3.0, "gate/accepted": 0.0, "gate/gain": 1.0}


@pytest.mark.parametrize(("cfg", "at"), [(CFG, 1), (CFG, 3), (off.ALONG, 3), (off.ALONG, 5)])
def test_it_resumes_exactly_in_all_stages(data: Path, cfg: Rl100Cfg, at: int) -> None:
    learner: Any = cfg.build(off.setup(None, data, kit.flow()))
    off.run(learner, at)
    state = kit.snapshot(learner.state())
    expected = off.run(learner, 2)
    resumed: Any = cfg.build(off.setup(None, data, copy.deepcopy(learner.policy))._replace(resumed=True))
    resumed.load(state)
    assert off.run(resumed, 2) == expected
    assert kit.same(kit.snapshot(resumed.state()), kit.snapshot(learner.state()))


def test_what_cannot_work_is_refused(data: Path, tmp_path: Path) -> None:
    with raises_naming(ConfigError, "init_from"):
        CFG.build(off.setup(kit.FLOW, data))
    with raises_naming(ConfigError, "dataset"):
        CFG.build(off.setup(None, None, kit.flow()))
    with pytest.raises(CapabilityError, match="lacks HasChain"):
        CFG.build(off.setup(None, data, kit.gaussian()))
    with raises_naming(ConfigError, "algo.held_out", 0.1, 1):
        built(off.write_random_walks(tmp_path / "one", episodes=1))
    for field, value, expected in (
        ("critic_updates", 0, 1),
        ("batch", 1, 2),
        ("held_out", 0.0, 0),
        ("expectile", 1.0, 1),
        ("noise", 0.0, 0),
        ("std_floor", 0.0, 0),
        ("margin", -0.1, 0),
        ("gate_steps", 0, 1),
        ("rewards", "scaled", "stored"),
    ):
        with raises_naming(ConfigError, f"algo.{field}", value if isinstance(value, float | int) else "", expected):
            replace(CFG, **{field: value}).check()
