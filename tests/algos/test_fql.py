"""FQL: its losses by hand, what it learns offline and online, exact resume, what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl.algos.fql import FqlCfg, FqlLoss, actor_loss, critic_loss, flow_loss
from robotrl.engine.engine import Context
from robotrl.errors import CapabilityError, ConfigError
from robotrl.fn.bc_loss import DrawShape
from robotrl.fn.chain import integrate
from robotrl.policies.flow import FlowPolicy
from robotrl.replay.buffer import Replay, StepRecord
from robotrl.run.critic_checkpoint import write_critic
from robotrl.run.policy_checkpoint import changed, policy_from_tree, policy_tree
from tests.kits.refusals import raises_naming

FLOW = replace(kit.FLOW, horizon=1)
CFG = off.FQL


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return off.write_random_walks(tmp_path_factory.mktemp("fql") / "data", episodes=150)


def mean_step(policy: Any) -> float:
    """The step that a policy takes from the middle of the walk."""
    obs = {"walk": torch.tensor([[0.0, 1.0]]).expand(256, -1)}
    with torch.no_grad():
        return float(policy.act(obs, None, torch.Generator().manual_seed(0)).chunk[:, 0].mean())


def rows_of_walk(count: int, horizon: int = 2) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1)
    chunk = torch.rand((count, horizon, 1), generator=draw) * 2 - 1
    noise = {name: torch.randn((count, horizon, 1), generator=draw) for name in ("noise", "z", "next_z")}
    return {
        "obs/walk": torch.randn((count, 2), generator=draw),
        "next_obs/walk": torch.randn((count, 2), generator=draw),
        "chunk": chunk,
        "valid": torch.ones(count, horizon, dtype=torch.bool),
        "reward": torch.rand(count, generator=draw),
        "discount": torch.full((count,), 0.81),
        "t": torch.rand(count, generator=draw),
        **noise,
    }


# losses by hand


def test_the_flow_regresses_the_velocity_of_valid_elements():
    """A velocity of 0 errs by (a - e)^2; the second action of the second chunk was never taken."""
    flow = kit.flow()
    with torch.no_grad():
        for parameter in flow.net.parameters():
            parameter.zero_()
    rows = rows_of_walk(2)
    rows["chunk"] = torch.tensor([[[0.5], [-0.5]], [[1.0], [9.0]]])
    rows["noise"] = torch.tensor([[[0.0], [0.5]], [[-1.0], [0.0]]])
    rows["valid"] = torch.tensor([[True, True], [True, False]])
    loss, info = flow_loss(flow, rows)
    assert loss.item() == pytest.approx((0.25 + 1.0 + 4.0) / 3)
    assert info["flow_loss"] is loss


def test_the_target_ends_at_a_termination_and_goes_on_beyond_a_time_limit():
    """Chunks of two on a replay: gamma 0.9, rewards 1, 2 and 4, the value of every next state 10."""
    replay = Replay.create(None, kit.SPECS, kit.ACTION, streams=1, capacity=8)
    for reward, terminated, truncated in ((1.0, False, False), (2.0, True, False), (4.0, False, True)):
        ended = torch.tensor([0]) if terminated or truncated else torch.zeros(0, dtype=torch.int64)
        obs = {"walk": torch.zeros(1, 2)}
        flags = torch.tensor([terminated]), torch.tensor([truncated])
        final = {"walk": torch.zeros(len(ended), 2)}
        replay.add(StepRecord(obs, torch.zeros(1, 1), torch.tensor([reward]), *flags, final, ended))
    drawn = replay.view(replay.indices(2), 2, 0.9)
    batch = {"reward": drawn.reward, "discount": drawn.discount}
    # the chunk 1, 2 terminates; that from 2 as well, after one step; that from 4 is cut after one step
    targets = [1 + 0.9 * 2, 2.0, 4 + 0.9 * 10]
    values = torch.zeros(2, 3)
    loss, info = critic_loss(values, batch, torch.full((3,), 10.0))
    assert info["target"].item() == pytest.approx(sum(targets) / 3)
    # half the squared error, summed over two critics
    assert loss.item() == pytest.approx(sum(y**2 for y in targets) / 3, rel=1e-6)


def test_a_whole_chunk_is_discounted_step_by_step():
    replay = Replay.create(None, kit.SPECS, kit.ACTION, streams=1, capacity=8)
    none = torch.zeros(0, dtype=torch.int64)
    for reward in (1.0, 2.0, 4.0):
        off_ = torch.tensor([False])
        obs = {"walk": torch.zeros(1, 2)}
        replay.add(
            StepRecord(obs, torch.zeros(1, 1), torch.tensor([reward]), off_, off_, {"walk": torch.zeros(0, 2)}, none)
        )
    drawn = replay.view(replay.indices(2)[:1], 2, 0.9)
    batch = {"reward": drawn.reward, "discount": drawn.discount}
    _, info = critic_loss(torch.zeros(1, 1), batch, torch.tensor([10.0]))
    assert info["target"].item() == pytest.approx(1 + 0.9 * 2 + 0.81 * 10)


def test_the_policy_loss_by_hand():
    chunk, taught = torch.tensor([[[1.0]], [[0.0]]]), torch.tensor([[[0.0]], [[0.0]]])
    value = torch.tensor([4.0, -2.0])
    plain, info = actor_loss(chunk, taught, value, alpha=10.0, normalize_q=False)
    assert plain.item() == 10 * 0.5 - 1.0
    assert (info["distill_loss"].item(), info["q_policy"].item()) == (0.5, 1.0)
    scaled, _ = actor_loss(chunk, taught, value, alpha=10.0, normalize_q=True)
    assert scaled.item() == pytest.approx(10 * 0.5 - 1.0 / 3.0)


def test_distilling_a_policy_into_itself_has_no_gradient():
    """The flow on one step is the one-step policy: sampler and target share the time grid."""
    policy = kit.flow().with_steps(1)
    ctx, z = policy.encode({"walk": torch.randn(16, 2)}), torch.randn(16, 2, 1)
    loss, _ = actor_loss(policy.decode(ctx, z), integrate(policy, ctx, z), torch.zeros(16), 10.0, True)
    loss.backward()
    assert loss.item() == 0.0
    assert all((p.grad == 0).all() for p in policy.net.parameters())


def test_the_target_of_distillation_is_the_flow_on_its_own_grid():
    loss = FqlLoss(kit.flow(), replace(CFG, flow_steps=5))
    assert loss.flow.times == pytest.approx((0, 0.2, 0.4, 0.6, 0.8, 1.0)) and loss.policy.times == (0.0, 1.0)
    ctx, z = loss.flow.encode({"walk": torch.randn(4, 2)}), torch.randn(4, 2, 1)
    x = z
    for k in range(5):
        x = x + 0.2 * loss.flow.velocity(ctx, x, torch.full((4,), k / 5), torch.full((4,), 0.2))
    assert torch.allclose(loss.flow.decode(ctx, z), x, atol=1e-6)


def test_each_network_learns_from_its_own_loss_alone():
    loss = FqlLoss(kit.flow(), CFG)
    rows = rows_of_walk(8)
    average = {f"critic.{name}": p.detach() for name, p in loss.critic.named_parameters()}
    whole = loss(rows, Context({}, average, ""))
    parameters = {name: p for name, p in loss.named_parameters() if p.requires_grad}
    found = dict(zip(parameters, torch.autograd.grad(whole.loss, list(parameters.values())), strict=True))
    flow = list(loss.flow.parameters())
    for mine, expected in zip(flow, torch.autograd.grad(flow_loss(loss.flow, rows)[0], flow), strict=True):
        name = next(n for n, p in parameters.items() if p is mine)
        assert torch.allclose(found[name], expected, atol=1e-7), name
    critic = list(loss.critic.parameters())
    with torch.no_grad():
        seen = loss.flow.encode({"walk": rows["obs/walk"]})
        chunk = loss.executed(loss.learned.decode(loss.learned.encode({"walk": rows["next_obs/walk"]}), rows["next_z"]))
        next_value = loss.critic(loss.flow.encode({"walk": rows["next_obs/walk"]}), chunk).mean(0)
    alone = critic_loss(loss.critic(seen, rows["chunk"]), rows, next_value)[0]
    for mine, expected in zip(critic, torch.autograd.grad(alone, critic), strict=True):
        name = next(n for n, p in parameters.items() if p is mine)
        assert torch.allclose(found[name], expected, atol=1e-7), name


def test_critics_judge_what_is_executed():
    loss = FqlLoss(kit.flow(), CFG)
    chunk = torch.tensor([[[3.0], [-0.5]]])
    assert torch.allclose(loss.executed(chunk), torch.tensor([[[1.0], [-0.5]]]))


@pytest.mark.parametrize("deploy_noise", [1.0, 0.5])
def test_the_target_is_what_the_averaged_policy_would_execute(data, deploy_noise):
    """From the noise that it is deployed with, clipped; by the averaged critics."""
    start = changed(kit.flow(), {"deploy_noise": deploy_noise})
    learner = CFG.build(off.setup(None, data, start))
    loss, rows = learner._loss, learner._draw(1)
    with torch.no_grad():
        # what is learned differs from its average, which alone makes the target
        for parameter in loss.parameters():
            parameter.add_(0.1)
        average = {
            f"{prefix}{name}": x.clone()
            for prefix in ("learned.", "critic.")
            for name, x in learner._engine.averages(prefix).items()
        }
        info = loss(rows, Context({}, average, "")).info
        acting, noise = start.with_steps(1), deploy_noise * rows["next_z"]
        obs = {"walk": rows["next_obs/walk"]}
        chunk = acting.decode(acting.encode(obs), noise).clamp(-1, 1)
        critic = {name.removeprefix("critic."): x for name, x in average.items() if name.startswith("critic.")}
        values = functional_call(loss.critic, critic, (loss.flow.encode(obs), chunk)).mean(0)
    wanted = rows["reward"] + rows["discount"] * values
    assert info["target"].item() == pytest.approx(wanted.mean().item(), rel=1e-4)


def test_critics_learn_from_what_was_executed():
    """A demonstration beyond the bounds counts as its clipped action."""
    loss, rows = FqlLoss(kit.flow(), CFG), rows_of_walk(8)
    beyond = rows | {"chunk": rows["chunk"].sign() * 3}
    at_bounds = rows | {"chunk": rows["chunk"].sign()}
    found = [loss(one, Context({}, {}, "")).info["q"].item() for one in (beyond, at_bounds)]
    assert found[0] == pytest.approx(found[1], rel=1e-6)


# learning


@pytest.mark.parametrize("ema", [0.9, 0.0])
def test_the_average_acts_and_is_saved(data, ema):
    learner = replace(CFG, ema=ema).build(off.setup(FLOW, data))
    off.run(learner, 2)
    average = learner._engine.averages("learned.")
    assert all(torch.equal(x, average[name]) for name, x in learner.policy.named_parameters())
    learned = dict(learner._loss.learned.named_parameters())
    same = all(torch.equal(x, learned[name]) for name, x in learner.policy.named_parameters())
    assert same == (ema == 0)


def test_critics_are_handed_on(data, tmp_path):
    start = kit.flow()
    learner = CFG.build(off.setup(None, data, start))
    off.run(learner, 1)
    tree = learner.critic_tree()
    write_critic(tmp_path / "run", tree, 1)
    again = replace(CFG, init_critic=str(tmp_path / "run")).build(off.setup(None, data, start))
    assert all(torch.equal(x, tree["weights"][name]) for name, x in again._loss.critic.named_parameters())
    with raises_naming(ConfigError, "algo.gamma", 0.5, 0.9):
        replace(CFG, init_critic=str(tmp_path / "run"), gamma=0.5).build(off.setup(None, data, start))


def test_the_one_step_policy_becomes_the_flows_map(data):
    """From weights far from the flow's, with hardly any weight on the critics."""
    learner = replace(CFG, alpha=1e4, batch=64).build(off.setup(FLOW, data))
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in learner._loss.learned.net.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=draw))
    first = learner.learn(1)["distill_loss"]
    learner.learn(200)
    assert learner.learn(20)["distill_loss"] < 0.05 * first


