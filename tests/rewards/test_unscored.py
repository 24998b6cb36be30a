"""Steps without a score teach nothing: they are not sampled, have no advantage, and count in no mean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tests.kits.off_policy_kit as off
import tests.kits.replay_kit as kit
from robotrl.errors import ConfigError
from robotrl.learners.actor.process import Outbox
from robotrl.learners.learner import Setup
from robotrl.learners.normalizers import RewardNormalizer
from robotrl.learners.on_policy import make_batch
from robotrl.replay.buffer import Replay
from robotrl.replay.samplers import Uniform
from robotrl.rewards.means import RewardMeans
from robotrl.rewards.scoring.cfg import ServiceCfg
from robotrl.rollout.collector import Collector, Decision
from robotrl.rollout.groups import GroupCollector
from robotrl.spec import Arrays
from robotrl.spec.late_rewards import MISSING, LateRewards
from tests.kits.late_kit import WEIGHT, NumberCfg, late_sim
from tests.kits.replay_kit import Row, record
from tests.kits.scoring_kit import NAN
from tests.kits.walk_sim import Walk
from tests.learners.test_on_policy import rollout

FEW = ServiceCfg(batch_size=8, queue_frames=8, flush_after_s=0.0, cache_frames=0)
"""A queue with room for few pictures: most steps get no score, ever."""


def late(back: list[int], env: list[int], change: list[float], fresh: list[bool]) -> LateRewards:
    return LateRewards(torch.tensor(back), torch.tensor(env), torch.tensor(change), torch.tensor(fresh))


def missing(numbers: list[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.uint8)


def ahead(obs: Arrays) -> Decision:
    return Decision(torch.full((len(obs["walk"]), 1, 1), 0.1), {})


# replay


@pytest.mark.parametrize("disk", [False, True])
def test_a_step_is_sampled_once_each_of_its_sources_has_scored_it(disk: bool, tmp_path: Path) -> None:
    path = tmp_path / "replay" if disk else None
    replay = kit.make(path, 1, 10)
    for k, lacks in enumerate((0, 2, 0, 1, 0)):
        replay.add(record([Row(k)])._replace(missing=missing([lacks])))
    assert replay.indices(1).tolist() == [0, 2]
    # a chunk of two steps needs both of their rewards
    assert replay.indices(2).tolist() == []
    with pytest.raises(ConfigError, match="replay index 1, horizon 1"):
        replay.view(torch.tensor([1]), 1, 0.5)
    # the newest step is `back` 0; a score that replaces another one is not fresh
    assert replay.add_late(late([1, 3, 3], [0, 0, 0], [1.0, 0.5, 0.25], [True, True, False])) == 0
    assert replay.indices(1).tolist() == [0, 2, 3] and replay.indices(2).tolist() == [2]
    assert replay.add_late(late([3], [0], [0.25], [True])) == 0
    assert replay.indices(1).tolist() == [0, 1, 2, 3]
    assert replay.view(torch.tensor([1, 3]), 1, 0.5).reward.tolist() == [1 / 8 + 1, 3 / 8 + 1]
    if path is not None:
        # the checksums of the rows are those of what they hold now
        replay.close()
        again = Replay.open(path)
        assert again.indices(1).tolist() == [0, 1, 2, 3] and not again.dropped
        again.close()


def test_a_replay_without_a_score_has_nothing_to_sample() -> None:
    replay = kit.make(None, 2, 40)
    assert not replay.has_chunk()
    for k in range(3):
        replay.add(record([Row(k), Row(k)])._replace(missing=missing([1, 1])))
    assert not replay.has_chunk()
    with pytest.raises(ConfigError, match="whose rewards are known"):
        Uniform(replay).sample(4, 1, 0.5, torch.Generator().manual_seed(0))
    replay.add_late(late([1], [1], [0.0], [True]))
    assert replay.has_chunk() and not replay.has_chunk(2)
    drawn = Uniform(replay).sample(4, 1, 0.5, torch.Generator().manual_seed(0))
    assert drawn.starts.tolist() == [3, 3, 3, 3]


def test_few_scored_steps_are_all_sampled_alike() -> None:
    count = 20_000
    replay = kit.make(None, 1, count)
    rows = record([Row(k) for k in range(count)])
    replay.add_run(rows._replace(missing=missing([int(k % 50 != 0) for k in range(count)])))
    drawn = Uniform(replay).sample(8_000, 1, 0.5, torch.Generator().manual_seed(0)).starts
    assert (drawn % 50 == 0).all() and len(drawn) == 8_000
    # the newest step has no observation after it; each of the 400 others is drawn 20 times on average
    seen = torch.bincount(drawn // 50, minlength=400).double()
    assert seen.min() > 3 and seen.max() < 50


def test_of_a_service_without_room_only_what_it_scored_is_learned() -> None:
    sim = late_sim(Walk(20), NumberCfg(scorer={"delay_s": 0.01}, service=FEW))
    replay = Replay.create(None, sim.observation_spec, sim.action_spec, streams=20, capacity=4000)
    made = Collector(sim, 1, 0.9)
    made.reset(0)
    try:
        for _ in range(10):
            made.collect_into(replay, ahead, 10)
        replay.add_late(sim.late_rewards(wait=True))
    finally:
        made.close()
    known = replay.indices()
    reward = replay.view(known, 1, 0.99).reward
    # no picture's number and position add up to the 0 that stands for none, but the very first
    assert 0 < len(known) < 1000 and (reward != 0).sum() >= len(known) - 20
    assert int((replay.ring.fields["reward"][:2000] == 0).sum()) > 500


def test_the_records_of_an_actor_process_take_scores_along() -> None:
    layout = kit.make(None, 2, 10).layout
    box = Outbox(layout)
    for k in range(2):
        box.add(record([Row(k), Row(k)])._replace(missing=missing([1, 1])))
    box.add_late(late([0, 3], [1, 0], [0.5, 0.25], [True, True]))
    records, rest = box.take()
    assert records[1].missing.tolist() == [1, 0] and records[1].reward.tolist() == [1 / 8, 1 / 8 + 0.5]
    # of a record that was sent before: the learner's replay gets it
    assert rest.back.tolist() == [3] and rest.fresh.tolist() == [True]


def test_a_learner_without_any_score_goes_on_and_changes_nothing() -> None:
    cfg = NumberCfg(faults={number: NAN for number in range(2_000)})
    sac = replace(off.SAC, env_steps=8 * 4 * 4, warmup=16, num_steps=4)
    learner = sac.build(Setup(lambda: late_sim(Walk(8), cfg), off.POLICY, None, None, 0))
    before = {name: x.clone() for name, x in learner.policy.state_dict().items()}
    try:
        for _ in range(3):
            scalars = learner.iterate()
            assert scalars["updates"] == 0 and "rollout_return" not in scalars
    finally:
        learner.close()
    changed = [name for name, x in learner.policy.state_dict().items() if not torch.equal(x, before[name])]
    assert not [name for name in changed if "net" in name]


# advantages


def test_an_unknown_reward_is_what_the_critic_expects() -> None:
    """As in `test_targets_worked_by_hand`, with the reward of the first decision, then of the last one, unknown."""

    def batch(scored: list[bool]) -> Any:
        one = rollout(False, True)._replace(scored=torch.tensor([[scored[0]], [scored[1]], [True]]))
        return make_batch(one, lambda obs: obs["x"][:, 0] / 10, gamma=0.5, gae_lambda=1.0, normalized=False)

    # values 1 and 2, then 3 after the time-out; the last decision earns 2 + 0.5 * 3 - 2 = 1.5 more than expected
    assert batch([False, True]).advantage.tolist() == [0.125 * 1.5, 1.5]
    assert batch([True, False]).advantage.tolist() == [1 + 0.125 * 2 - 1, 0.0]
    nothing = batch([False, False])
    assert nothing.advantage.tolist() == [0.0, 0.0] and nothing.value_target.tolist() == [1.0, 2.0]


def test_an_unknown_reward_is_no_part_of_the_scale() -> None:
    """The same scale whatever number stands for it."""
    scales = list[float]()
    for stands in (0.0, 50.0):
        one = rollout(True, False)
        one.reward[0] = stands
        normalizer = RewardNormalizer(1, 0.5)
        normalizer.normalize(one._replace(scored=torch.tensor([[False], [True], [True]])))
        scales.append(normalizer.scale)
    assert scales[0] == scales[1]


def test_a_rollout_without_any_score_changes_no_scale_and_gives_no_advantage() -> None:
    normalizer = RewardNormalizer(1, 0.5)
    one = normalizer.normalize(rollout(True, False)._replace(scored=torch.zeros(3, 1, dtype=torch.bool)))
    assert normalizer.scale == 1.0
    batch = make_batch(one, lambda obs: obs["x"][:, 0] / 10, gamma=0.5, gae_lambda=1.0)
    assert batch.advantage.tolist() == [0.0, 0.0] and batch.value_target.tolist() == [1.0, 2.0]
    # the first known rewards are the first of its statistics
    known, fresh = rollout(False, True), RewardNormalizer(1, 0.5)
    normalizer._running.zero_()
    normalizer.normalize(known)
    fresh.normalize(rollout(False, True))
    assert normalizer.scale == fresh.scale


@pytest.mark.parametrize("horizon", [1, 3])
def test_a_rollout_says_which_rewards_it_knows(horizon: int) -> None:
    faults = {number: NAN for number in range(5, 5 * 24, 7)}
    sim = late_sim(Walk(5), NumberCfg(faults=faults))
    made = Collector(sim, horizon, 0.9)
    made.reset(0)

    def act(obs: Arrays) -> Decision:
        return Decision(torch.full((len(obs["walk"]), horizon, 1), 0.01), {})

    try:
        found = [made.collect(act, 12) for _ in range(2)]
    finally:
        made.close()
    if horizon == 1:
        wrong = np.isin(np.arange(5 * 24).reshape(24, 5), list(faults))
        assert (torch.cat([one.scored for one in found]).numpy() == ~wrong).all()
    for one in found:
        assert one.scored.shape == one.reward.shape and 0 < int(one.scored[one.valid].sum()) < int(one.valid.sum())


# episodes and means


def test_a_step_without_a_score_counts_as_the_mean_of_its_episode() -> None:
    """Groups of one: each episode of the walk has `limit` steps, of which some have no score."""
    whole, holed = (
        GroupCollector(late_sim(Walk(4, limit=6), NumberCfg(faults=faults)), 1, seed=0)
        for faults in ({}, {4 * step + env: NAN for step, env in ((0, 1), (3, 1), (5, 2))})
    )
    try:
        starts = np.array([0, 1, 2, 3])
        decide = lambda obs, rows: Decision(torch.zeros(len(rows), 1, 1), {})  # noqa: E731
        wanted = whole.collect(decide, starts).returned
        found = holed.collect(decide, starts).returned
    finally:
        whole.close()
        holed.close()
    # standing still, a step's reward is its picture's number, 4 t + env, and the position: a line in t
    assert found[[0, 3]].tolist() == pytest.approx(wanted[[0, 3]].tolist())
    line = [WEIGHT * 4 * t for t in range(6)]
    base = [(float(wanted[env]) - sum(line)) / 6 for env in range(4)]
    assert float(found[1]) == pytest.approx(6 * (base[1] + (sum(line) - line[0] - line[3]) / 4), rel=1e-5)
    assert float(found[2]) == pytest.approx(6 * (base[2] + (sum(line) - line[5]) / 5), rel=1e-5)


def test_the_return_of_an_episode_with_an_unscored_step_is_unknown() -> None:
    sim = late_sim(Walk(3, limit=4), NumberCfg(scorer={"delay_s": 0.0}, faults={4: NAN}))
    replay = Replay.create(None, sim.observation_spec, sim.action_spec, streams=3, capacity=300)
    made = Collector(sim, 1, 0.9)
    made.reset(0)
    try:
        # a step at a time, so that scores come while their episodes run
        returns = list[Tensor]()
        for _ in range(12):
            still = lambda obs: Decision(torch.zeros(len(obs["walk"]), 1, 1), {})  # noqa: E731
            out = made.collect_into(replay, still, 1)
            returns.append(out.returns)
            replay.add_late(sim.late_rewards(wait=True))
    finally:
        made.close()
    every = torch.cat(returns)
    assert len(every) == 9 and int(every.isnan().sum()) >= 1


def test_an_age_is_the_mean_over_scored_steps() -> None:
    means = RewardMeans()
    for k in range(10):
        valid = torch.tensor([k == 0, False])
        age = torch.tensor([8 if k == 0 else 0, 0])
        means.add({"reward/x": valid.float(), "reward_valid/x": valid, "reward_age/x": age})
    # one of the 20 steps has a score, which was 8 steps old
    assert means.take() == {"reward/x": 0.05, "reward_valid/x": 0.05, "reward_age/x": pytest.approx(8.0)}
    means.add({"reward_valid/x": torch.tensor([False]), "reward_age/x": torch.tensor([0])})
    assert means.take()["reward_age/x"] == 0.0


def test_a_sim_with_late_rewards_counts_what_is_missing() -> None:
    sim = late_sim(Walk(3), NumberCfg(scorer={"delay_s": 0.05}))
    try:
        sim.reset(seed=0)
        step = sim.step(torch.zeros(3, 1))
        assert step.info[MISSING].tolist() == [1, 1, 1] and step.info[MISSING].dtype == torch.uint8
        assert sim.late_rewards(wait=True).fresh.tolist() == [True, True, True]
    finally:
        sim.close()
