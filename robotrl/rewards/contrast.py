"""Contrasting language goals: sentences for what should be seen, and for what must not.

VLM-RL (Huang et al. 2024, arXiv 2412.15544), section IV-B: the similarity of the scene to good prompts minus that to
bad ones, mapped to 0 to 1. Their window is tuned to one model; here it is found from the first scores.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from robotrl.errors import check_count, check_number, unknown
from robotrl.fn.language_reward import contrast
from robotrl.rewards.source import RewardSetup
from robotrl.rewards.vlm.source import LanguageReward, Synthesis, check_prompts, vehicle_state
from robotrl.rewards.vlm.window import CalibratedWindow
from robotrl.spec import VecSim, reads

NAME = "contrast"


@dataclass(frozen=True)
class ContrastCfg:
    """Similarity of the scene to sentences of what is good, less that to sentences of what is bad (VLM-RL)."""

    model: str = field(metadata=reads("model"))
    """Image and text model: a directory (`robotrl reward train clip`), hf-hub:ORG/NAME, or MODEL@CHECKPOINT."""
    good: tuple[str, ...]
    """Sentences that are true where all is well."""
    bad: tuple[str, ...]
    """Sentences that are true where it is not; several directions or wordings are averaged."""
    view: str | None = None
    """Observed picture or camera to look at; None takes the first."""
    pixels: int = 64
    """Width and height of a camera's pictures."""
    every: int = 1
    """Control steps from one score to the next; steps between are invalid."""
    calibration: int = 2048
    """Number of first scores that the window is found from; they are invalid."""
    tail: float = 0.05
    """Share of these scores beyond either end of the window."""
    window: tuple[float, float] | None = None
    """Window of the raw score, which becomes 0 to 1, instead of the one found."""
    synthesis: Synthesis = "none"
    """Reward: "none", the score itself; "driving", how well speed and lane suit it: the score is the desired speed."""
    max_speed_mps: float = 10.0
    """Desired speed at a score of 1, with synthesis "driving", m/s."""

    def build(self, sim: VecSim, setup: RewardSetup) -> LanguageReward:
        """Build the source.

        Raises:
            CapabilityError: the sim has no picture, or no vehicle state for the synthesis.
            ConfigError: a setting is out of range, or a prompt cannot be read.
            DataError: the model cannot be loaded.
        """
        check_prompts(NAME, "good", self.good)
        check_prompts(NAME, "bad", self.bad)
        check_count(f"reward.{NAME}.calibration", self.calibration, 2, 10_000_000, "a number of scores")
        check_number(f"reward.{NAME}.tail", self.tail, 0.0, 0.49)
        if self.synthesis not in ("none", "driving"):
            raise unknown(f"reward.{NAME}.synthesis", str(self.synthesis), ("none", "driving"))
        positives = len(self.good)

        def raw(similarity: Tensor) -> Tensor:
            return contrast(similarity, positives)

        return LanguageReward(
            NAME,
            self.model,
            (*self.good, *self.bad),
            raw,
            sim,
            view=self.view,
            pixels=self.pixels,
            every=self.every,
            window=CalibratedWindow(self.calibration, self.tail, self.window, NAME),
            shape=None if self.synthesis == "none" else vehicle_state(sim, self.max_speed_mps, NAME),
            text=repr((self.good, self.calibration, self.tail, self.window, self.synthesis, self.max_speed_mps)),
        )
