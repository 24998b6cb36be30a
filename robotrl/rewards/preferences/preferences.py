"""Settings of the reward that is learned from preferences."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from robotrl.errors import ConfigError, check_count, check_number, unknown
from robotrl.rewards.preferences.labelers.desk import LabelingCfg
from robotrl.rewards.preferences.offline import PAIR_CHOICES, PairChoice
from robotrl.rewards.preferences.training import PreferenceTrainingCfg
from robotrl.rewards.source import RewardSetup
from robotrl.spec import VecSim, reads

if TYPE_CHECKING:
    from robotrl.rewards.preferences.online import OnlinePreferences
    from robotrl.rewards.preferences.source import FixedPreferences

NAME = "reward.preferences"
LONGEST_S = 86_400.0


@dataclass(frozen=True)
class PreferencesCfg:
    """Reward learned from answers to "which of two segments is better?", before the run or while it trains."""

    model: str | None = field(default=None, metadata=reads("checkpoint"))
    """Directory of trained preferences (`robotrl reward train preferences`). None: learn while the run trains."""
    pessimism: float = 0.0
    """Standard deviations of the ensemble that are taken off each reward, 0 to 100."""
    offset: float = 0.0
    """Added to each step's reward, whose standard deviation is 1, -100 to 100: answers about segments that all have the
    same length say nothing about it."""
    labels: int = 500
    """Without `model`: pairs to ask about in the whole run."""
    per_round: int = 50
    """Without `model`: pairs of a round; after its answers all kept steps are relabeled."""
    every_env_steps: int = 5000
    """Without `model`: env steps from one round to the next, summed over all envs."""
    pairs: PairChoice = "disagreement"
    """Without `model`: choice of the pairs: "random", or those on which the ensemble disagrees most."""
    memory: int = 200_000
    """Without `model`: env steps that are kept to ask about and to relabel, of all envs together; as many as the replay
    keeps, or older steps of the replay stay as they are."""
    keys: tuple[str, ...] = ()
    """Without `model`: observations that the reward reads; default: all that a robot can measure, pictures only where
    there is nothing else: each of the kept steps has its own."""
    wait_s: float = 60.0
    """Longest wait of an on-policy method for answers before its advantages, s."""
    labeler: LabelingCfg = field(default_factory=LabelingCfg)
    """Without `model`: who answers."""
    training: PreferenceTrainingCfg = field(default_factory=PreferenceTrainingCfg)
    """Without `model`: the ensemble and its training."""

    def check(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a setting is out of range.
        """
        check_number(f"{NAME}.pessimism", self.pessimism, 0.0, 100.0)
        check_number(f"{NAME}.offset", self.offset, -100.0, 100.0)
        if self.model is not None:
            return
        check_count(f"{NAME}.labels", self.labels, 1, 1_000_000, "a number of pairs")
        check_count(f"{NAME}.per_round", self.per_round, 1, 1_000_000, "a number of pairs")
        check_count(f"{NAME}.every_env_steps", self.every_env_steps, 1, 10**12, "env steps")
        check_count(f"{NAME}.memory", self.memory, 1, 10**9, "env steps")
        check_number(f"{NAME}.wait_s", self.wait_s, 0.0, LONGEST_S, "s")
        if self.pairs not in PAIR_CHOICES:
            raise unknown(f"{NAME}.pairs", str(self.pairs), PAIR_CHOICES)
        self.labeler.check(f"{NAME}.labeler")
        self.training.check(f"{NAME}.training")
        if self.labeler.by == "synthetic" and self.labeler.synthetic.truth == "regret":
            raise ConfigError(
                f"{NAME}.labeler.synthetic.truth is 'regret': expected 'return' while a run trains; true regrets are"
                " worked out on a dataset (robotrl reward train preferences)"
            )

    def build(self, sim: VecSim, setup: RewardSetup) -> FixedPreferences | OnlinePreferences:
        """Build the source.

        Raises:
            DataError: the model's files are missing or damaged, or the store of answers cannot be used.
            ConfigError: a setting is out of range, or the sim shows other observations than the model was trained on.
            CapabilityError: the labeler looks at pictures, and the sim has none.
        """
        from robotrl.rewards.preferences.source import build_source

        return build_source(replace(self, labeler=self.labeler.kept_in(setup.answers)), sim)
