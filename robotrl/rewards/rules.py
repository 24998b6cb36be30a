"""Rule terms: small standard regularizers that work on every sim.

Penalties have values of 0 or less, so that a positive weight says how strong they are. Actions are measured by their
bounds, as the sim clips them; an element without finite bounds keeps its unit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import CapabilityError
from robotrl.rewards.source import RewardSetup, Score, SimTransition, StatelessReward
from robotrl.spec import VecSim


@dataclass(frozen=True)
class ActionRateCfg:
    """Penalty of jerky actions: minus the mean squared change from the last action; 1 is half of the range."""

    def build(self, sim: VecSim, setup: RewardSetup) -> ActionRate:
        """Build the source.

        Raises:
            CapabilityError: the sim's actions are choices.
        """
        return ActionRate(sim)


@dataclass(frozen=True)
class ActionSizeCfg:
    """Penalty of effort: minus the mean square of the action; 1 is the largest that the robot can do."""

    def build(self, sim: VecSim, setup: RewardSetup) -> ActionSize:
        """Build the source.

        Raises:
            CapabilityError: the sim's actions are choices.
        """
        return ActionSize(sim)


@dataclass(frozen=True)
class AliveCfg:
    """1 for each step that does not end the episode by a failure, for tasks that ask to go on."""

    def build(self, sim: VecSim, setup: RewardSetup) -> Alive:
        """Build the source."""
        return Alive()


@dataclass(frozen=True)
class StepPenaltyCfg:
    """-1 for each step, for tasks that ask for haste."""

    def build(self, sim: VecSim, setup: RewardSetup) -> StepPenalty:
        """Build the source."""
        return StepPenalty()


class ActionLimits:
    """Bounds of a sim's actions.

    Args:
        sim: the sim.
        name: name of the source, for errors.

    Raises:
        CapabilityError: the sim's actions are choices.
    """

    def __init__(self, sim: VecSim, name: str) -> None:
        spec = sim.action_spec
        if spec.choices:
            raise CapabilityError(
                f"reward {name!r} needs actions that are numbers, and those of sim {type(sim).__name__} are choices"
            )
        self._low, self._high = (torch.tensor(x, dtype=torch.float32, device=sim.device) for x in (spec.low, spec.high))
        bounded = torch.isfinite(self._low) & torch.isfinite(self._high) & (self._high > self._low)
        one = torch.ones_like(self._low)
        self.half_range = torch.where(bounded, (self._high - self._low) / 2, one)
        """(A,) half of the distance between the bounds."""
        self.largest = torch.where(bounded, torch.maximum(self._low.abs(), self._high.abs()), one)
        """(A,) largest magnitude."""

    def clipped(self, action: Tensor) -> Tensor:
        """Actions (N, A) as the sim clips them."""
        return torch.maximum(torch.minimum(action.float(), self._high), self._low)


class ActionRate:
    """Minus the mean squared change of the action, in halves of its range; a `RewardSource`.

    The first step of an episode has no action before it: its score is invalid.
    """

    fallback = 0.0
    end_at: float | None = None
    sees_success = False
    identity = "action-rate"

    def __init__(self, sim: VecSim) -> None:
        self._bounds = ActionLimits(sim, self.identity)
        self._before = torch.zeros(sim.num_envs, *sim.action_spec.shape, device=sim.device)
        self._known = torch.zeros(sim.num_envs, dtype=torch.bool, device=sim.device)

    def score(self, transition: SimTransition) -> Score:
        """See `RewardSource.score`."""
        now = self._bounds.clipped(transition.action) / self._bounds.half_range
        score = Score.of_now(-(now - self._before).square().mean(dim=1), self._known)
        self._before, self._known = now, torch.ones_like(self._known)
        return score

    def forget(self, envs: Tensor) -> None:
        """See `RewardSource.forget`."""
        self._known = self._known & ~envs

    def state(self) -> dict[str, NDArray[np.generic]]:
        """See `RewardSource.state`."""
        return {"before": self._before.cpu().numpy().copy(), "known": self._known.cpu().numpy().copy()}

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See `RewardSource.load`."""
        self._before = torch.from_numpy(state["before"].copy()).to(self._before.device)
        self._known = torch.from_numpy(state["known"].copy()).to(self._known.device)


class ActionSize(StatelessReward):
    """Minus the mean square of the action, in parts of its largest magnitude."""

    sees_success = False
    identity = "action-size"

    def __init__(self, sim: VecSim) -> None:
        self._bounds = ActionLimits(sim, self.identity)

    def score(self, transition: SimTransition) -> Score:
        """See `RewardSource.score`."""
        size = self._bounds.clipped(transition.action) / self._bounds.largest
        return Score.of_now(-size.square().mean(dim=1))


class Alive(StatelessReward):
    """1 unless the step ended the episode by a failure, then 0."""

    sees_success = False
    identity = "alive"

    def score(self, transition: SimTransition) -> Score:
        """See `RewardSource.score`."""
        step = transition.step
        return Score.of_now((~step.terminated | step.info["success"]).float())


class StepPenalty(StatelessReward):
    """-1 for each step."""

    identity = "step-penalty"

    def score(self, transition: SimTransition) -> Score:
        """See `RewardSource.score`."""
        return Score.of_now(torch.full_like(transition.step.reward, -1.0))
