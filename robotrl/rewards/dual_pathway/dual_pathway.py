"""Two paths of DriveVLM-RL (2026): language goals in every step, and a larger model where something matters.

The static path compares the picture of every step with sentences of what is good and what is bad. The dynamic path has
an attention gate: only where a scene matters is a clip of several frames sent to a larger model, which answers with a
risk when it has thought. Both are fused and joined with the state of the vehicle. Deployment needs nothing of it.

Their code is not public: the fusion (the lower of the two scores) is ours.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from robotrl.errors import ConfigError, check_count, check_number, out_of_range, unknown
from robotrl.fn.language_reward import contrast
from robotrl.rewards.dual_pathway.clip_risk import RiskSource, open_clip_risk
from robotrl.rewards.dual_pathway.gate import ScorerGate, WordGate, require_objects
from robotrl.rewards.dual_pathway.source import DualPathwayReward, DynamicPath, StaticPath, Truth
from robotrl.rewards.endpoint.cfg import EndpointCfg
from robotrl.rewards.served.question import QuestionCfg
from robotrl.rewards.served.scores import EndpointScores
from robotrl.rewards.source import RewardSetup
from robotrl.rewards.vlm.clips import ClipMemory, ClipShape
from robotrl.rewards.vlm.pictures import PictureFeed, picture_feed, warn_of_other_view
from robotrl.rewards.vlm.similarity import open_scores
from robotrl.rewards.vlm.source import check_prompts
from robotrl.rewards.vlm.synthesis import Synthesis, synthesis_of
from robotrl.rewards.vlm.window import CalibratedWindow, check_quantiles
from robotrl.rewards.vlm.windowed import WindowedRewardCfg
from robotrl.spec import VecSim
from robotrl.spec.vehicle import HasTimeToCollision

NAME = "dual-pathway"
GATES = ("objects", "words", "scorer", "always")
RISKS = ("endpoint", "clip")
FUSIONS = ("min", "product")
LATE_PICTURES = 16
"""Pictures for which a gate's decision may come late: clips of older ones are gone."""


