"""Rewards that are known some steps after the step that they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


MISSING = "reward_missing"
"""Entry of `Step.info` of a sim with late rewards: (N,) uint8 number of sources that have no score for the step, yet or
at all. The reward of such a step is not known: nothing is learned from it."""


class LateRewards(NamedTuple):
    """M changes of rewards that a sim's steps had; the changes of one step add up."""

    back: Tensor
    """(M,) int64: number of steps since the step that it belongs to; 0 is the last one."""
    env: Tensor
    """(M,) int64."""
    change: Tensor
    """(M,) float32: to be added to the step's reward."""
    fresh: Tensor
    """(M,) bool: it is the first score of a source for the step, see `MISSING`."""


@runtime_checkable
class HasLateRewards(Protocol):
    """A sim whose rewards may be late: a step has a preliminary reward, and each change is given once.

    `Step.info` has `MISSING`.
    """

    def late_rewards(self, wait: bool) -> LateRewards:
        """Changes since the last call.

        Args:
            wait: whether to wait, for a bounded time, for those that are on their way.
        """
        ...

    def lost_late_rewards(self, count: int) -> None:
        """Count changes whose steps were no longer there when they came."""
        ...
