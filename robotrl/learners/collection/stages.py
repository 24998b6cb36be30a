"""Stages of a run that learns, collects and fits in turn, as GoRL does (2512.02581)."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

from torch import Tensor

from robotrl.errors import ConfigError

Phase = Literal["ppo", "collect", "fit"]


class StageSegment(NamedTuple):
    """Consecutive iterations of one phase of a stage."""

    phase: Phase
    stage: int
    """Number of the stage, from 0."""
    iterations: int


def plan(rollouts: int, collections: int, fits: int, shares: tuple[float, ...]) -> tuple[StageSegment, ...]:
    """Phases of all stages, in order: PPO, then, except in the last stage, collection and fit.

    Args:
        rollouts: iterations with env steps of the whole run, collections included.
        collections: iterations of each collection.
        fits: iterations of each fit.
        shares: relative lengths of the stages' PPO.

    Raises:
        ConfigError: too few iterations for PPO in each stage.
    """
    learning = rollouts - collections * (len(shares) - 1)
    edges = [round(learning * sum(shares[:stage]) / sum(shares)) for stage in range(len(shares) + 1)]
    out: list[StageSegment] = []
    for stage in range(len(shares)):
        count = edges[stage + 1] - edges[stage]
        if count < 1:
            raise ConfigError(
                f"algo.env_steps is enough for {rollouts} iterations, {collections} of each collection: expected more,"
                f" or fewer stages, so that each of {len(shares)} has one of PPO"
            )
        out.append(StageSegment("ppo", stage, count))
        if stage < len(shares) - 1:
            out += [StageSegment("collect", stage, collections), StageSegment("fit", stage, fits)]
    return tuple(out)


class StagePosition(NamedTuple):
    """Place of an iteration in the plan."""

    phase: Phase
    stage: int
    number: int
    """Number of the iteration within its phase, from 0."""
    last: bool
    """True for the last iteration of the phase."""


def position(segments: tuple[StageSegment, ...], iteration: int) -> StagePosition:
    """Place of an iteration, counted from 0; after the plan's end PPO goes on."""
    for phase, stage, count in segments:
        if iteration < count:
            return StagePosition(phase, stage, iteration, iteration == count - 1)
        iteration -= count
    return StagePosition("ppo", segments[-1].stage, iteration, last=False)


class SwitchDrop:
    """Mean return of episodes before a switch of the decoder less that after it.

    Before: the episodes that end in the collection. After: the first ones that end after the switch, `count` or more;
    all of them began after it.

    Args:
        count: number of episodes after the switch.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._before: list[float] = []
        self._after: list[float] = []
        self._waits = False

    def collected(self, returns: Tensor) -> None:
        """Add the returns (E,) of episodes before the switch; NaN is unknown."""
        if self._waits:
            # too few episodes ended since the switch before
            self._before, self._waits = [], False
        self._before += returns[returns.isfinite()].tolist()

    def switched(self) -> None:
        """Begin to count episodes after the switch."""
        self._after, self._waits = [], True

    def seen(self, returns: Tensor) -> dict[str, float]:
        """Add the returns (E,) of episodes after the switch; returns the scalar once there are enough of them."""
        if not self._waits:
            return {}
        self._after += returns[returns.isfinite()].tolist()
        if len(self._after) < self._count:
            return {}
        before, after = self._before, self._after
        self._before, self._after, self._waits = [], [], False
        return {"switch_drop": math.fsum(before) / len(before) - math.fsum(after) / len(after)} if before else {}

    def state(self) -> dict[str, Any]:
        """State for an exact resume."""
        return {"before": self._before, "after": self._after, "waits": self._waits}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        self._before, self._after, self._waits = list(state["before"]), list(state["after"]), bool(state["waits"])
