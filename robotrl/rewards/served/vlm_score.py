"""Score of the scene by a served vision-language model, which is asked in words and answers when it has thought.

Whether a model can be the judge of a robot's scenes is an old question (Rocamonde et al. 2023, arXiv 2310.12921, ask an
encoder; Wang et al. 2024, arXiv 2402.03681, a chat model); here it is asked for a score directly, and only a strict
answer counts.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import out_of_range
from robotrl.rewards.endpoint.cfg import EndpointCfg
from robotrl.rewards.served.question import QuestionCfg
from robotrl.rewards.served.scores import EndpointScores
from robotrl.rewards.source import RewardSetup, Score, SimTransition
from robotrl.rewards.vlm.cfg import ScenePicturesCfg
from robotrl.rewards.vlm.clips import ClipFeed, ClipShape
from robotrl.rewards.vlm.pictures import PictureFeed, picture_feed
from robotrl.rewards.vlm.scene_scores import SceneScores
from robotrl.rewards.vlm.source import LanguageReward
from robotrl.rewards.vlm.synthesis import SynthesisCfg, synthesis_of
from robotrl.rewards.vlm.window import CalibratedWindow
from robotrl.rewards.vlm.windowed import WindowedTerm
from robotrl.spec import VecSim

NAME = "vlm-score"
UNIT = (0.0, 1.0)
BILL = "bill"


@dataclass(frozen=True, kw_only=True)
class VlmScoreCfg(ScenePicturesCfg, QuestionCfg, SynthesisCfg):
    """Score of the scene, 0 to 1, that a served vision-language model answers with when it is asked."""

    every: int = 20
    """Control steps from one request of an env to the next."""
    max_age: int = 40
    """Control steps for which a score stands, within its episode, until there is a newer one; then steps are
    invalid. 0: only the step whose picture was scored is valid."""
    pixels: int = 128
    """Width and height of a camera's pictures."""
    frames: int = 1
    """Pictures in a request, the oldest first; more than one is a clip. Where an episode is younger, its first picture
    is repeated."""
    frame_gap: int = 5
    """With several frames: control steps from one to the next, a divisor of `every`."""
    endpoint: EndpointCfg = field(default_factory=EndpointCfg)
    """Address of the model, time limits, budget."""
    patient: bool = False
    """Let the sim wait for each answer, for tests and measurements; else late scores are written into the steps that
    they belong to."""

    def build(self, sim: VecSim, setup: RewardSetup) -> ServedReward:
        """Build the source.

        Raises:
            CapabilityError: the sim has no picture, or lacks what the synthesis needs.
            ConfigError: a setting is out of range, or the key's variable is not set.
            DataError: the directory of answers cannot be used.
        """
        where = f"reward.{NAME}"
        self.check(NAME)
        self.check_question(where)
        clip = ClipShape(self.frames, self.frame_gap if self.frames > 1 else self.every)
        clip.check(where)
        if self.every % clip.gap:
            raise out_of_range(f"{where}.frame_gap", clip.gap, f"a divisor of {where}.every, {self.every}")
        feed = picture_feed(sim, self.view, self.pixels, f"{where}.view")
        return self.with_pictures(feed, clip, sim, setup.answers)

    def with_pictures(
        self, pictures: PictureFeed, clip: ClipShape, sim: VecSim, answers: str | None = None
    ) -> ServedReward:
        """Build the source on these pictures of a sim; see `build`, and `RewardSetup.answers`."""
        where = f"reward.{NAME}"
        feed = ClipFeed(pictures, sim.num_envs, clip, where)
        shape = synthesis_of(self, sim, NAME)
        term = WindowedTerm(lambda scores: scores[:, 0], CalibratedWindow(2, (0.0, 1.0), UNIT, NAME), shape)
        scores = EndpointScores(self.endpoint.kept_in(answers), self, where, self.patient)
        settings = (scores.identity, feed.name, self.every, self.max_age, *self.synthesis_settings)
        identity = hashlib.sha256(repr(settings).encode()).hexdigest()
        return ServedReward(self, feed, scores, term, sim.num_envs, identity)


class ServedReward(LanguageReward):
    """A `LanguageReward` of clips.

    Args:
        cfg: settings.
        feed: clips of each env.
        scores: scores them; one output, 0 to 1.
        term: makes rewards of these outputs.
        num_envs: N.
        identity: see `RewardSource`.
    """

    def __init__(
        self,
        cfg: ScenePicturesCfg,
        feed: ClipFeed,
        scores: EndpointScores,
        term: WindowedTerm,
        num_envs: int,
        identity: str,
    ) -> None:
        super().__init__(NAME, cfg, SceneScores(feed, scores, num_envs), 1, term, num_envs, identity)
        self._feed, self._served = feed, scores

    def score(self, transition: SimTransition) -> Score:
        """See `RewardSource.score`."""
        self._feed.watch(transition)
        return super().score(transition)

    def forget(self, envs: Tensor) -> None:
        """See `RewardSource.forget`."""
        super().forget(envs)
        self._feed.forget(envs)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """See `RewardSource.state`."""
        clips = {f"clips/{key}": x for key, x in self._feed.state().items()}
        return super().state() | clips | {BILL: self._served.bill()}

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See `RewardSource.load`."""
        super().load(state)
        if BILL in state:  # version 0.1 kept calls and cost alone
            self._served.load_bill(state[BILL])
        self._feed.load({key.removeprefix("clips/"): x for key, x in state.items() if key.startswith("clips/")})
