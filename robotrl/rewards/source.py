"""Interface of reward sources: what scores the steps of a sim, all envs at once.

A source is one file: a frozen config whose `build` binds it to a sim, and the source itself. `robotrl.registry.REWARDS`
lists them by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.spec import Arrays, Step, VecSim


class Score(NamedTuple):
    """Scores of a source for the step that the envs have just made."""

    value: Tensor
    """(N,) float32 scores; arbitrary where not valid."""
    valid: Tensor
    """(N,) bool: False for a score that is late or cannot be computed; no sentinel numbers are used."""
    age: Tensor
    """(N,) int64, control steps since the scored step; 0 for a source without delay."""

    @staticmethod
    def of_now(value: Tensor, valid: Tensor | None = None) -> Score:
        """Scores (N,) without delay; `valid` None means that all are."""
        known = torch.ones_like(value, dtype=torch.bool) if valid is None else valid
        return Score(value.float(), known, torch.zeros_like(value, dtype=torch.int64))


class ReachedObs(Mapping[str, Tensor]):
    """Observations (N, ...) that a step reached, with the last ones of the episodes that it ended.

    An observation is put together when it is first read: a picture that no source looks at costs nothing.

    Args:
        step: the sim's step; valid until the next one.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._known: Arrays = {}

    def __getitem__(self, key: str) -> Tensor:
        """Observation (N, ...)."""
        if key not in self._known:
            found = self._step.obs[key]
            if len(self._step.final_ids) and key in self._step.final_obs:
                found = found.clone()
                found[self._step.final_ids] = self._step.final_obs[key]
            self._known[key] = found
        return self._known[key]

    def __iter__(self) -> Iterator[str]:
        """Keys."""
        return iter(self._step.obs)

    def __len__(self) -> int:
        """Number of observations."""
        return len(self._step.obs)


class SimTransition(NamedTuple):
    """One step of all envs, as reward sources see it. Sources read it and never write to it."""

    obs: Arrays
    """(N, ...) each: observations before the step."""
    action: Tensor
    """(N, A) actions of the step, in the units of `action_spec`, before the sim clips them."""
    reached: Mapping[str, Tensor]
    """(N, ...) each: observations after the step; of an episode that ended, its last one."""
    step: Step
    """The sim's own step. Its `terminated` and `truncated` include the ends that sources with `end_at` have caused."""


class RewardSource(Protocol):
    """Scores steps, all envs at once."""

    fallback: float
    """Reward for an invalid score."""
    end_at: float | None
    """An episode ends, as at a success, when a valid score reaches this; None leaves all ends to the sim."""
    sees_success: bool
    """True if scores are worth more where the episode succeeds, or an early end is worth something. Where no source of
    a run sees success, episodes go on after one (`HasSuccessHold`), or their end counts as truncated: the value of the
    state is bootstrapped. Else a source of scores above 0 would pay a policy for not arriving."""
    identity: str
    """Text that differs between sources with different scores: weights, threshold, settings."""

    def score(self, transition: SimTransition) -> Score:
        """Score a step; called exactly once for each step."""
        ...

    def forget(self, envs: Tensor) -> None:
        """Reset the state of the envs (N,) bool whose episodes are over; the sim is at the start of the next ones."""
        ...

    def state(self) -> dict[str, NDArray[np.generic]]:
        """State of running episodes, as named arrays, for an exact resume."""
        ...

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore the result of `state`."""
        ...


class LateScores(NamedTuple):
    """M scores that came after the step that they belong to."""

    back: Tensor
    """(M,) int64: number of steps that were scored since the step; 0 is the last one."""
    env: Tensor
    """(M,) int64."""
    change: Tensor
    """(M,) float32: the score, less the value that the step had, which is the fallback if it had none."""
    fresh: Tensor
    """(M,) bool: whether the step had no score before."""
    age: Tensor
    """(M,) int64, see `Score.age`: what was scored is so many steps older than the step."""

    @staticmethod
    def none() -> LateScores:
        """No scores."""
        none = torch.zeros(0, dtype=torch.int64)
        return LateScores(none, none, none.float(), none.bool(), none)


@runtime_checkable
class ReadsObs(Protocol):
    """A `RewardSource` that reads only some of the observations before the step, so that the others need no copy."""

    obs_keys: tuple[str, ...]
    """Their keys."""


@runtime_checkable
class LateRewardSource(Protocol):
    """A `RewardSource` whose scores may come later than their steps, e.g. from another process."""

    def late(self, wait_s: float | None = None) -> LateScores:
        """Scores that have come since the last call, each once, on the CPU.

        Args:
            wait_s: seconds to wait for those on their way; None: as long as the settings say.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Scalars to log, e.g. the length of a queue."""
        ...

    def close(self) -> None:
        """End what scores; the source is not used any more."""
        ...


@runtime_checkable
class Discounts(Protocol):
    """Settings of an algorithm that discounts rewards."""

    @property
    def gamma(self) -> float:
        """Discount per env step."""
        ...


class RewardSetup(NamedTuple):
    """Settings of a run that reward sources need besides the sim."""

    gamma: float = 1.0
    """Discount per env step of the algorithm; 1 for one that does not discount."""
    answers: str | None = None
    """Directory of the run in which sources keep answers that cost, where their settings name none; None outside a
    run."""

    @classmethod
    def of(cls, algo: object, answers: str | None = None) -> RewardSetup:
        """The setup of a run with these settings of its algorithm."""
        return cls(algo.gamma if isinstance(algo, Discounts) else 1.0, answers)


class RewardSourceCfg(Protocol):
    """Settings of a reward source: a frozen dataclass of JSON values."""

    def build(self, sim: VecSim, setup: RewardSetup) -> RewardSource:
        """Build the source for a sim, which it may ask for anything that the sim declares.

        Raises:
            ConfigError: a setting is out of range, or a learned source fell short when it was judged.
            CapabilityError: the sim lacks a capability that the source needs.
        """
        ...


class StatelessReward:
    """Base class of sources whose score depends on the step alone."""

    fallback = 0.0
    end_at: float | None = None
    sees_success = True

    def forget(self, envs: Tensor) -> None:
        """See `RewardSource.forget`."""

    def state(self) -> dict[str, NDArray[np.generic]]:
        """See `RewardSource.state`."""
        return {}

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See `RewardSource.load`."""


def contribution(score: Score, fallback: float) -> Tensor:
    """Return the float32 reward (N,) of a score: its value, or the source's fallback where it is invalid."""
    return score.value.masked_fill(~score.valid, fallback)
