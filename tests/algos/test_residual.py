"""DICE-RL: the regularizer's mask and the loss by hand, the target, and a residual that finds a known optimum."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.func import functional_call

import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl.algos.residual import ResidualLoss, held, residual_loss
from robotrl.engine.engine import Context
from robotrl.errors import CapabilityError, ConfigError
from robotrl.policies.residual import ResidualPolicy, ResidualPolicyCfg
from robotrl.run.policy_checkpoint import policy_from_tree, policy_tree
from tests.kits.refusals import raises_naming

CFG = off.RESIDUAL


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return off.write_random_walks(tmp_path_factory.mktemp("residual") / "data", episodes=60)


def setup(data: Path | None = None, policy: Any = None) -> Any:
    return off.setup(None, data, kit.flow() if policy is None else policy)


def average_of(learner: Any) -> dict[str, torch.Tensor]:
    return {f"learned.{name}": x.clone() for name, x in learner._engine.averages("learned.").items()}


def test_the_mask_by_hand() -> None:
    """Better and underestimated by more than the slack, better but not by more, and underestimated but worse."""
    value = torch.tensor([[2.0, 0.5], [2.0, 2.0], [0.0, 1.0]])
    base = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    mask = held(value, base, torch.tensor([0.6, 0.5, 3.0]), 0.5)
    assert mask.tolist() == [[0.0, 1.0], [1.0, 1.0], [1.0, 1.0]]


def test_the_loss_by_hand() -> None:
    """Three states, two noises; the third state is a demonstration's, which only the regularizer counts."""
    value = torch.tensor([[2.0, -4.0], [1.0, 1.0], [50.0, 50.0]], requires_grad=True)
    change = torch.tensor([[0.5, 0.1], [0.2, 0.0], [0.3, 0.1]]).view(3, 2, 1, 1).requires_grad_()
    mask = torch.tensor([[0.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    loss = residual_loss(value, change, mask, torch.tensor([1.0, 1.0, 0.0]), penalty=10.0)
    # mean Q is (-1 + 1) / 2, mean |Q| (3 + 1) / 2; squares without the first, over six
    assert loss.item() == pytest.approx(10 * (0.01 + 0.04 + 0.09 + 0.01) / 6 - 0 / 2)
    slope, pull = torch.autograd.grad(loss, (value, change))
    # 1 / (2 noises x 2 rows x 2)
    assert torch.allclose(slope, torch.tensor([[-0.125, -0.125], [-0.125, -0.125], [0.0, 0.0]]))
    assert pull.flatten().tolist() == pytest.approx([0, 10 * 0.2 / 6, 10 * 0.4 / 6, 0, 10 * 0.6 / 6, 10 * 0.2 / 6])
    none = residual_loss(value, change, mask, torch.zeros(3), penalty=10.0)
    assert none.item() == pytest.approx(10 * 0.15 / 6)


def test_the_target_is_the_value_of_samples_of_the_averaged_policy(data: Path) -> None:
    found = {}
    for target in ("mean", "best"):
        learner = replace(CFG, target=target).build(setup(data))
        loss, rows = learner._loss, learner._draw(1)
        with torch.no_grad():
            loss.learned.residual.layers[-1].weight.fill_(0.1)
            average = average_of(learner)
            for name in average:
                # the averages, which alone make the target, differ from what is learned
                average[name] += 0.05
            info = loss(rows, Context({}, average, "")).info
            averaged = ResidualPolicyCfg(**vars(loss.learned.cfg)).build(kit.flow())
            averaged.load_state_dict({k.removeprefix("learned."): x for k, x in average.items()}, strict=False)
            ctx, values = averaged.encode({"walk": rows["next_obs/walk"]}), []
            for k in range(CFG.target_noises):
                chunk = averaged.corrected(ctx, rows["next_noise"][:, k]).chunk
                values.append(averaged.critic(ctx, chunk).amin(0))
        next_value = torch.stack(values).mean(0) if target == "mean" else torch.stack(values).amax(0)
        wanted = rows["reward"] + rows["discount"] * next_value
        assert info["target"].item() == pytest.approx(wanted.mean().item(), rel=1e-4)
        found[target] = info["target"].item()
    assert found["best"] > found["mean"]


class Peak(torch.nn.Module):
    """Critics of value -|a - 0.6|^2, whatever the state."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = torch.nn.Parameter(torch.zeros(()))

    def forward(self, ctx: torch.Tensor, chunk: torch.Tensor) -> torch.Tensor:
        value = self.offset - (chunk - 0.6).square().sum((1, 2))
        return value.expand(2, -1)


@pytest.mark.parametrize("base", [kit.flow, kit.gaussian])
def test_it_finds_the_optimum_of_known_critics(base: Any) -> None:
    cfg = replace(CFG, penalty=0.02, noises=2)
    policy = ResidualPolicyCfg(
        candidates=1, hidden=(32, 32), critic_hidden=(8,), scale=2.0, residual_input="chunk"
    ).build(base())
    policy.critic = Peak()
    loss = ResidualLoss(policy, cfg)
    before = {name: x.clone() for name, x in policy.base.state_dict().items()}
    adam = torch.optim.Adam(policy.residual.parameters(), 1e-2)
    draw = torch.Generator().manual_seed(0)
    shape = policy._sampler.noise_shape

    def rows(counts: float) -> dict[str, torch.Tensor]:
        obs = torch.randn((32, 2), generator=draw)
        noises = {name: torch.randn((32, 2, *shape), generator=draw) for name in ("noise", "next_noise")}
        zeros = torch.zeros(32)
        return {"obs/walk": obs, "next_obs/walk": obs, "chunk": torch.zeros(32, *shape), **noises} | {
            "reward": zeros,
            "discount": zeros,
            "actor_rows": zeros + counts,
        }

    def train(counts: float, updates: int) -> float:
        for _ in range(updates):
            adam.zero_grad()
            out = loss(rows(counts), Context({}, {}, ""))
            out.loss.backward()
            adam.step()
        with torch.no_grad():
            obs, noise = {"walk": torch.randn((256, 2), generator=draw)}, torch.randn((256, *shape), generator=draw)
            return float((policy.sampled(policy.encode(obs), noise) - 0.6).abs().mean())

    # of demonstrations alone nothing is climbed, and 0 stays 0
    start = train(0.0, 5)
    assert not policy.residual.layers[-1].weight.any() and start > 0.3
    assert train(1.0, 100) < 0.1 * start
    assert all(torch.equal(x, before[name]) for name, x in policy.base.state_dict().items())


def test_offline_only_the_critics_learn_and_online_the_residual(data: Path) -> None:
    learner = CFG.build(setup(data))
    obs, base = {"walk": torch.zeros(3, 2)}, kit.flow()
    off.run(learner, 2)
    assert not any(x.any() for x in learner.policy.residual.layers[-1].parameters())
    assert learner.online_share() == 0.5
    scalars = off.run(learner, 6)[-1]
    assert learner.policy.residual.layers[-1].weight.any()
    assert {"residual", "gain", "let_go", "critic_loss"} <= scalars.keys()
    assert all(torch.equal(x, y) for x, y in zip(learner.policy.base.parameters(), base.parameters(), strict=True))
    # 16 updates on, a tenth is left
    assert learner.updates - CFG.updates >= CFG.demo_decay and learner.online_share() == pytest.approx(0.9)
    counts = learner._draw(1)["actor_rows"]
    assert counts.sum() == round(0.9 * CFG.batch) and not counts[: CFG.batch - int(counts.sum())].any()
    average = average_of(learner)
    trained = {n: x for n, x in learner.policy.named_parameters() if not n.startswith("base.")}
    assert all(torch.equal(x, average[f"learned.{name}"]) for name, x in trained.items())
    again = policy_from_tree(policy_tree(learner.policy), "checkpoint")
    assert isinstance(again, ResidualPolicy)
    act = [one.act(obs, None, torch.Generator().manual_seed(0)).chunk for one in (learner.policy, again)]
    assert torch.equal(*act)
    tree = learner.critic_tree()
    assert torch.equal(tree["weights"]["layers.0.weight"], average["learned.critic.layers.0.weight"])
    value = functional_call(learner.policy.critic, tree["weights"], (learner.policy.encode(obs), torch.zeros(3, 2, 1)))
    assert value.shape == (CFG.num_critics, 3)


def test_no_share_for_the_demonstrations_drops_them(data: Path) -> None:
    cfg = replace(CFG, updates=0, demo_share=0.0, demo_share_end=0.0)
    learner = cfg.build(setup(data))
    off.run(learner, 3)
    assert bool(learner._draw(1)["actor_rows"].all())
    alone = replace(cfg, demo_share=0.5).build(setup())
    off.run(alone, 3)
    assert bool(alone._draw(1)["actor_rows"].all())


def test_it_goes_right_where_that_is_worth_more(data: Path) -> None:
    cfg = replace(CFG, updates=80, updates_per_iteration=40, env_steps=0, actor_rows="all", penalty=0.1, candidates=1)
    cfg = replace(cfg, noises=2, lr=1e-2, critic_lr=1e-2, tau=0.1)
    learner = cfg.build(setup(data))
    off.run(learner, 2)
    obs = {"walk": torch.tensor([[0.0, 1.0]]).expand(256, -1)}

    def mean_step(policy: Any) -> float:
        with torch.no_grad():
            return float(policy.act(obs, None, torch.Generator().manual_seed(0)).chunk[:, 0].mean())

    assert mean_step(learner.policy) > mean_step(learner.policy.base) + 0.3


def test_what_cannot_work_is_refused(data: Path) -> None:
    with raises_naming(ConfigError, "init_from"):
        CFG.build(off.setup(kit.FLOW, data))
    with pytest.raises(CapabilityError, match="BetaPolicy"):
        CFG.build(setup(data, kit.beta()))
    run = CFG.build(setup(data))
    with raises_naming(ConfigError, "init_from"):
        replace(CFG, scale=0.5).build(setup(data, run.policy))
    again = policy_from_tree(policy_tree(run.policy), "checkpoint")
    assert CFG.build(setup(data, again)).policy.cfg == run.policy.cfg
    for field, value, expected in (
        ("noises", 0, 1),
        ("demo_share", 1.0, 0),
        ("demo_share_end", -0.1, 0),
        ("scale", 0.0, 0),
        ("penalty", -1.0, 0),
        ("target", "bets", "best"),
        ("actor_rows", "everything", "all"),
        ("residual_input", "nois", "noise"),
        ("reduction", "most", "mean"),
    ):
        with raises_naming(ConfigError, f"algo.{field}", value, expected):
            replace(CFG, **{field: value}).check()
