"""Contrasting language goals: sentences for what should be seen, and for what must not.

VLM-RL (Huang et al. 2024, arXiv 2412.15544), section IV-B: the similarity of the scene to good prompts minus that to
bad ones, mapped to 0 to 1. Their window is tuned to one model; here it is found from the first scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from robotrl.errors import unknown
from robotrl.fn.language_reward import contrast
from robotrl.rewards.source import RewardSetup
from robotrl.rewards.vlm.source import LanguageReward, check_prompts
from robotrl.rewards.vlm.windowed import WindowedRewardCfg
from robotrl.spec import VecSim

NAME = "contrast"


@dataclass(frozen=True, kw_only=True)
class ContrastCfg(WindowedRewardCfg):
    """Similarity of the scene to sentences of what is good, less that to sentences of what is bad (VLM-RL)."""

    good: tuple[str, ...]
    """Sentences that are true where all is well."""
    bad: tuple[str, ...]
    """Sentences that are true where it is not, e.g. one for each direction."""
    bad_by: Literal["max", "mean"] = "max"
    """Bad sentences count by the most similar one, or by their mean as published."""

    def build(self, sim: VecSim, setup: RewardSetup) -> LanguageReward:
        """Build the source; see `WindowedRewardCfg.built` for its errors."""
        check_prompts(NAME, "good", self.good)
        check_prompts(NAME, "bad", self.bad)
        if self.bad_by not in ("max", "mean"):
            raise unknown(f"reward.{NAME}.bad_by", str(self.bad_by), ("max", "mean"))
        positives = len(self.good)

        def raw(similarity: Tensor) -> Tensor:
            return contrast(similarity, positives, self.bad_by == "max")

        return self.built(NAME, (*self.good, *self.bad), lambda _: raw, sim, repr((positives, self.bad_by)))
