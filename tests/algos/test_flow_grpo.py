"""Flow-GRPO: densities and weights by hand, draws that last, first ratios, learning, resume, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tests.algos.test_grpo as grpo
import tests.kits.learner_kit as kit
import tests.policies.vla.test_flow as flows
from robotrl.algos.flow_grpo import ChainActing, FlowGrpoCfg
from robotrl.algos.grpo import GrpoLearner
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.errors import CapabilityError, ConfigError
from robotrl.fn import chain
from robotrl.learners.learner import Setup
from robotrl.policies.vla.flow import FlowVlaCfg
from robotrl.rollout.groups import Trajectories
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import policy_tree
from robotrl.training import resume, train
from tests.training.test_resume import StopAt, assert_same_end

CFG = FlowGrpoCfg(iterations=2, group_size=4, groups=2, tries=2, minibatch=16)
ENDS = [True, False, False, False, False, False, True, True]
KERNEL = chain.flow_sde(0.5)


def learner(cfg: FlowGrpoCfg = CFG, network: Any = "smolvla", **changes: Any) -> GrpoLearner:
    return cfg.build(Setup(grpo.tabletop, None, flows.policy_on(network, **changes), None, seed=0))


# arithmetic


def test_the_density_of_a_step_is_the_mean_over_what_was_carried_out() -> None:
    """By hand, with torch's own normal distribution; of the second decision's chunk one action was carried out."""
    policy, obs = flows.policy_on("smolvla"), flows.observed()
    ctx = policy.encode(obs)[:2]
    noise = torch.randn(2, *policy.noise_shape, generator=torch.Generator().manual_seed(0))
    points = chain.sample(policy, ctx, KERNEL, noise, torch.Generator().manual_seed(1)).x.detach()
    valid = torch.tensor([[True, True], [True, False]])
    rows = {"chain": points, "valid": valid}
    found = ChainActing(KERNEL, 1.0).likelihood(policy, {key: x[:2] for key, x in obs.items()}, rows)
    assert found.log_prob.shape == (2, 3) and found.entropy is None
    for k, t in enumerate(policy.times[:-1]):
        dt = policy.times[k + 1] - t
        law = KERNEL(policy, ctx, points[:, k], torch.full((2,), t), torch.full((2,), dt))
        assert law.std is not None
        each = torch.distributions.Normal(law.mean, law.std).log_prob(points[:, k + 1])
        assert torch.allclose(found.log_prob[0, k], each[0].mean(), atol=1e-5)
        assert torch.allclose(found.log_prob[1, k], each[1, :1].mean(), atol=1e-5)


def test_weights_make_the_mean_over_episodes_of_their_control_steps() -> None:
    """Each counts with what its decision's denoising steps say in the mean."""
    generator = torch.Generator().manual_seed(0)
    episode = torch.tensor([0, 1, 0])
    valid = torch.tensor([[1, 1], [1, 1], [1, 0]]).bool()
    each = torch.rand((3, 4), generator=generator)
    weight = ChainActing(KERNEL, 1.0).weights(SimpleNamespace(denoising_steps=4), valid, episode, 2)
    found = (weight * each).sum(dim=1).mean()
    steps = each.mean(dim=1)
    assert found.item() == pytest.approx(((2 * steps[0] + steps[2]) / 3 + steps[1]).item() / 2, rel=1e-5)


# draws


def scores_of(made: GrpoLearner) -> Tensor:
    """(8 episodes, 20 steps, 4, 5) the numbers that chains of ten decisions were drawn from, found from points."""
    found = made._collector.episodes()
    policy, points = made.model, found.record["chain"]
    ctx, drawn = policy.encode(made.seen(found)), [points[:, 0]]
    for k, t in enumerate(policy.times[:-1]):
        dt = policy.times[k + 1] - t
        law = KERNEL(policy, ctx, points[:, k], torch.full((len(ctx),), t), torch.full((len(ctx),), dt))
        assert law.std is not None
        drawn.append((points[:, k + 1] - law.mean) / law.std)
    return torch.stack(drawn, dim=2).detach().unflatten(0, (-1, 8)).transpose(0, 1).flatten(1, 2)


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_draws_last_as_long_as_they_are_told_to(correlation: float) -> None:
    """Where chains begin, and each of their steps, from one control step to the next, within chunks and across."""
    made = learner(replace(CFG, correlation=correlation))
    many = list[Tensor]()
    for _ in range(6):
        many.append(scores_of(made))
    scores = torch.cat(many)
    assert scores.shape[1:] == (20, 4, 5) and scores.std() == pytest.approx(1.0, abs=0.05)
    for k in range(4):
        for first in (0, 1):
            pair = torch.stack([scores[:, first:-1:2, k].flatten(), scores[:, first + 1 :: 2, k].flatten()])
            assert torch.corrcoef(pair)[0, 1] == pytest.approx(correlation, abs=0.08)
    # the steps of a chain have nothing to do with each other
    assert torch.corrcoef(scores.movedim(2, 0).flatten(1)).fill_diagonal_(0).abs().max() < 0.12


