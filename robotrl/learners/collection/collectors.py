"""Collectors of a learner's rollouts, and the factory that a run chooses them by.

`ActingCollector` steps the learner's own sim. Others, e.g. those of `robotrl.cluster`, divide the envs over workers.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.learners.collection.acting import EpisodesActing, RolloutActing, StepsActing
from robotrl.replay.buffer import StepRecord
from robotrl.replay.layout import STEP, ReplayLayout
from robotrl.rollout.collector import Collector, Decision
from robotrl.rollout.groups import LOG_PROB, GroupCollector, Trajectories
from robotrl.rollout.storage import Rollout
from robotrl.spec import Arrays, VecSim
from robotrl.spec.late_rewards import LateRewards

STEP_VERSION = STEP + "version"
"""Replay column of the version of the policy that decided a step, where workers collect."""


class RolloutCollector(Protocol):
    """Collects the rollouts of an on-policy learner; also a `Stepper`, and a part of its state."""

    remote: bool
    """See `Stepper`."""

    @property
    def env_steps(self) -> int:
        """Env steps taken so far."""
        ...

    @property
    def sim_s(self) -> float:
        """Seconds spent inside the sim so far."""
        ...

    def rollout(self, steps: int) -> Rollout:
        """Take `steps` steps in every env with the learner's policy as it is now, or was some updates ago.

        Raises:
            NumericsError: the sim gave a reward or observation that is not finite; env, step and field are named.
        """
        ...

    @property
    def staleness(self) -> int:
        """Number of updates by which the policy of the last rollout was older than the learner's."""
        ...

    def scalars(self) -> dict[str, float]:
        """Return the scalars to log of the last rollout's collection."""
        ...

    def state(self) -> dict[str, Any]:
        """State for an exact resume."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        ...

    def close(self) -> None:
        """Close the sim."""
        ...


class ActingCollector(Collector):
    """Collector that steps the learner's own sim with the learner's policy.

    Args:
        sim: the sim.
        acting: the policy.
        gamma: discount of each env step.
        generator: random generator of the samples.
    """

    staleness = 0
    """See `RolloutCollector`."""

    def __init__(self, sim: VecSim, acting: RolloutActing, gamma: float, generator: torch.Generator) -> None:
        super().__init__(sim, acting.horizon, gamma)
        self._acting, self._generator = acting, generator

    def decide(self, obs: Arrays) -> Decision:
        """Sample chunks for the envs that are due."""
        return self._acting.decide(obs, self._generator, self)

    def rollout(self, steps: int) -> Rollout:
        """See `RolloutCollector`."""
        return self.collect(self.decide, steps)

    def scalars(self) -> dict[str, float]:
        """See `RolloutCollector`."""
        return {}


class EpisodesCollector(Protocol):
    """Collects whole episodes in groups for a group-relative learner; also a `Stepper`, and a part of its state."""

    remote: bool
    """See `Stepper`."""

    @property
    def env_steps(self) -> int:
        """Env steps taken so far."""
        ...

    @property
    def sim_s(self) -> float:
        """Seconds spent inside the sim so far."""
        ...

    def episodes(self) -> Trajectories:
        """Run one episode in each env with the learner's policy, from starts that are drawn; groups are in order.

        Raises:
            NumericsError: a reward or an observation of the sim is not finite.
        """
        ...

    def scalars(self) -> dict[str, float]:
        """Return the scalars to log of the last episodes' collection."""
        ...

    def state(self) -> dict[str, Any]:
        """State for a resume between two rollouts."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        ...

    def close(self) -> None:
        """Close the sim."""
        ...


class ActingGroups(GroupCollector):
    """Group collector that steps the learner's own sim with the learner's policy.

    Args:
        sim: the sim.
        acting: the policy.
        size: group size G.
        seed: seed of the sampling of starts.
        generator: random generator of the samples.

    Raises:
        CapabilityError: see `GroupCollector`.
        ConfigError: see `GroupCollector`.
    """

    def __init__(self, sim: VecSim, acting: EpisodesActing, size: int, seed: int, generator: torch.Generator) -> None:
        super().__init__(sim, size, seed)
        self._acting, self._generator = acting, generator

    def decide(self, obs: Arrays, rows: Tensor) -> Decision:
        """Sample chunks for envs `rows` (n,)."""
        return self._acting.decide(obs, rows, self._generator)

    def episodes(self) -> Trajectories:
        """See `EpisodesCollector`."""
        self._acting.begin(self.sim.num_envs, self._generator)
        return self.collect(self.decide, self.draw())

    def scalars(self) -> dict[str, float]:
        """See `EpisodesCollector`."""
        return {}


class BehaviorGroups(ActingGroups):
    """Group collector whose decisions also have their log-probabilities under the policy that acted, in `LOG_PROB`.

    They take a forward pass of the policy over all decisions, after the episodes: which actions of a chunk were
    executed is known only then, and they are computed as in the loss.
    """

    def episodes(self) -> Trajectories:
        """See `EpisodesCollector`."""
        found = super().episodes()
        return found._replace(record={**found.record, LOG_PROB: self._acting.log_prob(found)})


class Collectors(Protocol):
    """Factory of the collectors of a run."""

    def rollouts(
        self, sim: VecSim, acting: RolloutActing, gamma: float, seed: int, generator: torch.Generator
    ) -> RolloutCollector:
        """Make the collector of an on-policy learner's rollouts; its sim is reset.

        Args:
            sim: the learner's sim, which belongs to the collector from here on.
            acting: the policy.
            gamma: discount of each env step.
            seed: seed of the episodes.
            generator: the learner's random generator.

        Raises:
            RobotrlError: workers cannot be started.
        """
        ...

    def groups(
        self, sim: VecSim, acting: EpisodesActing, size: int, seed: int, generator: torch.Generator
    ) -> EpisodesCollector:
        """Make the collector of a group-relative learner's episodes; see `rollouts`.

        Args:
            sim: the learner's sim, which belongs to the collector from here on.
            acting: the policy.
            size: group size G.
            seed: seed of the sampling of starts.
            generator: the learner's random generator.

        Raises:
            CapabilityError: the sim's starts are not numbered.
            ConfigError: the number of envs is not a multiple of the group size.
            RobotrlError: workers cannot be started.
        """
        ...


class OwnSim:
    """Factory of collectors that step the learner's own sim."""

    def rollouts(
        self, sim: VecSim, acting: RolloutActing, gamma: float, seed: int, generator: torch.Generator
    ) -> ActingCollector:
        """See `Collectors`."""
        made = ActingCollector(sim, acting, gamma, generator)
        made.reset(seed, {"stagger": True})
        return made

    def groups(
        self, sim: VecSim, acting: EpisodesActing, size: int, seed: int, generator: torch.Generator
    ) -> ActingGroups:
        """See `Collectors`."""
        return ActingGroups(sim, acting, size, seed, generator)


