"""Interventions by a sim's scripted expert, in place of a human, for tests and studies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from robotrl.errors import CapabilityError, ConfigError, check_at_least, check_positive, out_of_range
from robotrl.replay.corrections import Correction
from robotrl.spec import Arrays, HasDistance, HasExpert, VecSim

Distance = Callable[[], Tensor]
"""Function that returns (N,) the current distance of each env from success, m."""


class Criterion(Protocol):
    """Criterion to take over from the policy."""

    def __call__(self, started: Tensor, watched: Tensor) -> Tensor:
        """Return envs (N,) bool to take over now.

        Args:
            started: (N,) bool, envs at the first step of an episode.
            watched: (N,) bool, envs in which the policy made the last step; in the others, the criterion starts again.
        """
        ...


class Stalled:
    """Criterion of a stalled policy: for `steps` steps, the distance to success did not fall by `gain_m`.

    Args:
        distance: to success.
        steps: number of steps without progress, 1 or more.
        gain_m: decrease of the smallest distance so far that counts as progress, above 0.

    Raises:
        ConfigError: a setting out of range.
    """

    def __init__(self, distance: Distance, steps: int, gain_m: float) -> None:
        check_at_least("steps", steps, 1)
        check_positive("gain_m", gain_m)
        self._distance, self._steps, self._gain_m = distance, steps, gain_m
        self._best: Tensor | None = None
        self._idle = torch.zeros(0)

    def __call__(self, started: Tensor, watched: Tensor) -> Tensor:
        """See `Criterion`."""
        now = self._distance().clone()
        if self._best is None:
            self._best, self._idle = now, torch.zeros_like(now, dtype=torch.int64)
        anew = started | ~watched
        gained = anew | (now <= self._best - self._gain_m)
        self._best = torch.where(gained, now, self._best)
        self._idle = torch.where(gained, 0, self._idle + 1)
        return self._idle >= self._steps


class Drifted:
    """Criterion of a diverging policy: by `by_m` farther from success than the nearest point of this episode.

    Args:
        distance: to success.
        by_m: increase of the distance, above 0.

    Raises:
        ConfigError: a setting out of range.
    """

    def __init__(self, distance: Distance, by_m: float) -> None:
        check_positive("by_m", by_m)
        self._distance, self._by_m = distance, by_m
        self._best: Tensor | None = None

    def __call__(self, started: Tensor, watched: Tensor) -> Tensor:
        """See `Criterion`."""
        now = self._distance().clone()
        if self._best is None:
            self._best = now
        self._best = torch.where(started | ~watched, now, torch.minimum(now, self._best))
        return now > self._best + self._by_m


class AtRandom:
    """Criterion that takes over at any step with the same probability.

    Args:
        probability: per step, 0 to 1.
        seed: of the draw.

    Raises:
        ConfigError: a setting out of range.
    """

    def __init__(self, probability: float, seed: int = 0) -> None:
        if not 0 <= probability <= 1:
            raise out_of_range("probability", probability, "0 to 1")
        self._probability = probability
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, started: Tensor, watched: Tensor) -> Tensor:
        """See `Criterion`."""
        del watched
        return (torch.rand(len(started), generator=self._generator) < self._probability).to(started.device)


class ScriptedCorrector:
    """The sim's expert takes over by a criterion, and hands back after some steps; an `Intervention`.

    Args:
        sim: with a scripted expert.
        criteria: criteria to take over; any one of them suffices.
        steps: number of steps in command; None: until the episode ends.
        noise: of the expert.
        episode_noise: of the expert.
        seed: of the expert.

    Raises:
        CapabilityError: the sim has no expert.
        ConfigError: no criterion, or a setting out of range.
    """

    def __init__(
        self,
        sim: VecSim,
        criteria: Sequence[Criterion],
        *,
        steps: int | None = 20,
        noise: float = 0.0,
        episode_noise: float = 0.0,
        seed: int = 0,
    ) -> None:
        if not isinstance(sim, HasExpert):
            raise CapabilityError(f"sim {type(sim).__name__} lacks HasExpert: no script can take over")
        if not criteria:
            raise ConfigError("criteria is empty: expected at least one, or nobody ever takes over")
        if steps is not None and steps < 1:
            raise out_of_range("steps", steps, "1 or more, or None")
        self._expert = sim.make_expert(noise, episode_noise, None, seed)
        self._criteria = tuple(criteria)
        self._steps = steps
        self._left = torch.zeros(sim.num_envs, dtype=torch.int64, device=sim.device)
        self._taken = torch.zeros(sim.num_envs, dtype=torch.bool, device=sim.device)

    def __call__(self, obs: Arrays, action: Tensor, started: Tensor) -> Correction:
        """See `Intervention`."""
        del obs
        self._left[started] = 0
        wanted = torch.zeros_like(self._taken)
        for criterion in self._criteria:
            wanted |= criterion(started, ~self._taken)
        begun = wanted & (self._left == 0)
        # no time limit: more steps than any episode has
        self._left[begun] = torch.iinfo(torch.int64).max if self._steps is None else self._steps
        # an expert may be in the middle of its own plan, which the policy did not follow
        corrected = self._expert.act(started | begun)
        taken = self._taken = self._left > 0
        self._left[taken] -= 1
        return Correction(torch.where(taken[:, None], corrected.to(action), action), taken)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def distance_of(sim: Any) -> Distance:
    """Return the function that measures each env's distance from success.

    Raises:
        CapabilityError: the sim does not know.
    """
    if not isinstance(sim, HasDistance):
        raise CapabilityError(f"sim {type(sim).__name__} lacks HasDistance: progress cannot be watched")
    return sim.distance
