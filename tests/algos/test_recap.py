"""RECAP: what its value aims at, what is positive, what is cloned, its stages, and what it refuses."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl.algos.bc import BcCfg
from robotrl.algos.recap import CLONE, VALUE, CountedEpisodes, RecapCfg
from robotrl.datasets.reader import read_dataset
from robotrl.datasets.writer import DatasetWriter
from robotrl.engine.engine import Context
from robotrl.errors import CapabilityError, ConfigError, DataError
from robotrl.fn.bc_loss import flow_matching_loss
from robotrl.fn.progress.metrics import separation
from robotrl.fn.returns.two_hot import two_hot_loss
from robotrl.labels.sidecar import labels_path, read_label, read_labels
from robotrl.policies.conditioned import ConditionedPolicy
from tests.kits.refusals import raises_naming
from tests.kits.walk_sim import GOAL

CFG = off.RECAP


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return off.write_random_walks(tmp_path_factory.mktemp("recap") / "data", episodes=80)


def write_walk(path: Path, episodes: list[tuple[list[float], bool, bool, dict[str, Any]]]) -> Path:
    """Walks by given steps from 0: steps, success, truncated, and columns of the episodes table."""
    with DatasetWriter(path, fps=10, observation_spec=kit.SPECS, action_spec=kit.ACTION, provenance={}) as writer:
        for steps, success, truncated, extra in episodes:
            x = np.concatenate([[0.0], np.cumsum(steps)[:-1]])
            writer.add_episode(
                {"walk": np.stack([x, np.arange(len(x))], 1).astype(np.float32)},
                np.array(steps, np.float32)[:, None],
                np.zeros(len(x), np.float32),
                success=success,
                truncated=truncated,
                task="walk",
                extra=extra,
            )
        return writer.finish()


def context() -> Context:
    return Context({"updates": torch.zeros(())}, {}, CLONE)


def mean_step(policy: Any) -> float:
    """The first step that a policy takes from the middle of the walk."""
    obs = {"walk": torch.tensor([[0.0, 1.0]]).expand(256, -1)}
    with torch.no_grad():
        return float(policy.act(obs, None, torch.Generator().manual_seed(0)).chunk[:, 0].mean())


@pytest.fixture
def four(tmp_path: Path) -> Path:
    """A success, a failed end and a walk that a time limit cut, of four steps each, and two more of two steps."""
    steps = [0.5] * 4
    return write_walk(
        tmp_path / "four",
        [
            (steps, True, False, {"person_frames": 0}),
            (steps, False, False, {"person_frames": 0}),
            (steps, False, True, {"person_frames": 3}),
            (steps[:2], True, False, {"person_frames": 0}),
            (steps[:2], False, False, {"person_frames": 0}),
        ],
    )


def counted(learner: Any) -> CountedEpisodes:
    return learner._episodes


def test_returns_count_steps_and_are_scaled(four: Path) -> None:
    """The longest episode has 4 steps, so a failed end costs 4, and the worst return is -3 - 4."""
    cfg = replace(CFG, held_out=0.3)
    learner = cfg.build(off.setup(None, four, kit.flow()))
    found = counted(learner)
    assert found.open_end.tolist() == [False, False, True, False, False]
    assert np.allclose(found.rewards[:8] * 7, [-1, -1, -1, 0, -1, -1, -1, -4])
    end = np.array([9.0, 9.0, -0.5, 9.0, 9.0])
    returns = found.returns(end)
    assert np.allclose(returns[:8] * 7, [-3, -2, -1, 0, -7, -6, -5, -4])
    # behind an open end stands the value of its last frame; lower than -1 nothing is
    assert np.allclose(returns[8:12], [-0.5 - 3 / 7, -0.5 - 2 / 7, -0.5 - 1 / 7, -0.5])
    assert found.returns(np.full(5, -1.0))[8:12].tolist() == [-1] * 4
    # the last frame of an open end is not learned from
    assert 11 not in learner._learned.tolist()
    failed = counted(replace(cfg, time_limit="failed", fail_cost=9.0).build(off.setup(None, four, kit.flow())))
    assert not failed.open_end.any() and np.allclose(failed.rewards[8:12] * 12, [-1, -1, -1, -9])


def test_the_best_share_and_corrections_are_positive(four: Path, tmp_path: Path) -> None:
    cfg = replace(CFG, held_out=0.3, positive_share=0.25)
    shown = off.write_random_walks(tmp_path / "shown", episodes=2)
    learner = replace(cfg, demos=str(shown)).build(off.setup(None, four, kit.flow()))
    off.run(learner, 2)
    labels = {name: x.numpy() for name, x in learner._labels.columns.items()}
    assert len(labels["positive"]) == 16 + read_dataset(shown).num_frames
    # frames 8 to 10 are a person's, those from 16 on demonstrations
    own = np.r_[0:8, 11:16]
    assert labels["positive"][8:11].all() and labels["positive"][16:].all()
    best = np.sort(labels["advantage"][own])[-4:]
    assert set(labels["advantage"][own][labels["positive"][own]]) <= set(best)
    assert 1 <= labels["positive"][own].sum() <= 4


def test_the_losses_are_the_stated_ones(data: Path) -> None:
    learner = replace(CFG, drop=0.4).build(off.setup(None, data, kit.flow()))
    off.run(learner, 2)
    loss, rows = learner._loss, learner._value_rows(1)
    value = loss(rows, context()._replace(phase=VALUE))
    obs = {"walk": rows["obs/walk"]}
    wanted = two_hot_loss(loss.value.net(loss.policy.base.encode(obs)), rows["return_to_go"], -1.0, 0.0)
    assert value.loss.item() == pytest.approx(wanted.item(), rel=1e-5) and value.lr[0] is None
    rows = learner._clone_rows(20)
    out = loss(rows, context())
    policy: ConditionedPolicy = loss.policy
    ctx = policy.condition(policy.base.encode({"walk": rows["obs/walk"]}), rows["condition"])
    wanted = flow_matching_loss(policy.base, ctx, rows["chunk"], rows["valid"], rows["drawn/noise"], rows["drawn/t"])
    assert out.loss.item() == pytest.approx(wanted.item(), rel=1e-6) and out.lr[1] is None
    kinds, counts = rows["condition"].unique(dim=0, return_counts=True)
    assert kinds.tolist() == [[0, 0], [0, 1], [1, 0]]
    assert counts[0] / 640 == pytest.approx(0.4, abs=0.06)
    assert counts[2] / counts[1:].sum() == pytest.approx(learner._labels.scalars["labels/positive"], abs=0.08)


@pytest.mark.parametrize("kind", ["flow", "diffusion", "gaussian"])
def test_a_policy_prefers_what_its_better_actions_were(data: Path, kind: str) -> None:
    """Steps to the right reach the goal, those to the left the pit: under the condition it walks to the right."""
    policy = {"flow": kit.flow, "diffusion": kit.diffusion, "gaussian": kit.gaussian}[kind]()
    cfg = replace(CFG, value_updates=90, updates=240, updates_per_iteration=30, lr=3e-3, time_limit="failed")
    learner = cfg.build(off.setup(None, data, policy))
    log = off.run(learner, learner.iterations)
    assert log[-1]["updates"] <= 330 and log[2]["critic/heldout_rank"] > 0.25 and log[2]["critic/heldout_auc"] > 0.6
    better = mean_step(learner.policy)
    assert better > mean_step(learner.policy.base) + 0.1
    assert log[-1]["critic/heldout_rank"] == log[2]["critic/heldout_rank"]


def test_the_value_is_the_one_that_ranked_best_and_learns_no_more_then(data: Path) -> None:
    cfg = replace(CFG, value_updates=100, updates=0, patience=1, value_encoder="own")
    learner = cfg.build(off.setup(None, data, kit.flow()))
    seen: list[dict[str, torch.Tensor]] = []
    log = []
    for _ in range(learner.iterations):
        log += off.run(learner, 1)
        seen.append({name: x.detach().clone() for name, x in learner._loss.value.named_parameters()})
    ranks = [one["critic/heldout_rank"] for one in log]
    assert ranks == sorted(ranks)
    stopped = next((i for i, one in enumerate(log) if "value_loss" not in one), len(log))
    assert stopped < 10 and log[-1]["updates"] == 10 * stopped
    best = seen[stopped - 2]
    assert all(torch.equal(x, best[name]) for name, x in learner._best.weights.items())


@pytest.mark.parametrize("at", [1, 2, 3])
def test_it_resumes_exactly_in_both_stages(data: Path, at: int) -> None:
    cfg = replace(CFG, ema=0.9)
    learner = cfg.build(off.setup(None, data, kit.flow()))
    off.run(learner, at)
    state = kit.snapshot(learner.state())
    expected = off.run(learner, 1)
    resumed = cfg.build(off.setup(None, data, copy.deepcopy(learner.policy))._replace(resumed=True))
    resumed.load(state)
    assert off.run(resumed, 1) == expected
    assert kit.same(kit.snapshot(resumed.state()), kit.snapshot(learner.state()))


def test_a_conditioned_policy_goes_on(data: Path) -> None:
    learner = CFG.build(off.setup(None, data, kit.flow()))
    off.run(learner, learner.iterations)
    again = CFG.build(off.setup(None, data, copy.deepcopy(learner.policy)))
    assert type(again.policy.base) is type(learner.policy.base)
    with pytest.raises(ConfigError, match="is a conditioned policy with"):
        replace(CFG, guidance=2.0).build(off.setup(None, data, learner.policy))


def test_a_value_that_cannot_rank_ends_the_run_before_the_policy_learns(data: Path, four: Path) -> None:
    learner = replace(CFG, least_rank=1.0, value_lr=1e-9).build(off.setup(None, data, kit.flow()))
    off.run(learner, 1)
    with raises_naming(DataError, "algo.least_rank", 1, 16):
        learner.iterate()
    assert not learner._labels.columns
    # one success and one failure are held out: too few to rank
    few = replace(CFG, least_rank=0.5, value_updates=10).build(off.setup(None, four, kit.flow()))
    with pytest.raises(DataError, match="cannot be judged: 2 episodes"):
        few.iterate()


def test_planted_mistakes_are_found_and_not_cloned(tmp_path: Path) -> None:
    """Walks to the goal; in a third of them two steps are undone and made again. The label `keep` finds them."""
    draw, episodes, planted = np.random.default_rng(0), [], []
    for episode in range(60):
        steps = [0.25] * int(GOAL / 0.25)
        bad = [False] * len(steps)
        if episode % 3 == 0:
            at = int(draw.integers(2, 6))
            steps[at:at], bad[at:at] = [-0.25, -0.25, 0.25, 0.25], [True, True, False, False]
        episodes.append((steps, True, False, {}))
        planted += bad
    path = write_walk(tmp_path / "walks", episodes)
    cfg = replace(
        CFG, value_updates=400, updates=0, updates_per_iteration=100, patience=9, keep_delta=0.05, labels="mine"
    )
    learner = cfg.build(off.setup(None, path, kit.flow())._replace(accept_data=True))
    off.run(learner, learner.iterations)
    count = read_dataset(path).num_frames
    found = read_labels(labels_path(path, "mine"), path, count)
    assert set(found.columns) == {"return_to_go", "progress", "advantage", "positive", "keep"}
    assert found.maker["algorithm"] == "recap" and found.maker["settings"]["keep_delta"] == 0.05
    bad, keep = np.array(planted), read_label(labels_path(path, "mine"), "keep", path, count)
    progress = found.columns["progress"]
    ends = np.cumsum([len(one[0]) for one in episodes]) - 1
    later = np.minimum(np.arange(count) + 1, np.repeat(ends, np.diff(np.r_[0, ends + 1])))
    lost = (progress - progress[later]).astype(np.float64)
    assert separation(lost[bad], lost[~bad]) >= 0.9
    assert (~keep)[bad].mean() > 0.6 and (~keep)[~bad].mean() < 0.05

    clone = BcCfg(updates=2, updates_per_iteration=2, batch=8, labels=str(labels_path(path, "mine")))
    plain = replace(clone, labels=None)
    sizes = [
        len(one.build(off.setup(kit.FLOW, path)._replace(accept_data=True))._demonstrated.arrays["chunk"])
        for one in (clone, plain)
    ]
    assert sizes == [int(keep.sum()), count]


def test_what_cannot_work_is_refused(data: Path, tmp_path: Path) -> None:
    with raises_naming(ConfigError, "init_from"):
        CFG.build(off.setup(kit.FLOW, data))
    with raises_naming(ConfigError, "dataset"):
        CFG.build(off.setup(None, None, kit.flow()))
    with pytest.raises(CapabilityError, match="SquashedPolicy cannot be conditioned"):
        CFG.build(off.setup(None, data, off.POLICY.build(kit.SPECS, kit.ACTION, kit.flow().transforms)))
    with pytest.raises(DataError, match=r"there are no labels mine\.parquet"):
        BcCfg(labels="mine.parquet").build(off.setup(kit.FLOW, data))
    for field, value, expected in (
        ("value_updates", 0, 1),
        ("updates", -1, 0),
        ("advantage_steps", 0, 1),
        ("positive_share", 0.0, 0),
        ("held_out", 0.0, 0),
        ("drop", 1.5, 0),
        ("keep_delta", -0.5, 0),
        ("least_rank", 2.0, -1),
        ("patience", 0, 1),
        ("bins", 1, 2),
        ("guidance", -1.0, 0),
        ("fail_cost", 0.0, 0),
        ("time_limit", "late", "failed"),
        ("value_encoder", "mine", "own"),
        ("lr", 0.0, 0),
    ):
        with raises_naming(ConfigError, f"algo.{field}", value if isinstance(value, float | int) else "", expected):
            replace(CFG, **{field: value}).check()
    with raises_naming(ConfigError, "labels", "'a/b'"):
        RecapCfg(labels="a/b").check()