class StepBatch(NamedTuple):
    """Env steps of some envs for a replay."""

    records: list[StepRecord]
    """The steps in order; their extras have `STEP_VERSION`."""
    episodes: Any
    """(E,) bool: see `Collected`."""
    returns: Any
    """(E,): see `Collected`."""
    late: LateRewards
    """Changes of the rewards of steps of earlier batches; `back` counts from the last record."""
    cut: tuple[int, ...]
    """Envs whose steps do not follow those of the batch before."""

    def versions(self) -> NDArray[np.int64]:
        """(steps * N,) version of the policy that decided each step."""
        return np.concatenate([np.asarray(record.extras[STEP_VERSION]) for record in self.records]).astype(np.int64)


class StepsCollector(Protocol):
    """Collects env steps for a learner with a replay; a part of its state."""

    @property
    def env_steps(self) -> int:
        """Env steps of the batches that were handed over."""
        ...

    @property
    def sim_s(self) -> float:
        """Seconds spent inside the sim so far."""
        ...

    def steps(self, steps: int) -> StepBatch:
        """Return the next `steps` steps of every env, with tensors on the CPU.

        Raises:
            NumericsError: a reward or an observation of the sim is not finite.
            RobotrlError: workers are lost more often than allowed.
        """
        ...

    def scalars(self) -> dict[str, float]:
        """Return the scalars to log of the last batch's collection."""
        ...

    def state(self) -> dict[str, Any]:
        """State for an exact resume."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        ...

    def close(self) -> None:
        """Close the sims."""
        ...


@runtime_checkable
class StepsCollectors(Protocol):
    """Factory of collectors that step other sims than the learner's own for a replay."""

    def steps(
        self,
        sim: VecSim,
        acting: StepsActing,
        layout: ReplayLayout,
        gamma: float,
        seed: int,
        generator: torch.Generator,
    ) -> StepsCollector:
        """Make the collector of a replay's steps; its sims are reset.

        Args:
            sim: the learner's sim, which belongs to the collector from here on.
            acting: the policy.
            layout: layout of the replay.
            gamma: discount of each env step.
            seed: seed of the episodes.
            generator: the learner's random generator.

        Raises:
            RobotrlError: workers cannot be started.
        """
        ...
