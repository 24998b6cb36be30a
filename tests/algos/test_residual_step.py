"""ResFiT: n-step returns and their next action by hand, the replay's columns, and a residual that finds an optimum."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl.algos.bc import BcCfg
from robotrl.algos.residual_forms.per_step import BASE, BOTH, CRITIC, NEXT_BASE, PerStepCfg, explored, known_or_first
from robotrl.config import ActorCfg
from robotrl.datasets.writer import DatasetWriter
from robotrl.engine.engine import Context
from robotrl.errors import CapabilityError, ConfigError
from robotrl.learners.actor.workers import WorkerReplayCollector
from robotrl.learners.off_policy import PolicyBuilder
from robotrl.policies.step_residual import StepResidualPolicy
from robotrl.rollout.compatibility import check_memory
from tests.kits.refusals import raises_naming
from tests.kits.walk_sim import Walk

CFG = off.RESIDUAL_STEP
ONLINE = replace(CFG, updates=0, warmup=24, demo_share=0.0, demo_share_end=0.0)


def setup(data: Path | None = None, policy: Any = None) -> Any:
    return off.setup(None, data, kit.flow() if policy is None else policy)


def per_step(cfg: Any = CFG, **changes: Any) -> Any:
    return replace(cfg, per_step=replace(cfg.per_step, **changes))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return off.write_random_walks(tmp_path_factory.mktemp("residual-step") / "data", episodes=60)


# by hand


def test_an_unknown_action_is_the_first_of_a_new_chunk() -> None:
    held, first = torch.tensor([[0.1, 0.2], [torch.nan, torch.nan]]), torch.tensor([[0.5, 0.6], [0.7, 0.8]])
    assert torch.equal(known_or_first(held, first), torch.tensor([[0.1, 0.2], [0.7, 0.8]]))


def test_noise_keeps_the_residual_within_its_scale() -> None:
    change, noise = torch.tensor([[0.0, 0.08, -0.1]]), torch.tensor([[-1.0, 2.0, -1.0]])
    assert explored(change, noise, 0.05, 0.1).tolist()[0] == pytest.approx([-0.05, 0.1, -0.1])


def test_returns_go_over_n_env_steps_and_end_with_the_episode(tmp_path: Path) -> None:
    """One episode of five steps with rewards 1 to 5, whose end is a success; gamma 0.5 and n = 3."""
    with DatasetWriter(
        tmp_path / "data", fps=10, observation_spec=kit.SPECS, action_spec=kit.ACTION, provenance={}
    ) as writer:
        walk = np.array([[0.3 * t, t] for t in range(5)], np.float32)
        rewards = np.arange(1, 6, dtype=np.float32)
        actions = np.linspace(-0.5, 0.5, 5, dtype=np.float32)[:, None]
        writer.add_episode({"walk": walk}, actions, rewards, success=True, truncated=False, task="walk")
        path = writer.finish()
    learner = replace(CFG, gamma=0.5, env_steps=0).build(setup(path))
    rows = learner._draw(8)
    by_hand = {
        0: (1 + 0.5 * 2 + 0.25 * 3, 0.125, 3),
        1: (2 + 0.5 * 3 + 0.25 * 4, 0.125, 4),
        2: (3 + 0.5 * 4 + 0.25 * 5, 0.0, None),
        3: (4 + 0.5 * 5, 0.0, None),
        4: (5, 0.0, None),
    }
    seen = set()
    for start, reward, discount, chunk, after in zip(
        rows["obs/walk"][:, 1].tolist(),
        rows["reward"].tolist(),
        rows["discount"].tolist(),
        rows["chunk"],
        rows["next_obs/walk"][:, 1].tolist(),
        strict=True,
    ):
        value, left, end = by_hand[int(start)]
        assert (reward, discount) == pytest.approx((value, left))
        assert end is None or after == end
        assert float(chunk[0]) == pytest.approx(float(actions[int(start), 0]))
        seen.add(int(start))
    assert seen == set(by_hand)
    # of a demonstration no action of the frozen policy is known
    assert rows["base"].isnan().all() and rows["next_base"].isnan().all()


def test_the_target_is_the_value_of_the_averaged_residual_s_next_action(data: Path) -> None:
    learner = CFG.build(setup(data))
    loss, rows = learner._loss, learner._draw(1)
    torch.nn.init.normal_(loss.learned.residual.net.layers[-1].weight)
    # half of the rows hold an action, far from what the frozen policy would begin with
    rows["next_base"][::2] = 0.95
    average = {name: x.clone() + 0.02 for name, x in learner._engine.averages("").items()}
    with torch.no_grad():
        info = loss(rows, Context({}, average, CRITIC)).info
        other, critic = copy.deepcopy(loss.learned), copy.deepcopy(loss.critic)
        for module, prefix in ((other.residual, "learned.residual."), (critic, "critic.")):
            module.load_state_dict({k.removeprefix(prefix): x for k, x in average.items() if k.startswith(prefix)})
        obs = {"walk": rows["next_obs/walk"]}
        ctx, begun = other.encode(obs), other.first_actions(obs, rows["next_noise"])[:, 0]
        base = torch.where(torch.arange(32)[:, None] % 2 == 0, torch.full_like(begun, 0.95), begun)
        change = (other.residual(ctx, base) + 0.05 * rows["smoothing"]).clamp(-0.3, 0.3)
        # clipped before it is valued, as the sim would execute it
        action = (base + change).clamp(-1, 1)
        assert bool((base + change > 1).any())
        wanted = rows["reward"] + rows["discount"] * critic(ctx, action[:, None]).amin(0)
        value = loss.critic(loss.learned.encode({"walk": rows["obs/walk"]}), rows["chunk"][:, :1])
    assert info["target"].item() == pytest.approx(wanted.mean().item(), rel=1e-5)
    assert info["critic_loss"].item() == pytest.approx(0.5 * (value - wanted).square().mean(1).sum().item(), rel=1e-5)
    assert "actor_loss" not in info


def test_the_residual_is_updated_after_the_critics_and_every_other_time(data: Path) -> None:
    learner = per_step(critic_updates=3, actor_every=2).build(setup(data))
    assert [learner._climbs(n) for n in (0, 3, 4, 5, 6, 7, 10)] == [0, 0, 0, 1, 1, 2, 3]

    def residual() -> Tensor:
        return learner.policy.residual.net.layers[-1].weight.clone()

    scalars = learner.learn(4)
    assert not residual().any() and "actor_loss" not in scalars and learner.updates == 4
    scalars = learner.learn(3)
    assert residual().any() and {"actor_loss", "gain", "residual"} <= scalars.keys()


# the replay


def test_each_step_has_the_action_that_was_held_and_the_one_that_is_next() -> None:
    learner = ONLINE.build(setup())
    off.run(learner, 5)
    replay = learner.experience.memory.replay
    index = replay.indices(1)
    steps = replay.view(index, 1, 1.0)
    row_of = {int(start): row for row, start in enumerate(steps.starts)}
    base, after = steps.extras[BASE], steps.extras[NEXT_BASE][:, 0]
    action = learner._unit(steps.chunk)[:, 0]
    assert not base.isnan().any()
    assert float((action - base.clamp(-1, 1)).abs().max()) <= CFG.per_step.scale + 1e-6
    assert float((action - base).abs().max()) > 0.01, "nothing explores"
    follows = new = 0
    ended = steps.terminated | steps.truncated
    for start, row in row_of.items():
        if (following := row_of.get(start + off.ENVS)) is None:
            continue
        if ended[row] or after[row].isnan():
            # the next chunk begins, of which another action is left
            new += 1
            assert not after[following].isnan()
        else:
            follows += 1
            assert torch.equal(base[following], after[row]) and after[following].isnan()
    assert follows > 10 and new > 10


class Peak(torch.nn.Module):
    """Critics of value -|a - x|^2, x the position that the step's own observation says."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = torch.nn.Parameter(torch.zeros(()))

    def forward(self, ctx: Tensor, chunk: Tensor) -> Tensor:
        return (self.offset - (chunk[:, 0] - ctx[:, :1]).square().sum(1)).expand(2, -1)


