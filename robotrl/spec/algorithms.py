"""Contract of an algorithm's settings: what is asked of them before a learner is built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

TrainDefaults = MappingProxyType[str, Any]
"""Settings of training that suit an algorithm or a sim: config field ("evaluation.score") to its value."""


class MemoryNeeds(NamedTuple):
    """Determinants of the memory of an algorithm's updates, besides the policy."""

    minibatch: int | None = None
    """Rows of an update, over all processes; None: unknown, so that nothing is estimated."""
    microbatch: int | None = None
    """Rows per forward and backward pass; None: the whole minibatch."""
    splits: bool = False
    """True if the algorithm has the setting `microbatch`."""
    num_steps: int | None = None
    """Env steps per env that are stored at a time; None: it stores a dataset."""
    averages: bool = False
    """True if averaged (EMA) weights are kept."""
    bf16: bool | None = None
    """True if networks compute in bfloat16; None: the algorithm has no such setting."""
    frames_per_row: int = 1
    """Observations that a row of a minibatch holds."""


class LearnerCfg(ABC):
    """Base of all settings of algorithms, which are frozen dataclasses of JSON values."""

    chooses: ClassVar[bool] = False
    """True if the algorithm supports discrete (categorical) actions."""
    recurrent: ClassVar[bool] = False
    """True if the algorithm trains policies with memory (`robotrl.spec.HasMemory`)."""
    clusters: ClassVar[bool] = False
    """True if its rollouts, or the steps of its replay, may be collected by several workers
    (`robotrl.config.ClusterCfg`)."""
    corrects_staleness: ClassVar[bool] = False
    """True if it learns from rollouts of an older policy (`ClusterCfg.max_staleness`): its loss corrects for them, or
    it has a replay, and learns from those of any policy."""
    train_defaults: ClassVar[TrainDefaults] = TrainDefaults({})
    """Settings of training that suit it, where no preset says otherwise; fields that a config lacks are left out."""

    def trains_memory(self, policy: Any) -> bool:
        """Return True if it trains this policy, or one of this config, which has a memory."""
        del policy
        return self.recurrent

    @property
    def reads_rewards(self) -> bool:
        """True if it learns from the sim's rewards, not only from success or from a dataset."""
        return True

    @property
    def memory(self) -> MemoryNeeds:
        """Quantities for the memory estimate."""
        return MemoryNeeds()

    def beside(self, policy: Any) -> list[Any]:
        """Return networks that are kept in addition to a policy: copied from it, or paths of stored ones."""
        del policy
        return []

    def check(self) -> None:  # noqa: B027  # most have something to check, none must
        """Check values that are invalid with every sim and policy, before anything is built.

        Raises:
            ConfigError: the field, its value and what was expected.
        """

    @abstractmethod
    def build(self, setup: Any) -> Any:
        """Build the learner (`robotrl.learners.learner.Learner`) from its `Setup`, ready for its first iteration."""
        ...
