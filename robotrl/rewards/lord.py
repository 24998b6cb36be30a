"""Opposite of what must not be seen: LORD (Ye et al. 2024, arXiv 2403.18965), language as an undesired state."""

from __future__ import annotations

from dataclasses import dataclass

from robotrl.fn.language_reward import opposite
from robotrl.rewards.source import RewardSetup
from robotrl.rewards.vlm.source import LanguageReward, check_prompts
from robotrl.rewards.vlm.windowed import WindowedRewardCfg
from robotrl.spec import VecSim

NAME = "lord"


@dataclass(frozen=True, kw_only=True)
class LordCfg(WindowedRewardCfg):
    """Distance of the scene from the nearest of the sentences of what must not be (LORD)."""

    bad: tuple[str, ...]
    """Sentences that must not come true."""

    def build(self, sim: VecSim, setup: RewardSetup) -> LanguageReward:
        """Build the source; see `WindowedRewardCfg.built` for its errors."""
        check_prompts(NAME, "bad", self.bad)
        return self.built(NAME, self.bad, lambda _: opposite, sim, "")
