"""Goal-baseline projection: how far the scene has come from a baseline sentence to a goal sentence.

VLM-RM (Rocamonde et al. 2023, arXiv 2310.12921), equation 5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from robotrl.errors import ConfigError, check_number
from robotrl.fn.language_reward import goal_baseline
from robotrl.rewards.source import RewardSetup
from robotrl.rewards.vlm.similarity import PromptVectors
from robotrl.rewards.vlm.source import LanguageReward, check_prompts
from robotrl.rewards.vlm.windowed import RawScore, WindowedRewardCfg
from robotrl.spec import VecSim

NAME = "goal-baseline"
LARGEST_BETWEEN = 1.0 - 1e-6
"""Similarity of goal and baseline above which they have no direction."""


@dataclass(frozen=True, kw_only=True)
class GoalBaselineCfg(WindowedRewardCfg):
    """Closeness of the scene to a goal sentence along the line from a baseline sentence (VLM-RM)."""

    goal: str
    """Sentence of the goal."""
    baseline: str
    """Sentence of any scene of the sim, e.g. "a road"."""
    alpha: float = 0.5
    """Strength of the projection, 0 (plain similarity to the goal) to 1."""

    def build(self, sim: VecSim, setup: RewardSetup) -> LanguageReward:
        """Build the source; see `WindowedRewardCfg.built` for its errors."""
        check_prompts(NAME, "goal", (self.goal,))
        check_prompts(NAME, "baseline", (self.baseline,))
        check_number(f"reward.{NAME}.alpha", self.alpha, 0.0, 1.0)

        def raw(prompts: PromptVectors) -> RawScore:
            between = float(np.dot(prompts.texts[0], prompts.texts[1]))
            if between > LARGEST_BETWEEN:
                raise ConfigError(
                    f"reward.{NAME}.baseline is {self.baseline!r}, which means the same as the goal {self.goal!r} to"
                    " the model: expected another sentence"
                )

            def score(similarity: Tensor) -> Tensor:
                return goal_baseline(similarity[:, 0], similarity[:, 1], between, self.alpha)

            return score

        return self.built(NAME, (self.goal, self.baseline), raw, sim, repr(self.alpha))