def test_it_finds_the_optimum_of_known_critics_in_each_step() -> None:
    cfg = per_step(scale=2.0, noise=0.0, critic_updates=0)
    learner = replace(cfg, env_steps=96, updates=0).build(setup())
    loss = learner._loss
    loss.critic = Peak()
    adam, draw = torch.optim.Adam(loss.learned.residual.parameters(), 1e-2), torch.Generator().manual_seed(0)
    before = {name: x.clone() for name, x in loss.learned.base.state_dict().items()}
    average = {f"learned.residual.{name}": x for name, x in loss.policy.residual.named_parameters()}
    average["critic.offset"] = torch.zeros(())
    for _ in range(150):
        obs, base = torch.rand((32, 2), generator=draw) - 0.5, 2 * torch.rand((32, 1), generator=draw) - 1
        zeros = torch.zeros(32)
        rows = {"obs/walk": obs, "next_obs/walk": obs, "chunk": torch.zeros(32, 3, 1), "base": base}
        rows |= {"next_base": base, "smoothing": torch.zeros(32, 1), "reward": zeros, "discount": zeros}
        rows |= {name: torch.randn((32, 2, 1), generator=draw) for name in ("noise", "next_noise")}
        adam.zero_grad()
        loss(rows, Context({}, average, BOTH)).loss.backward()
        adam.step()
    policy, state = loss.learned, None
    with torch.no_grad():
        # the frozen policy's chunk is of the first observation, the best action of the present one
        for x in (0.4, -0.3, 0.1):
            chunk, state = policy.act({"walk": torch.tensor([[x, 0.0]]).expand(32, 2)}, state, draw)
            assert float((chunk[:, 0, 0] - x).abs().mean()) < 0.1
    assert all(torch.equal(x, before[name]) for name, x in policy.base.state_dict().items())


