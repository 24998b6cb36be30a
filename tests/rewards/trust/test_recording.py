"""Scored rollouts on real sims: what is kept of each step, who acts, and that the actions can be played again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from robotrl.api.live import BareActor
from robotrl.config import WeightedReward
from robotrl.registry import make_sim
from robotrl.rewards.progress import ProgressRewardCfg
from robotrl.rewards.relabel import with_rewards
from robotrl.rewards.rules import ActionRateCfg, AliveCfg
from robotrl.rewards.source import LateScores, RewardSetup, Score, SimTransition, StatelessReward
from robotrl.rewards.trust.recording import (
    SUM,
    TASK,
    MixedActor,
    NamedActor,
    PlayedActions,
    ScoredEpisode,
    score_rollouts,
)
from robotrl.rollout.evaluate import ExpertActor, Turn, at_rest, evaluate


def expert_and_random(sim: Any) -> list[NamedActor]:
    return [
        NamedActor("expert", ExpertActor(sim.make_expert(seed=0))),
        NamedActor("random", BareActor(sim.action_spec, sim.num_envs, "random", 0)),
    ]


def scored(name: str, rewards: list[WeightedReward], episodes: int, **options: Any) -> list[ScoredEpisode]:
    sim: Any = with_rewards(make_sim(name, num_envs=3, seed=0, **options), rewards)
    try:
        return score_rollouts(sim, expert_and_random(sim), list(sim.state_ids("test")[:episodes]), 0)
    finally:
        sim.close()


def test_scores_and_truth_of_an_arm() -> None:
    raw = WeightedReward("progress", 2.0, ProgressRewardCfg(form="raw"))
    found = scored("mujoco/push", [raw, WeightedReward("action-rate", 0.5, ActionRateCfg())], 5)
    assert [one.actor for one in found] == ["expert", "random", "expert", "random", "expert"]
    assert [one.success for one in found] == [True, False, True, False, True]
    for one in found:
        assert set(one.scores) == {"progress", "action-rate", SUM, TASK} and one.progress is not None
        # the reward is exp(-distance / scale) of the distance that the truth states
        known = np.isfinite(one.progress)
        np.testing.assert_allclose(one.scores["progress"][known], np.exp(one.progress[known] / 0.1), rtol=1e-4)
        np.testing.assert_allclose(
            one.scores[SUM], 2 * one.scores["progress"] + 0.5 * one.scores["action-rate"], atol=1e-5
        )
        assert not one.valid["action-rate"][0] and one.valid["action-rate"][1:].all()
        assert not one.valid[SUM][0] and not known[-1] and known[:-1].all()
        assert one.scores[TASK].sum() == one.success
        assert not one.event.any()


def test_collisions_and_route_of_a_car() -> None:
    found = scored("bev/drive", [WeightedReward("alive", 1.0, AliveCfg())], 24, threads=1, obs="vector")
    hit = [one for one in found if one.event.any()]
    assert hit and len(hit) < len(found) and all(one.event[-1] and not one.success for one in hit)
    # the reward is 0 at the end of any failure, a collision included
    assert all(one.scores["alive"][-1] == 0 for one in hit)
    assert len({one.scenario for one in found}) > 1
    for one in found:
        assert one.progress is not None and (np.diff(one.progress) >= -1e-6).all() and 0 <= one.progress[-1] <= 1


@dataclass(frozen=True)
class SlowCfg:
    """Minus the number of its step, which comes some steps later."""

    delay: int = 3

    def build(self, sim: Any, setup: RewardSetup) -> Slow:
        return Slow(sim.num_envs, self.delay)


class Slow(StatelessReward):
    identity = "slow"

    def __init__(self, num_envs: int, delay: int) -> None:
        self._envs, self._delay = num_envs, delay
        self._scored, self._given, self.closed = 0, 0, False

    def score(self, transition: SimTransition) -> Score:
        self._scored += 1
        reward = transition.step.reward
        return Score.of_now(torch.zeros_like(reward), torch.zeros_like(reward, dtype=torch.bool))

    def late(self, wait_s: float | None = None) -> LateScores:
        due = range(self._given, self._scored - (self._delay if wait_s == 0.0 else 0))
        self._given = max(self._given, due.stop)
        step = torch.tensor(list(due), dtype=torch.int64).repeat_interleave(self._envs)
        envs = torch.arange(self._envs).repeat(len(due))
        age = torch.zeros_like(step)
        return LateScores(self._scored - 1 - step, envs, -step.float(), torch.ones_like(step, dtype=torch.bool), age)

    def metrics(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self.closed = True


def test_scores_that_come_late_belong_to_their_steps() -> None:
    found = scored("mujoco/push", [WeightedReward("slow", 2.0, SlowCfg()), WeightedReward("alive", 1.0, AliveCfg())], 5)
    for one in found:
        assert one.valid["slow"].all() and one.valid[SUM].all()
        assert (np.diff(one.scores["slow"]) == -1).all()
        np.testing.assert_allclose(one.scores[SUM], 2 * one.scores["slow"] + one.scores["alive"])
    assert [one.scores["slow"][0] for one in found[:3]] == [0, 0, 0], "three envs begin at the first step"


def test_no_source_ends_an_episode() -> None:
    sim: Any = with_rewards(make_sim("mujoco/push", num_envs=2, seed=0), [WeightedReward("alive", 1.0, AliveCfg())])
    sim.rewards.sources[0].source.end_at = 1.0  # it pays 1 at each step, and would end all of them at once
    try:
        found = score_rollouts(sim, expert_and_random(sim), list(sim.state_ids("val")[:2]), 0)
    finally:
        sim.close()
    assert min(one.length for one in found) > 20


def test_actions_played_again_give_the_same_episodes() -> None:
    found = scored("mujoco/push", [WeightedReward("alive", 1.0, AliveCfg())], 3)
    sim = make_sim("mujoco/push", num_envs=2, seed=0)
    try:
        player = PlayedActions(found, sim.num_envs, at_rest(sim.action_spec))
        again = evaluate(player, sim, ids=[one.state_id for one in found])
    finally:
        sim.close()
    assert again.success.tolist() == [one.success for one in found]
    assert again.length.tolist() == [one.length for one in found]


def test_actors_take_the_starts_in_turn() -> None:
    class Constant:
        def __init__(self, value: float) -> None:
            self.value, self.asked = value, list[list[int]]()

        def act(self, obs: Any, turn: Turn) -> torch.Tensor:
            self.asked.append(turn.start.tolist())
            return torch.full((len(turn.start), 1), self.value)

    one, two = Constant(1.0), Constant(2.0)
    mixed = MixedActor([NamedActor("one", one), NamedActor("two", two)], [10, 11, 12])
    turn = Turn(torch.zeros(4, dtype=torch.bool), torch.tensor([12, 11, 10, -1]))
    assert mixed.act({}, turn).squeeze(1).tolist() == [1.0, 2.0, 1.0, 1.0]
    assert one.asked == [[12, -1, 10, -1]] and two.asked == [[-1, 11, -1, -1]]
    assert mixed.name_of(11) == "two"
