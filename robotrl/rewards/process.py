"""Learned process reward: predicts the progress of each observation and adds it to the reward.

VLA-RL (Lu et al. 2025, 2505.18719) adds the progress predicted by a small vision-language model to the sparse reward.
`robotrl.rewards.process_training` trains one from demonstrations and failures, `robotrl.rewards.process_stored` saves
it to a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from robotrl.errors import ConfigError, check_number, unknown
from robotrl.fn.progress.shaping import potential_term, raw_term
from robotrl.fn.stats import Interval
from robotrl.rewards.network import RewardNet, check_shown
from robotrl.rollout.storage import Rollout
from robotrl.spec import Arrays, VecSim

Form = Literal["potential", "raw"]
FORMS: tuple[Form, ...] = ("potential", "raw")


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


class Term(NamedTuple):
    """Reward term of a process reward for a rollout's decisions."""

    reward: Tensor
    """(M, N) scaled reward; 0 where a decision is not valid."""
    progress: Tensor
    """(M, N) progress in [0, 1] of the decisions' observations; 0 where not valid."""


class ProcessTerm:
    """Adds a process reward to each decision of a rollout.

    Args:
        reward: the process reward with its held-out metrics.
        sim: the sim whose observations it will get.
        form: "potential" keeps the optimal policy, "raw" is the progress itself; see `robotrl.fn.progress.shaping`.
        scale: factor of the term.
        gamma: the learner's discount per env step: with another one, the potential form would not telescope.
        name: name of the setting, for errors.

    Raises:
        ConfigError: a setting out of range, a reward below its thresholds, or a sim with other observations than it was
            trained on.
    """

    def __init__(
        self, reward: ProcessReward, sim: VecSim, form: Form, scale: float, gamma: float, name: str = "process_reward"
    ) -> None:
        if form not in FORMS:
            raise unknown(name.replace("reward", "form"), str(form), FORMS)
        check_number(name.replace("reward", "scale"), scale, 1e-6, 1e3)
        check_shown("process reward", reward.net.observation_spec, sim)
        short = reward.verdict.shortcomings()
        if short:
            raise ConfigError(
                f"{name} fell short when it was judged: {'; '.join(short)}. More demonstrations or failures may help"
            )
        self.reward = reward._replace(net=reward.net.to(sim.device))
        self._form: Form = form
        self._scale, self._gamma = scale, gamma

    def term(self, rollout: Rollout) -> Term:
        """Compute the term of each decision; see `Rollout`."""
        now, after = (self._progress(obs, rollout.valid) for obs in (rollout.obs, rollout.next_obs))
        if self._form == "raw":
            added = raw_term(after, self._gamma, rollout.length)
        else:
            discount = self._gamma ** rollout.length.to(now.dtype)
            added = potential_term(now, after, discount, rollout.terminated)
        return Term(self._scale * added.masked_fill(~rollout.valid, 0.0), now)

    def _progress(self, obs: Arrays, valid: Tensor) -> Tensor:
        found = torch.zeros(valid.shape, dtype=torch.float32, device=valid.device)
        if valid.any():
            shown = {key: obs[key][valid] for key in self.reward.net.observation_spec}
            found[valid] = self.reward.net.probability(shown).float()
        return found