def test_it_goes_on_from_its_own_policy_and_from_an_actor_process(data: Path) -> None:
    run = CFG.build(setup(data))
    assert CFG.build(setup(data, copy.deepcopy(run.policy))).policy.cfg == run.policy.cfg
    with raises_naming(ConfigError, "init_from", "scale"):
        per_step(scale=0.2).build(setup(data, run.policy))
    made = setup()._replace(make_sim=partial(Walk, off.ENVS), actor=ActorCfg(process=True))
    remote = ONLINE.build(made)
    try:
        off.run(remote, 3)
        replay = remote.experience.memory.replay
        steps = replay.view(replay.indices(1), 1, 1.0)
    finally:
        remote.experience.close()
    held = ~steps.extras[NEXT_BASE][:, 0, 0].isnan()
    assert 0.3 < float(held.float().mean()) < 0.7 and not steps.extras[BASE].isnan().any()


# refusals


def test_what_cannot_be_combined_is_refused_by_name() -> None:
    for field, value in (
        ("candidates", 1),
        ("scale", 0.1),
        ("penalty", 0.0),
        ("target", "best"),
        ("actor_rows", "all"),
        ("cal_ql_alpha", 0.1),
        ("init_critic", "runs/critic"),
        ("residual_input", "chunk"),
    ):
        with raises_naming(ConfigError, f"algo.{field}", value, "algo.per_step.on True", "default"):
            replace(CFG, **{field: value}).check()
    with raises_naming(ConfigError, "algo.per_step", "n_step=7", "algo.per_step.on True"):
        replace(off.RESIDUAL, per_step=PerStepCfg(n_step=7)).check()
    for field, value in (("scale", 0.0), ("n_step", 0), ("actor_every", 0), ("critic_updates", -1), ("noise", -0.1)):
        with raises_naming(ConfigError, f"algo.per_step.{field}", value):
            per_step(**{field: value}).check()


def test_no_one_takes_its_policy_for_one_without_a_memory() -> None:
    policy = ONLINE.build(setup()).policy
    assert isinstance(policy, StepResidualPolicy)
    for algo in (BcCfg(), off.RESIDUAL, off.SAC):
        with raises_naming(CapabilityError, "StepResidualPolicy", "memory", nearest="residual"):
            check_memory(algo, policy)
    check_memory(CFG, policy)
    with raises_naming(CapabilityError, "StepResidualPolicy"):
        kit.PPO.build(setup(policy=policy))
    sim = Walk(off.ENVS)
    made = PolicyBuilder(setup(policy=policy), sim, False)
    none: Any = None
    with raises_naming(CapabilityError, "StepResidualPolicy", "cluster none"):
        WorkerReplayCollector(none, sim, made, none, none, none)
    with raises_naming(ConfigError, "init_from"):
        CFG.build(off.setup(kit.FLOW))
