"""Learned process reward with its held-out verdict: a network that predicts the progress of each observation.

VLA-RL (Lu et al. 2025, 2505.18719) adds the progress predicted by a small vision-language model to the sparse reward.
`robotrl.rewards.process_training` trains one from demonstrations and failures, `robotrl.rewards.process_stored` saves
it to a file, `robotrl.rewards.process` is the reward source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from robotrl.errors import ConfigError
from robotrl.fn.stats import Interval
from robotrl.rewards.network import RewardNet, check_shown
from robotrl.spec import VecSim


@dataclass(frozen=True)
class AcceptanceThresholds:
    """Thresholds on held-out episodes that a process reward must reach before a run may use it."""

    min_rank: float = 0.6
    """Minimum rank correlation of progress with time in successful episodes, -1 to 1."""
    min_separation: float = 0.7
    """Minimum probability that a success's last frame has a higher progress than a failure's, 0 to 1."""
    max_error: float = 0.15
    """Maximum calibration error of the predicted progress, 0 to 1."""


class HeldOutVerdict(NamedTuple):
    """Metrics of a process reward on held-out episodes."""

    rank: Interval
    """Rank correlation of progress with time, mean over the successful episodes."""
    separation: float | None
    """Probability that a success's last frame has a higher progress than a failure's; None without failures."""
    error: float
    """Expected calibration error over all frames."""
    failures: int
    """Number of held-out failures."""
    bar: AcceptanceThresholds

    def shortcomings(self) -> tuple[str, ...]:
        """Return the unmet thresholds, one sentence each."""
        found: list[str] = []
        if not self.rank.value >= self.bar.min_rank:
            found.append(f"its rank correlation with time is {self.rank.value:.2f}: expected {self.bar.min_rank:g}")
        if self.separation is not None and not self.separation >= self.bar.min_separation:
            found.append(f"its separation of failures is {self.separation:.2f}: expected {self.bar.min_separation:g}")
        if not self.error <= self.bar.max_error:
            found.append(f"its calibration error is {self.error:.3f}: expected at most {self.bar.max_error:g}")
        return tuple(found)


class ProcessReward(NamedTuple):
    """A process reward with its held-out metrics."""

    net: RewardNet
    verdict: HeldOutVerdict
    about: dict[str, str | int | float]
    """Origin: datasets, updates, seed."""
    identity: str
    """Hexadecimal SHA-256 of weights and metrics."""


def check_usable(reward: ProcessReward, sim: VecSim, name: str) -> None:
    """Check that a process reward may be used, and is for the sim.

    Args:
        reward: the process reward.
        sim: the sim whose observations it will get.
        name: name of the setting, for errors.

    Raises:
        ConfigError: it is below its thresholds, or was trained on other observations.
    """
    check_shown("process reward", reward.net.observation_spec, sim)
    short = reward.verdict.shortcomings()
    if short:
        raise ConfigError(
            f"{name} fell short when it was judged: {'; '.join(short)}. More demonstrations or failures may help"
        )