def test_chains_may_begin_with_less_noise() -> None:
    begun = [learner(replace(CFG, start_noise=share))._collector.episodes() for share in (1.0, 0.5, 0.0)]
    whole, half, none = (found.record["chain"][:8, 0] for found in begun)
    assert torch.allclose(half, 0.5 * whole) and not none.any()
    assert not torch.equal(begun[2].record["chain"][0], begun[2].record["chain"][1])


# learning


@pytest.mark.parametrize("changes", [{}, {"correlation": 0.9}, {"start_noise": 0.0}])
@pytest.mark.parametrize("network", ["smolvla", "pi0"])
def test_the_first_ratio_is_one_and_what_won_gets_likelier(
    network: str, changes: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = learner(replace(CFG, minibatch=512, lr=1e-3, warmup=0, **changes), network)
    seen = grpo.rigged(monkeypatch, made, ENDS)
    before = {key: value.clone() for key, value in made.policy.state_dict().items()}
    scalars = made.iterate()
    assert scalars["ratio_error"] < 1e-5 and scalars["groups_kept"] == 2 and "entropy" not in scalars
    found = seen[0]
    record = made.acting.record(found)
    now = made._log_prob(made.seen(found), record)
    made.policy.load_state_dict(before)
    gain = (now - made._log_prob(made.seen(found), record)).mean(dim=1)
    won = found.success[found.episode]
    assert gain[won].mean() > gain[~won].mean()


def test_it_learns_what_is_rewarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worth what the first element of its actions is in the mean: from about nothing to a third or more."""
    cfg = replace(CFG, tries=1, minibatch=32, lr=3e-3, progress="return", keep_by="reward", warmup=0)
    made = learner(replace(cfg, clip_low=0.05, clip_high=0.05))
    collect, means = made._collector.collect, list[float]()

    def told(decide: Any, starts: Any) -> Trajectories:
        found = collect(decide, starts)
        first = found.record["chain"][:, -1, :, 0].mean(dim=1)
        returned = torch.stack([first[found.episode == k].mean() for k in range(8)])
        means.append(float(returned.mean()))
        return found._replace(returned=returned)

    monkeypatch.setattr(made._collector, "collect", told)
    for _ in range(25):
        made.iterate()
    assert abs(np.mean(means[:2])) < 0.3 and np.mean(means[-4:]) > np.mean(means[:2]) + 0.35


def test_a_chunk_that_is_longer_than_what_is_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of pretrained policies: what is beyond has no part in a ratio, and series go on from what was carried out."""
    policy = flows.longer()
    made = replace(CFG, correlation=0.9).build(Setup(grpo.tabletop, None, policy, None, seed=0))
    seen = grpo.rigged(monkeypatch, made, ENDS)
    assert made.iterate()["ratio_error"] < 1e-5
    assert seen[0].record["chain"].shape[1:] == (4, 4, 8) and seen[0].valid.shape[1:] == (2,)


def saved(path: Path) -> Path:
    run = Run.create(path, {}, seed=0, command=[])
    run.save({"policy": policy_tree(flows.policy_on("smolvla"))}, step=0)
    run.close()
    return path


def test_a_stopped_run_ends_the_same(tmp_path: Path) -> None:
    options = tuple(f"{key}={value}" for key, value in {**grpo.OPTIONS, "reward": "shaped"}.items())
    cfg = TrainCfg(
        SimCfg("mujoco/tabletop", 8, options),
        replace(CFG, iterations=4, progress="return", keep_by="reward", correlation=0.9, ema=0.9, muon=2.0),
        FlowVlaCfg(),
        init_from=str(saved(tmp_path / "clone")),
        evaluation=EvalCfg(every=0, episodes=4, num_envs=4, animation=0),
        checkpoint_every=1,
    )
    train(cfg, tmp_path / "whole")
    train(cfg, tmp_path / "cut", [StopAt(2)])
    resume(tmp_path / "cut")
    assert_same_end(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: CFG.build(Setup(grpo.tabletop, None, None, None, seed=0)),
            ConfigError,
            "Flow-GRPO fine-tunes a policy that flows",
        ),
        (
            lambda: CFG.build(Setup(grpo.tabletop, None, grpo.policy_on(grpo.tabletop(1)), None, seed=0)),
            CapabilityError,
            "policy TokenVlaPolicy lacks HasChain: Flow-GRPO needs a flow",
        ),
        (
            lambda: grpo.CFG.build(Setup(grpo.tabletop, None, kit.flow(), None, seed=0)),
            CapabilityError,
            "policy FlowPolicy lacks HasTokens: GRPO needs",
        ),
        (lambda: learner(replace(CFG, scale=0.0)), ConfigError, "algo.scale is 0.0"),
        (lambda: learner(replace(CFG, start_noise=1.5)), ConfigError, "algo.start_noise is 1.5"),
        (lambda: learner(replace(CFG, group_size=3)), ConfigError, "algo.group_size is 3: expected whole groups"),
    ],
)
def test_what_is_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
