"""The sim's own reward as a reward source, to be combined with others."""

from __future__ import annotations

from dataclasses import dataclass

from robotrl.rewards.source import RewardSetup, Score, SimTransition, StatelessReward
from robotrl.spec import VecSim


@dataclass(frozen=True)
class TaskRewardCfg:
    """The sim's own reward, sparse or shaped as its options say."""

    def build(self, sim: VecSim, setup: RewardSetup) -> TaskReward:
        """Build the source."""
        return TaskReward()


class TaskReward(StatelessReward):
    """The reward that the sim gave, unchanged."""

    identity = "task"

    def score(self, transition: SimTransition) -> Score:
        """See `RewardSource.score`."""
        return Score.of_now(transition.step.reward)