def test_it_prefers_the_better_of_the_datas_actions(data):
    """The data's steps are even around 0, and what leads to the right is worth more."""
    cfg = replace(CFG, updates=300, updates_per_iteration=100, batch=64)
    found = {}
    for alpha in (1e4, 0.3):
        learner = replace(cfg, alpha=alpha).build(off.setup(FLOW, data))
        off.run(learner, 3)
        found[alpha] = mean_step(learner.policy), mean_step(learner._loss.flow)
    cloned, flow = found[1e4]
    better, same = found[0.3]
    assert abs(cloned) < 0.3 and abs(flow) < 0.3 and abs(same) < 0.3
    assert better > cloned + 0.3


def test_it_goes_on_online_and_its_policy_is_a_flow_of_one_step(data):
    cfg = replace(CFG, updates=20, env_steps=64, warmup=16)
    learner = cfg.build(off.setup(FLOW, data))
    assert learner.iterations == 2 + 4
    off.run(learner, 2)
    assert (learner.env_steps, learner.updates) == (0, 20)
    log = off.run(learner, 4)
    # nothing is due for the first iteration, which is the warm-up
    assert (learner.env_steps, learner.updates) == (64, 20 + 48)
    assert "rollout_return" in log[-1]
    assert isinstance(learner.policy, FlowPolicy) and learner.policy.denoising_steps == 1
    again = FlowPolicy.from_json(learner.policy.to_json())
    again.load_state_dict(learner.policy.state_dict())
    assert mean_step(again) == mean_step(learner.policy)


