"""Collects the rollouts of a learner in shards, and hands them over as one.

Each shard has a fixed part of the envs, a seed and a random generator of its own. So the numbers depend on the number
of shards, and not on where or in which order they are stepped. With staleness L, the rollout of iteration i is always
collected by version max(1, i - L) of the policy: this does not depend on time either.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from robotrl.cluster.merging import joined_episodes, joined_rollouts, joined_steps
from robotrl.cluster.scalars import ClusterScalars
from robotrl.cluster.shard import ShardRollout
from robotrl.cluster.steps import VERSION, StepBatch
from robotrl.cluster.weights import PublishedWeights, WeightPublisher
from robotrl.errors import RobotrlError
from robotrl.learners.collection.acting import EpisodesActing, RolloutActing, StepsActing
from robotrl.rollout.groups import Trajectories
from robotrl.rollout.storage import Rollout


class ShardRunner(Protocol):
    """Runs the shards of a collector; an order goes to all of them."""

    restarts: int
    """Number of shards that were replaced so far."""
    lost_rollouts: int
    """Number of rollouts that began and were lost with a worker."""
    weights_bytes: int
    """Bytes of weights that were sent so far, summed over shards."""

    @property
    def shared(self) -> int:
        """Number of shards that are stepped by another one's worker, because the cluster has no room for theirs."""
        ...

    def submit(self, weights: PublishedWeights, steps: int, random: Any, before: int) -> None:
        """Order a rollout; returns before it is collected where shards run elsewhere.

        Args:
            weights: the policy that acts.
            steps: steps in every env.
            random: state of the random generator of the first shard; None: its own.
            before: env steps of the run before this rollout, summed over shards.
        """
        ...

    def take(self) -> list[ShardRollout]:
        """Return the rollouts of the oldest order, one of each shard.

        Raises:
            RobotrlError: a shard reported an error, or was lost more often than allowed.
        """
        ...

    def states(self) -> list[dict[str, Any]]:
        """States of the shards after the rollouts that were taken."""
        ...

    def load(self, states: list[dict[str, Any]]) -> None:
        """Restore the result of `states`; what was ordered and not taken is dropped."""
        ...

    def restart(self, seed: int) -> None:
        """Begin new episodes and random streams in all shards; what was ordered and not taken is dropped.

        Args:
            seed: seed of the first shard; see `shard_seed`.
        """
        ...

    def close(self) -> None:
        """Close all sims."""
        ...


class _Ordered(NamedTuple):
    """A rollout that was ordered and not taken."""

    version: int
    env_steps: int
    """Env steps of all shards; 0 for whole episodes."""


