"""Q-chunking: its target and its act are one rule, it clones all data, and it learns online."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.func import functional_call

import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl.engine.engine import Context
from robotrl.errors import CapabilityError, ConfigError
from robotrl.fn.bc_loss import flow_matching_loss
from robotrl.policies.best_of import BestOfPolicy
from robotrl.run.policy_checkpoint import policy_from_tree, policy_tree
from tests.kits.refusals import raises_naming

CFG = off.QC


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return off.write_random_walks(tmp_path_factory.mktemp("qc") / "data", episodes=60)


def average_of(learner: Any) -> dict[str, torch.Tensor]:
    return {f"learned.{name}": x.clone() for name, x in learner._engine.averages("learned.").items()}


def test_the_target_is_the_best_sample_of_the_averaged_policy(data: Path) -> None:
    learner = CFG.build(off.setup(None, data, kit.flow()))
    loss, rows = learner._loss, learner._draw(1)
    with torch.no_grad():
        # the learned networks differ from their averages, which alone make the target
        for parameter in loss.learned.parameters():
            parameter.add_(0.1)
        average = average_of(learner)
        info = loss(rows, Context({}, average, "")).info
        base, critic = ({k.removeprefix(p): x for k, x in average.items() if k.startswith(p)} for p in PREFIXES)
        averaged = kit.flow()
        averaged.load_state_dict(base)
        ctx, values = averaged.encode({"walk": rows["next_obs/walk"]}), []
        for k in range(CFG.target_candidates):
            chunk = averaged.decode(ctx, rows["next_noise"][:, k]).clamp(-1, 1)
            values.append(functional_call(loss.learned.critic, critic, (ctx, chunk)).mean(0))
    wanted = rows["reward"] + rows["discount"] * torch.stack(values).amax(0)
    assert info["target"].item() == pytest.approx(wanted.mean().item(), rel=1e-4)


PREFIXES = ("learned.base.", "learned.critic.")


def test_all_data_is_cloned_and_no_critic_pulls_at_the_clone(data: Path) -> None:
    learner = CFG.build(off.setup(None, data, kit.flow()))
    loss, rows = learner._loss, learner._draw(1)
    whole = loss(rows, Context({}, average_of(learner), ""))
    flow = loss.learned.base
    ctx = flow.encode({"walk": rows["obs/walk"]})
    cloned = flow_matching_loss(flow, ctx, rows["chunk"], rows["valid"], rows["drawn/noise"], rows["drawn/t"])
    mine, wanted = (torch.autograd.grad(x, list(flow.parameters())) for x in (whole.loss, cloned))
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(mine, wanted, strict=True))


def test_what_acts_is_the_average_and_executes_its_best_sample(data: Path) -> None:
    learner = CFG.build(off.setup(None, data, kit.flow()))
    off.run(learner, 2)
    assert isinstance(learner.policy, BestOfPolicy) and learner.policy.cfg.candidates == 4
    average = average_of(learner)
    assert all(torch.equal(x, average[f"learned.{name}"]) for name, x in learner.policy.named_parameters())
    again = policy_from_tree(policy_tree(learner.policy), "checkpoint")
    obs = {"walk": torch.zeros(3, 2)}
    act = [one.act(obs, None, torch.Generator().manual_seed(0)).chunk for one in (learner.policy, again)]
    assert torch.equal(*act)
    tree = learner.critic_tree()
    assert torch.equal(tree["weights"]["layers.0.weight"], average["learned.critic.layers.0.weight"])


def test_it_goes_right_where_that_is_worth_more(data: Path) -> None:
    cfg = replace(CFG, updates=150, updates_per_iteration=75, env_steps=0, candidates=8)
    learner = cfg.build(off.setup(None, data, kit.flow()))
    off.run(learner, 2)
    obs = {"walk": torch.tensor([[0.0, 1.0]]).expand(256, -1)}

    def mean_step(policy: Any) -> float:
        with torch.no_grad():
            return float(policy.act(obs, None, torch.Generator().manual_seed(0)).chunk[:, 0].mean())

    assert mean_step(learner.policy) > mean_step(learner.policy.base) + 0.3


def test_what_cannot_work_is_refused(data: Path) -> None:
    with pytest.raises(CapabilityError, match="BetaPolicy"):
        CFG.build(off.setup(None, data, kit.beta()))
    run = CFG.build(off.setup(None, data, kit.flow()))
    with raises_naming(ConfigError, "init_from"):
        replace(CFG, candidates=8).build(off.setup(None, data, run.policy))
    for field, value, expected in (("candidates", 0, 1), ("online_share", 1.0, 0), ("reduction", "most", "mean")):
        with raises_naming(ConfigError, f"algo.{field}", value, expected):
            replace(CFG, **{field: value}).check()
