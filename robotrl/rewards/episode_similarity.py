"""One score at the end of an episode, of all its pictures: RoboCLIP (Sontakke et al. 2023, arXiv 2310.07899).

Their encoder reads videos; here an episode's vector is the mean of those of its pictures.
"""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.fn.language_reward import episode_similarity
from robotrl.rewards.source import LateScores, RewardSetup, Score, SimTransition
from robotrl.rewards.vlm.cfg import PictureRewardCfg, ScenePicturesCfg
from robotrl.rewards.vlm.pictures import picture_feed, warn_of_other_view
from robotrl.rewards.vlm.scene_scores import SceneAnswers, SceneScores
from robotrl.rewards.vlm.similarity import open_scores
from robotrl.rewards.vlm.source import check_prompts
from robotrl.spec import VecSim

NAME = "episode-similarity"


@dataclass(frozen=True, kw_only=True)
class EpisodeSimilarityCfg(PictureRewardCfg):
    """Similarity of a whole episode to a sentence, at its last step; 0 before (RoboCLIP)."""

    goal: str
    """Sentence that a good episode shows."""

    def build(self, sim: VecSim, setup: RewardSetup) -> EpisodeSimilarity:
        """Build the source.

        Raises:
            CapabilityError: the sim has no picture.
            ConfigError: a setting is out of range, or the sentence cannot be read.
            DataError: the model cannot be loaded.
            RobotrlError: no worker of the scoring service started.
        """
        self.check(NAME)
        check_prompts(NAME, "goal", (self.goal,))
        feed = picture_feed(sim, self.view, self.pixels, f"reward.{NAME}.view")
        warn_of_other_view(self.model, feed, f"reward.{NAME}.view")
        opened = open_scores(self, (self.goal,), "image", feed.shape)
        settings = (NAME, opened.prompts.identity, feed.name, self.every, self.goal)
        identity = hashlib.sha256(repr(settings).encode()).hexdigest()
        scenes = SceneScores(feed, opened.scores, sim.num_envs)
        return EpisodeSimilarity(self, scenes, torch.from_numpy(opened.prompts.texts[0]), sim.num_envs, identity)


@dataclass(eq=False)
class OpenEpisode:
    """An episode whose pictures are being scored."""

    total: Tensor
    """(D,) sum of the vectors of its pictures."""
    scored: int = 0
    """Pictures in `total`."""
    end: int | None = None
    """Number of its last step; None while it runs."""
    given: float = 0.0
    """Reward that its last step has."""


class EpisodeSimilarity:
    """One score at the end of each episode; a `LateRewardSource`.

    The score is that of the pictures that are scored by then, and changes with each late one. All steps but the last
    are valid, with 0; the last one is invalid until a picture of its episode is scored.

    Args:
        cfg: when pictures are scored.
        scenes: gives the unit vectors (D,) of the pictures of a step.
        goal: (D,) unit vector of the sentence.
        num_envs: N.
        identity: see `RewardSource`.
    """

    fallback = 0.0
    end_at: float | None = None
    sees_success = False
    obs_keys: tuple[str, ...] = ()

    def __init__(self, cfg: ScenePicturesCfg, scenes: SceneScores, goal: Tensor, num_envs: int, identity: str) -> None:
        self.identity = identity
        self._cfg, self._scenes, self._goal, self._num_envs = cfg, scenes, goal, num_envs
        self._clock, self._due_in = 0, 0
        self._running = [self._fresh() for _ in range(num_envs)]
        self._of = dict[tuple[int, int], OpenEpisode]()
        """Episode of each picture that is being scored, by step and env, the oldest first."""
        self._late = list[tuple[int, int, float, bool]]()
        """Step, env, change and whether the step had no score, of ended episodes."""

    def _fresh(self) -> OpenEpisode:
        return OpenEpisode(torch.zeros(len(self._goal)))

    def score(self, transition: SimTransition) -> Score:
        """See `RewardSource.score`."""
        step, self._clock = self._clock, self._clock + 1
        if self._due_in == 0:
            for env in self._scenes.ask(step, transition).tolist():
                self._of[step, env] = self._running[env]
            self._due_in = self._cfg.every
        self._due_in -= 1
        self._drop_old()
        self._take(self._scenes.collect())
        over = transition.step.terminated | transition.step.truncated
        value, valid = torch.zeros(self._num_envs), torch.ones(self._num_envs, dtype=torch.bool)
        for env in torch.nonzero(over).squeeze(1).tolist():
            episode = self._running[env]
            episode.end, episode.given = step, self._similarity(episode)
            value[env], valid[env] = episode.given, episode.scored > 0
        device = transition.step.reward.device
        return Score.of_now(value.to(device), valid.to(device))

    def _similarity(self, episode: OpenEpisode) -> float:
        return float(episode_similarity(episode.total, self._goal))

    def _take(self, answers: SceneAnswers) -> None:
        for step, env in answers.unscored.tolist():
            self._of.pop((step, env), None)
        for step, env, output in zip(answers.step.tolist(), answers.env.tolist(), answers.outputs, strict=True):
            episode = self._of.pop((step, env), None)
            if episode is None:
                self._scenes.lost += 1
                continue
            episode.total += torch.from_numpy(output)
            episode.scored += 1
            if episode.end is not None:
                now = self._similarity(episode)
                self._late.append((episode.end, env, now - episode.given, episode.scored == 1))
                episode.given = now

    def _drop_old(self) -> None:
        """Let go of the pictures whose answers are taken no longer."""
        while self._of:
            oldest = next(iter(self._of))
            if oldest[0] > self._clock - 1 - self._cfg.kept_steps:
                return
            del self._of[oldest]

    def late(self, wait_s: float | None = None) -> LateScores:
        """See `LateRewardSource.late`."""
        self._take(self._scenes.collect(self._cfg.wait_s if wait_s is None else wait_s))
        late, self._late = self._late, []
        if not late:
            return LateScores.none()
        step, env, change, fresh = zip(*late, strict=True)
        age = torch.zeros(len(late), dtype=torch.int64)
        back = self._clock - 1 - torch.tensor(step)
        return LateScores(back, torch.tensor(env), torch.tensor(change), torch.tensor(fresh), age)

    def metrics(self) -> dict[str, float]:
        """See `LateRewardSource.metrics`."""
        return self._scenes.metrics()

    def close(self) -> None:
        """See `LateRewardSource.close`."""
        self._scenes.close()

    def forget(self, envs: Tensor) -> None:
        """See `RewardSource.forget`."""
        for env in torch.nonzero(envs).squeeze(1).tolist():
            self._running[env] = self._fresh()
        if envs.all():
            self._due_in = 0

    def state(self) -> dict[str, NDArray[np.generic]]:
        """See `RewardSource.state`."""
        return {
            "due_in": np.array(self._due_in),
            "pending": np.array(self._scenes.pending),
            "paid": np.array(self._scenes.paid),
            "total": torch.stack([one.total for one in self._running]).numpy(),
            "scored": np.array([one.scored for one in self._running]),
        }

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See `RewardSource.load`."""
        if int(state["pending"]):
            warnings.warn(
                f"reward {NAME!r}: {int(state['pending'])} pictures were being scored when the state was saved; their"
                " scores are lost, and the run goes on, not exactly",
                stacklevel=2,
            )
        self._scenes.charge(int(state["paid"]), 0.0)
        self._due_in = int(state["due_in"])
        # answers of before belong to episodes that are gone
        self._of.clear()
        self._late.clear()
        totals = torch.from_numpy(state["total"].copy())
        self._running = [OpenEpisode(total, int(scored)) for total, scored in zip(totals, state["scored"], strict=True)]
