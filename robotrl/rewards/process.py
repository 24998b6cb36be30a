"""A learned process reward: how far along each observation is, what is known of its errors, and what it adds.

VLA-RL (Lu et al. 2025, 2505.18719) adds what a small vision-language model says of the progress to the sparse reward.
`robotrl.rewards.process_training` makes one from demonstrations and failures, `robotrl.rewards.process_stored` keeps it
in a file.
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
    """What a process reward must reach on held-out episodes before a run may use it."""

    min_rank: float = 0.6
    """Least rank correlation of progress with time in successful episodes, -1 to 1."""
    min_separation: float = 0.7
    """Least chance that a success's last frame is said to be farther than a failure's, 0 to 1."""
    max_error: float = 0.15
    """Largest mean distance between the progress that is said and that of the labels, 0 to 1."""


class HeldOutVerdict(NamedTuple):
    """What was found on held-out episodes."""

    rank: Interval
    """Rank correlation of progress with time, the mean over the successful episodes."""
    separation: float | None
    """Chance that a success's last frame is said to be farther than a failure's; None without failures."""
    error: float
    """Expected calibration error over all frames."""
    failures: int
    """Held-out episodes that failed."""
    bar: AcceptanceThresholds

    def shortcomings(self) -> tuple[str, ...]:
        """What falls short of the bar, each in words."""
        found: list[str] = []
        if not self.rank.value >= self.bar.min_rank:
            found.append(f"its rank correlation with time is {self.rank.value:.2f}: expected {self.bar.min_rank:g}")
        if self.separation is not None and not self.separation >= self.bar.min_separation:
            found.append(f"its separation of failures is {self.separation:.2f}: expected {self.bar.min_separation:g}")
        if not self.error <= self.bar.max_error:
            found.append(f"its calibration error is {self.error:.3f}: expected at most {self.bar.max_error:g}")
        return tuple(found)


class ProcessReward(NamedTuple):
    """A process reward that was judged."""

    net: RewardNet
    verdict: HeldOutVerdict
    about: dict[str, str | int | float]
    """Where it comes from: datasets, updates, seed."""
    identity: str
    """Hexadecimal SHA-256 of weights and verdict."""


class Term(NamedTuple):
    """What a process reward adds to a rollout's decisions."""

    reward: Tensor
    """(M, N), scaled; 0 where a decision is not valid."""
    progress: Tensor
    """(M, N) in [0, 1] of the observations of the decisions; 0 where not valid."""


class ProcessTerm:
    """What a process reward adds to each decision of a rollout.

    Args:
        reward: judged.
        sim: whose observations it will be shown.
        form: "potential" keeps the optimum, "raw" is the progress as it is; see `robotrl.fn.progress.shaping`.
        scale: of the term.
        gamma: discount of an env step, the learner's own: with another one the potential form would not telescope.
        name: of the setting that asks for it, for errors.

    Raises:
        ConfigError: a setting out of range, a reward that fell short of its bar, or a sim that does not show what it
            was trained on.
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
        """The term of each decision; see `Rollout`."""
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