def test_it_improves_a_policy_online_without_a_dataset():
    cfg = replace(CFG, updates=0, env_steps=1200, warmup=200, alpha=0.3, utd_ratio=0.5, num_steps=25)
    start = kit.FLOW.build(kit.SPECS, kit.ACTION, kit.TRANSFORMS)
    learner = cfg.build(off.setup(init_policy=start))
    before = mean_step(learner.policy)
    off.run(learner, learner.iterations)
    assert mean_step(learner.policy) > before + 0.3


@pytest.mark.parametrize("at", [1, 4])
def test_it_resumes_exactly(data, at):
    cfg = replace(CFG, updates=20, env_steps=96, utd_ratio=0.3, warmup=16)
    learner = cfg.build(off.setup(FLOW, data))
    off.run(learner, at)
    state = kit.snapshot(learner.state())
    expected = off.run(learner, 2)
    policy = policy_from_tree(policy_tree(learner.policy), "checkpoint")
    made = off.setup(init_policy=policy, dataset=data)._replace(resumed=True)
    resumed = cfg.build(made)
    resumed.load(state)
    assert off.run(resumed, 2) == expected
    assert kit.same(kit.snapshot(resumed.state()), kit.snapshot(learner.state()))


def test_random_numbers_are_the_losss_own():
    loss = FqlLoss(kit.flow(), CFG)
    drawn = loss.draw(DrawShape(2, 8, 2, 1), torch.Generator().manual_seed(0))
    assert {name: tuple(x.shape) for name, x in drawn.items()} == {
        **dict.fromkeys(("noise", "z", "next_z"), (16, 2, 1)),
        "t": (16,),
    }
    assert not torch.equal(drawn["noise"], drawn["z"]) and drawn["t"].min() >= 0 and drawn["t"].max() < 1