class ShardedCollector:
    """Gathers what shards collect: the common part of `ShardedRollouts`, `ShardedEpisodes` and `ShardedSteps`.

    Args:
        runner: runs the shards.
        num_envs: number of envs, of all shards.
        acting: the learner's policy.
        generator: the learner's random generator; without staleness the first shard samples with it, so that one shard
            gives the same numbers as none.
        device: device of the rollouts.
        max_staleness: L.
    """

    remote = False
    """See `Stepper`."""

    def __init__(
        self,
        runner: ShardRunner,
        num_envs: int,
        acting: RolloutActing | EpisodesActing | StepsActing,
        generator: torch.Generator,
        device: torch.device,
        max_staleness: int,
    ) -> None:
        self._runner, self._num_envs, self._acting, self._generator = runner, num_envs, acting, generator
        self._device, self._lead = device, max_staleness
        self._publisher = WeightPublisher()
        self._ordered = deque[_Ordered]()
        self._scalars = ClusterScalars()
        self._last, self._mean_staleness = 0, math.nan
        self.env_steps = 0
        """Env steps of the rollouts that were handed over."""
        self.sim_s = 0.0
        """Seconds inside the sims' steps, mean over shards."""
        self.staleness = 0
        """See `RolloutCollector`."""

    @property
    def network(self) -> nn.Module:
        """The module whose weights are sent."""
        return self._acting.network

    def gather(self, steps: int) -> list[ShardRollout]:
        """Return the next rollout of each shard.

        Args:
            steps: steps in every env.

        Raises:
            RobotrlError: see `ShardRunner.take`; or a shard acted with other weights than it was told to.
        """
        began = time.perf_counter()
        weights = self._publisher.publish(self._acting.network, self._acting.settings())
        while len(self._ordered) <= self._lead:
            random = None if self._lead else self._generator.get_state().numpy()
            before = self.env_steps + sum(order.env_steps for order in self._ordered)
            self._runner.submit(weights, steps, random, before)
            self._ordered.append(_Ordered(weights.version, steps * self._num_envs))
        published = time.perf_counter()
        parts = self._runner.take()
        version = self._ordered.popleft().version
        found = [self._decided_by(shard, part, version) for shard, part in enumerate(parts)]
        if not self._lead:
            self._generator.set_state(torch.from_numpy(np.array(parts[0].random)))
        self.staleness, self._last = weights.version - version, version
        self._mean_staleness = float((weights.version - np.concatenate(found)).mean())
        self.env_steps += sum(part.env_steps for part in parts)
        self.sim_s += sum(part.sim_s for part in parts) / len(parts)
        self._scalars.add(parts, began, published, time.perf_counter())
        return parts

    def _decided_by(self, shard: int, part: ShardRollout, version: int) -> NDArray[np.int64]:
        """Versions of the weights of a shard's decisions, or of each of its steps for a replay.

        They are taken out of the record of a rollout's decisions; a replay keeps those of its steps. A decision that
        was begun in the rollout before and completed in this one is of the version before.

        Raises:
            RobotrlError: they are not the expected ones.
        """
        decided: NDArray[np.int64]
        if isinstance(part.rollout, StepBatch):
            decided = part.rollout.versions()
        else:
            decided = np.asarray(part.rollout.record.pop(VERSION))
        if isinstance(part.rollout, Rollout):
            decided = decided[np.asarray(part.rollout.valid)]
        if part.version != version or decided.max() > version or decided.min() < self._last:
            raise RobotrlError(
                f"worker {shard} sent decisions of versions {decided.min()} to {decided.max()}, of a rollout of version"
                f" {part.version}: expected {version}, or {self._last} for those begun before; none was learned from"
            )
        return decided

    def scalars(self) -> dict[str, float]:
        """See `RolloutCollector`."""
        counts = {
            "cluster/restarts": self._runner.restarts,
            "cluster/lost_rollouts": self._runner.lost_rollouts,
            "cluster/shared_workers": self._runner.shared,
            "cluster/weights_mb": self._runner.weights_bytes / 1e6,
            "cluster/version": self._publisher.version,
            "cluster/staleness": self._mean_staleness,
        }
        return {name: float(value) for name, value in counts.items()} | self._scalars.take()

    def state(self) -> dict[str, Any]:
        """See `RolloutCollector`; rollouts that are ahead are not part of it."""
        states = self._runner.states()
        counts = {"env_steps": self.env_steps, "version": self._publisher.version, "last": self._last}
        return {**counts, "shards": {str(shard): state for shard, state in enumerate(states)}}

    def load(self, state: dict[str, Any]) -> None:
        """See `RolloutCollector`."""
        self._count_from(state)
        self._runner.load([state["shards"][str(shard)] for shard in range(len(state["shards"]))])

    def follow(self, state: dict[str, Any], seed: int) -> None:
        """See `Follower`."""
        self._count_from(state)
        self._runner.restart(seed)

    def _count_from(self, state: dict[str, Any]) -> None:
        """Restore the counts of a state; rollouts that are ahead are dropped."""
        self.env_steps = int(state["env_steps"])
        self._publisher.version, self._last = int(state["version"]), int(state["last"])
        self._ordered.clear()

    def close(self) -> None:
        """See `RolloutCollector`."""
        self._runner.close()


class ShardedRollouts(ShardedCollector):
    """Collects rollouts in shards; implements `RolloutCollector`. For the arguments see `ShardedCollector`."""

    def rollout(self, steps: int) -> Rollout:
        """See `RolloutCollector`.

        Raises:
            RobotrlError: see `ShardedCollector.gather`.
        """
        parts = [part.rollout for part in self.gather(steps)]
        return joined_rollouts([part for part in parts if isinstance(part, Rollout)], self._device)


class ShardedEpisodes(ShardedCollector):
    """Collects whole episodes in shards; implements `EpisodesCollector`. For the arguments see `ShardedCollector`."""

    def episodes(self) -> Trajectories:
        """See `EpisodesCollector`.

        Raises:
            RobotrlError: see `ShardedCollector.gather`.
        """
        parts = [part.rollout for part in self.gather(0)]
        return joined_episodes([part for part in parts if isinstance(part, Trajectories)], self._device)


class ShardedSteps(ShardedCollector):
    """Collects env steps for a replay in shards; implements `StepsCollector`. For the arguments see `ShardedCollector`.

    With staleness, a batch is as long as the newest one was when it was ordered.
    """

    def steps(self, steps: int) -> StepBatch:
        """See `StepsCollector`.

        Raises:
            RobotrlError: see `ShardedCollector.gather`.
        """
        parts = [part.rollout for part in self.gather(steps)]
        return joined_steps([part for part in parts if isinstance(part, StepBatch)])