@dataclass(frozen=True, kw_only=True)
class DualPathwayCfg(WindowedRewardCfg, QuestionCfg):
    """Language goals in every step, and the risk that a larger model sees where a gate opens (DriveVLM-RL)."""

    good: tuple[str, ...]
    """Sentences that are true where all is well."""
    bad: tuple[str, ...]
    """Sentences of danger."""
    static: bool = True
    """Static path; without it a step's score is that of the dynamic path, and 1 where the gate is shut."""
    dynamic: bool = True
    """Dynamic path; without it a step's score is that of the static path."""
    gate: Literal["objects", "words", "scorer", "always"] = "objects"
    """Attention gate: "objects", the sim's own time to collision; "words", the model's similarity to sentences of
    danger; "scorer", a detector or classifier of your own; "always", none."""
    gate_ttc_s: float = 3.0
    """Gate "objects": time to collision below which it opens, s."""
    gate_words: tuple[str, ...] = ()
    """Gate "words": sentences of danger, compared with `good`; none: those of `bad`."""
    gate_share: float = 0.2
    """Gate "words": share of the first `calibration` pictures for which it would have been open; 0.001 to 0.49. Before
    they are seen it is shut."""
    gate_scorer: str = ""
    """Gate "scorer": function that makes a scorer of pictures with one output, "package.module:function"."""
    gate_threshold: float | None = None
    """Gate "scorer": smallest output that opens it. Gate "words": smallest difference of similarities, instead of the
    one found."""
    truth_ttc_s: float = 1.5
    """Time to collision below which a scene matters, s, for the gate's recall and precision in the log; of sims that
    know it."""
    ask_gap: int = 10
    """Fewest control steps between two clips of an env."""
    frames: int = 4
    """Frames of a clip."""
    frame_gap: int = 5
    """Control steps from one frame to the next, a multiple of `every`."""
    risk: Literal["endpoint", "clip"] = "endpoint"
    """Larger model: "endpoint", a served vision-language model; "clip", a local model of pictures and language that
    looks at each frame."""
    risk_max_age: int = 20
    """Control steps for which a risk stands, within its episode, until there is a newer one."""
    question: str = (
        "These frames show one scene, the oldest first. How likely is an accident within the next seconds, from 0 (it"
        " will not happen) to 10 (it is certain)?"
    )
    """Risk "endpoint": question about the frames; the form of the answer is added. Its score is the risk."""
    endpoint: EndpointCfg = field(default_factory=EndpointCfg)
    """Risk "endpoint": address of the model, time limits, budget."""
    patient: bool = False
    """Risk "endpoint": let the sim wait for each answer, for tests and measurements."""
    risk_model: str | None = None
    """Risk "clip": the larger model, named as `model` is; None: `model` itself."""
    risk_temperature: float = 0.07
    """Risk "clip": temperature of the probability of `bad` against `good`."""
    fusion: Literal["min", "product"] = "min"
    """Score from both paths: the lower of the static score and 1 - risk, or their product."""
    synthesis: Synthesis = "driving"
    """Reward: "none", the score itself; "driving", how well speed and lane suit it, where the score is the desired
    speed; "robot", the score times how little effort the action takes."""

    def build(self, sim: VecSim, setup: RewardSetup) -> DualPathwayReward:
        """Build the source.

        Raises:
            CapabilityError: the sim has no picture, or lacks what the gate or the synthesis needs.
            ConfigError: a setting is out of range, or a sentence cannot be read.
            DataError: a model cannot be loaded, or the directory of answers cannot be used.
            RobotrlError: no worker of the scoring service started.
        """
        self.check(NAME)
        feed = picture_feed(sim, self.view, self.pixels, f"reward.{NAME}.view")
        warn_of_other_view(self.model, feed, f"reward.{NAME}.view")
        return self.with_pictures(feed, sim, setup.answers)

    def with_pictures(self, feed: PictureFeed, sim: VecSim, answers: str | None = None) -> DualPathwayReward:
        """Build the source on these pictures of a sim; see `build`, and `RewardSetup.answers`."""
        clip = ClipShape(self.frames, self.frame_gap)
        late = self.gate == "words" and self.background
        slack = self.every * LATE_PICTURES if late else 0
        memory = ClipMemory(sim.num_envs, clip, self.every, feed.shape, slack, f"reward.{NAME}")
        shape = synthesis_of(self, sim, NAME)
        static, read = self._static_path(feed)
        dynamic, asked = self._dynamic_path(feed, sim, answers)
        truth = Truth(sim, self.truth_ttc_s) if isinstance(sim, HasTimeToCollision) and self.dynamic else None
        own = {key: x for key, x in vars(self).items() if key not in NO_IDENTITY}
        identity = hashlib.sha256(repr((own, feed.name, read, asked)).encode()).hexdigest()
        return DualPathwayReward(
            NAME,
            self,
            feed,
            memory,
            static,
            dynamic,
            truth,
            self.fusion == "product",
            shape,
            sim.num_envs,
            identity,
        )

    def check(self, name: str) -> None:
        """See `ScenePicturesCfg.check`."""
        super().check(name)
        where = f"reward.{name}"
        self.check_question(where)
        check_prompts(name, "good", self.good)
        check_prompts(name, "bad", self.bad)
        for key, value, known in (("gate", self.gate, GATES), ("risk", self.risk, RISKS)):
            if value not in known:
                raise unknown(f"{where}.{key}", str(value), known)
        if self.fusion not in FUSIONS:
            raise unknown(f"{where}.fusion", str(self.fusion), FUSIONS)
        if not self.static and not self.dynamic:
            raise ConfigError(f"{where}.static and {where}.dynamic are both False: expected one path or both")
        ClipShape(self.frames, self.frame_gap).check(where)
        if self.frame_gap % self.every:
            raise out_of_range(f"{where}.frame_gap", self.frame_gap, f"a multiple of {where}.every, {self.every}")
        check_number(f"{where}.gate_ttc_s", self.gate_ttc_s, 0.0, 1000.0, "s")
        check_number(f"{where}.truth_ttc_s", self.truth_ttc_s, 0.0, 1000.0, "s")
        check_number(f"{where}.gate_share", self.gate_share, 0.001, 0.49)
        check_count(f"{where}.ask_gap", self.ask_gap, 1, 100_000, "a number of steps")
        check_count(f"{where}.risk_max_age", self.risk_max_age, 0, self.kept_steps - 1, "fewer steps than kept_steps,")
        check_number(f"{where}.risk_temperature", self.risk_temperature, 1e-4, 100.0)
        check_count(f"{where}.calibration", self.calibration, 2, 10_000_000, "a number of scores")
        check_quantiles(f"{where}.quantiles", self.quantiles)
        if self.dynamic and self.gate == "scorer" and self.gate_threshold is None:
            raise ConfigError(f"{where}.gate_threshold is None: expected the output from which gate 'scorer' opens")

    def _static_path(self, feed: PictureFeed) -> tuple[StaticPath | None, str]:
        """The static path, and what identifies its model."""
        by_words = self.dynamic and self.gate == "words"
        if not self.static and not by_words:
            return None, ""
        goals = (*self.good, *self.bad)
        prompts = (*goals, *self.good, *(self.gate_words or self.bad)) if by_words else goals
        positives = len(self.good)

        def raw(similarity: Tensor) -> Tensor:
            return contrast(similarity, positives, worst=True)

        window = CalibratedWindow(self.calibration, self.quantiles, self.window, NAME)
        opened = open_scores(self, prompts, "similarity", feed.shape)
        return StaticPath(opened.scores, len(goals), raw, window, self.static), opened.prompts.identity

    def _dynamic_path(self, feed: PictureFeed, sim: VecSim, answers: str | None) -> tuple[DynamicPath | None, str]:
        """The dynamic path, and what identifies its model."""
        if not self.dynamic:
            return None, ""
        where = f"reward.{NAME}"
        by_words, by_picture, objects_s = None, None, None
        if self.gate == "words":
            given = None if self.gate_threshold is None else (-2.0, self.gate_threshold)
            by_words = WordGate(
                len(self.good),
                CalibratedWindow(self.calibration, (self.gate_share, 1.0 - self.gate_share), given, NAME),
            )
        elif self.gate == "scorer":
            assert self.gate_threshold is not None
            by_picture = ScorerGate(self.gate_scorer, self.gate_threshold, f"{where}.gate_scorer")
        elif self.gate == "objects":
            require_objects(sim, f"{where}.gate")
            objects_s = self.gate_ttc_s
        found = self._risk_source(feed, answers)
        path = DynamicPath(found.scores, self.ask_gap, self.risk_max_age, by_words, by_picture, objects_s)
        return path, found.identity

    def _risk_source(self, feed: PictureFeed, answers: str | None) -> RiskSource:
        if self.risk == "endpoint":
            scores = EndpointScores(self.endpoint.kept_in(answers), self, f"reward.{NAME}", self.patient)
            return RiskSource(scores, scores.identity)
        model = self.model if self.risk_model is None else self.risk_model
        return open_clip_risk(self, model, self.good, self.bad, self.frames, self.risk_temperature, feed.shape)


NO_IDENTITY = (
    *("device", "background", "wait_s", "kept_steps", "service", "patient", "truth_ttc_s"),
    *("model", "risk_model", "endpoint", "view", "pixels"),
)
"""Settings that change no score, and those that are known by what they stand for: models by their weights, an endpoint
by what is asked of it, pictures by their feed."""
