"""Scores of whole episodes whose pictures are answered late, in any order, or not at all."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from robotrl.config import WeightedReward
from robotrl.rewards.episode_similarity import EpisodeSimilarity
from robotrl.rewards.relabel import LateRewardedSim, with_rewards
from robotrl.rewards.source import RewardSetup
from robotrl.rewards.vlm.cfg import ScenePicturesCfg
from robotrl.rewards.vlm.scene_scores import SceneScores
from robotrl.spec import VecSim
from tests.kits.numbered_scenes import NumberedScenes
from tests.kits.scattered_scores import ScatteredScores
from tests.kits.walk_sim import Walk

ENVS, KEPT = 5, 11
GOAL = np.array([1.0, 0.0, 0.0], np.float32)


def vectors(numbers: NDArray[np.int64]) -> NDArray[np.float32]:
    """(n, 3) unit vectors of pictures, by their numbers."""
    angle = (numbers * 37 % 101) / 101 * np.pi
    return np.stack([np.cos(angle), np.sin(angle), 0.0 * angle], axis=1).astype(np.float32)


class Scattered(NamedTuple):
    """The reward on numbered pictures, whose scores take up to so many steps."""

    longest: int
    invalid: float

    def build(self, sim: VecSim, setup: RewardSetup) -> EpisodeSimilarity:
        cfg = ScenePicturesCfg(max_age=0, kept_steps=KEPT)
        scores = ScatteredScores(sim, vectors, self.longest, self.invalid)
        scenes = SceneScores(NumberedScenes(sim), scores, sim.num_envs)
        return EpisodeSimilarity(cfg, scenes, torch.from_numpy(GOAL), sim.num_envs, "scattered")


def episodes_on(sim: Walk, longest: int, invalid: float = 0.0) -> tuple[LateRewardedSim, EpisodeSimilarity]:
    made = with_rewards(sim, [WeightedReward("episode-similarity", 1.0, Scattered(longest, invalid))])
    assert isinstance(made, LateRewardedSim)
    source = made.rewards.sources[0].source
    assert isinstance(source, EpisodeSimilarity)
    made.reset(seed=0)
    return made, source


def scores_of(source: EpisodeSimilarity) -> Any:
    return source._scenes._scores


def walked(made: Any, source: EpisodeSimilarity, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """(T, N) rewards with all late changes, and whether they were valid in the end."""
    generator = torch.Generator().manual_seed(1)
    reward, valid = np.zeros((steps, ENVS)), np.zeros((steps, ENVS), bool)
    for t in range(steps):
        step = made.step(torch.rand((ENVS, 1), generator=generator) - 0.4)
        reward[t], valid[t] = step.reward.numpy(), step.info["reward_valid/episode-similarity"].numpy()
        late = source.late(0.0)
        np.add.at(reward, (t - late.back.numpy(), late.env.numpy()), late.change.numpy())
        valid[(t - late.back).numpy(), late.env.numpy()] = True
    return reward, valid


def ends_of(sim: Walk) -> list[tuple[int, int, int]]:
    """First step, last step and env of each whole episode."""
    began, found = [0] * ENVS, list[tuple[int, int, int]]()
    for t, record in enumerate(sim.tape):
        for env in torch.nonzero(record.terminated | record.truncated).squeeze(1).tolist():
            found.append((began[env], t, env))
            began[env] = t + 1
    return found


@pytest.mark.parametrize("longest", [0, 6, 4 * KEPT])
def test_an_episode_has_the_score_of_the_pictures_that_were_answered_in_time(longest: int) -> None:
    """Answers that come after `kept_steps` steps are lost, and are counted; invalid ones are left out."""
    sim, steps = Walk(ENVS), 300
    made, source = episodes_on(sim, longest, invalid=0.1)
    reward, valid = walked(made, source, steps)
    given = scores_of(source).given
    # the picture of a step is asked about when its step is on the tape
    good = {ticket for ticket, (when, valid) in given.items() if valid and when - 1 - ticket // ENVS < KEPT}
    expected, known = np.zeros((steps, ENVS)), np.ones((steps, ENVS), bool)
    for first, last, env in ends_of(sim):
        taken = [t * ENVS + env for t in range(first, last + 1) if t * ENVS + env in good]
        known[last, env] = bool(taken)
        if taken:
            total = vectors(np.array(taken)).sum(0)
            expected[last, env] = total @ GOAL / np.linalg.norm(total)
    assert (valid == known).all()
    assert reward == pytest.approx(expected, abs=1e-5)
    late = sum(valid for ticket, (_, valid) in given.items()) - len(good)
    assert source.metrics()["lost"] == late and (late > 0) == (longest > KEPT)
    # nothing is remembered that can no longer be answered
    assert len(source._of) <= ENVS * KEPT


def test_answers_of_before_a_state_was_restored_are_dropped() -> None:
    sim = Walk(ENVS, limit=1000)
    made, source = episodes_on(sim, longest=8)
    walked(made, source, 10)
    with pytest.warns(UserWarning, match="being scored when the state was saved"):
        made.set_state(made.get_state())
    held = {ticket for _, ticket, _, _ in scores_of(source)._held}
    assert held and not source.late(0.0).back.numel()
    before = [(episode.total.clone(), episode.scored) for episode in source._running]
    # steps that ask about nothing: all that comes is of before
    source._due_in = 100
    lost = source.metrics()["lost"]
    for _ in range(9):
        made.step(torch.zeros(ENVS, 1))
        assert not source.late(0.0).back.numel()
        now = [(episode.total, episode.scored) for episode in source._running]
        assert [scored for _, scored in now] == [scored for _, scored in before]
        assert all(torch.equal(one, other) for (one, _), (other, _) in zip(now, before, strict=True))
    assert source.metrics()["lost"] - lost == len(held)