def test_what_cannot_work_is_refused(data):
    with pytest.raises(ConfigError, match="dataset is not given: expected recorded episodes"):
        CFG.build(off.setup(FLOW))
    with pytest.raises(ConfigError, match=r"algo\.updates is 20 and algo\.env_steps 0 without a dataset"):
        replace(CFG, updates=20).build(off.setup(init_policy=kit.flow()))
    with pytest.raises(CapabilityError, match="DiffusionPolicy is not a FlowPolicy"):
        CFG.build(off.setup(kit.DIFFUSION, data))
    with raises_naming(ConfigError, "policy.denoising_steps", 1, 2):
        CFG.build(off.setup(replace(FLOW, denoising_steps=1), data))
    for field, value, expected in (
        ("alpha", 0.0, "above 0"),
        ("flow_steps", 1, "2 or more"),
        ("online_share", 1.0, "above 0 and below 1"),
        ("target", "median", "known: .*mean"),
        ("updates", 0, "1 or more"),
        ("tau", 0.0, "above 0, at most 1"),
        ("ema", 1.0, "0 or more and below 1"),
    ):
        with pytest.raises(ConfigError, match=f"{field} .*{expected}"):
            replace(CFG, **{field: value}).build(off.setup(FLOW, data))


def test_the_memory_estimate_knows_of_the_second_network():
    policy = kit.flow()
    assert FqlCfg().beside(policy) == [policy]
