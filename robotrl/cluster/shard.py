"""`Shard`: some of a run's envs with a copy of its policy; the same code steps them in any process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robotrl.cluster.steps import VERSION, ActingSteps, StepBatch
from robotrl.cluster.weights import WeightReceiver, WeightsMessage
from robotrl.engine.distributed import SEEDS
from robotrl.learners.actor.process import to_numpy
from robotrl.learners.collection.collectors import ActingCollector, ActingGroups, BehaviorGroups
from robotrl.learners.parts import restore, saved
from robotrl.replay.layout import ReplayLayout
from robotrl.rollout.collector import Decision
from robotrl.rollout.groups import Trajectories
from robotrl.rollout.storage import Rollout
from robotrl.spec import VecSim
from robotrl.spec.episode_log import HasRunScalars

SHARD_STRIDE = 7_368_787
"""Difference of seeds between two shards, large so that they do not meet another run's."""


class RolloutKind(NamedTuple):
    """Rollouts of a fixed number of steps."""

    gamma: float
    """Discount of each env step."""

    def collector(self, sim: VecSim, acting: Any, seed: int, generator: torch.Generator) -> ActingCollector:
        """Make a shard's collector; the sim is reset."""
        made = ActingCollector(sim, acting, self.gamma, generator)
        made.reset(seed, {"stagger": True})
        return made


class GroupKind(NamedTuple):
    """Whole episodes in groups."""

    size: int
    """Group size G."""
    ahead: bool
    """True if episodes are collected ahead of updates: their decisions also have log-probabilities."""

    def collector(self, sim: VecSim, acting: Any, seed: int, generator: torch.Generator) -> ActingGroups:
        """Make a shard's collector."""
        made = BehaviorGroups if self.ahead else ActingGroups
        return made(sim, acting, self.size, seed, generator)


class StepsKind(NamedTuple):
    """Env steps for a replay."""

    layout: ReplayLayout
    """Layout of a replay of the shard's envs."""
    gamma: float
    """Discount of each env step."""

    def collector(self, sim: VecSim, acting: Any, seed: int, generator: torch.Generator) -> ActingSteps:
        """Make a shard's collector; the sim is reset."""
        made = ActingSteps(sim, acting, self.layout, self.gamma, generator)
        made.reset(seed, {"stagger": True})
        return made


ShardKind = RolloutKind | GroupKind | StepsKind


class ShardRecipe(NamedTuple):
    """Everything that a shard is made from; picklable."""

    number: int
    """Number of the shard, from 0."""
    make_sim: Callable[[int, int], VecSim]
    """Function from number and seed to the sim of the shard's envs."""
    acting: Any
    """`RolloutActing`, `EpisodesActing` or `StepsActing`: the shard's own copy of the policy, whose weights come with
    each order."""
    kind: ShardKind
    """Kind of the rollouts."""
    seed: int
    """Seeds the sim and the samples."""
    torch_threads: int
    """Torch threads, for a shard in another process."""


def shard_seed(seed: int, number: int) -> int:
    """Return the seed of a shard, from that of the first one."""
    return (seed + number * SHARD_STRIDE) % SEEDS


class CollectOrder(NamedTuple):
    """Order to collect one rollout."""

    weights: WeightsMessage
    steps: int
    """Steps in every env; of no meaning for whole episodes."""
    random: Any
    """State of the random generator to sample with; None: the shard's own."""
    before: int
    """Env steps of the run before this rollout, summed over all shards."""


class ShardRollout(NamedTuple):
    """A shard's rollout; its tensors are numpy arrays."""

    rollout: Rollout | Trajectories | StepBatch
    env_steps: int
    """Env steps taken, summed over the shard's envs."""
    version: int
    """Version of the weights that acted."""
    random: Any
    """State of the random generator afterwards."""
    scalars: dict[str, float]
    """Scalars to log of the sim and its reward sources."""
    collect_s: float
    """Time of the whole order, s."""
    sim_s: float
    """Time inside the sim's steps, s."""
    warned: tuple[str, ...] = ()
    """Warnings that were given meanwhile, by a shard in another process."""


class _Tagged:
    """A policy that records with each decision which weights decided."""

    def __init__(self, acting: Any, weights: WeightReceiver) -> None:
        self._acting, self._weights = acting, weights

    @property
    def horizon(self) -> int:
        return self._acting.horizon

    def begin(self, num_envs: int, generator: torch.Generator) -> None:
        self._acting.begin(num_envs, generator)

    def log_prob(self, found: Trajectories) -> Tensor:
        return self._acting.log_prob(found)

    def decide(self, *inputs: Any) -> Decision:
        chunk, record = self._acting.decide(*inputs)
        version = torch.full((len(chunk),), self._weights.version or 0, dtype=torch.int64)
        return Decision(chunk, record | {VERSION: version})


class Shard:
    """Some of the envs, and the policy that acts in them.

    Args:
        recipe: everything it is made from.
    """

    def __init__(self, recipe: ShardRecipe) -> None:
        self._acting = recipe.acting
        self.sim = recipe.make_sim(recipe.number, recipe.seed)
        self._generator = torch.Generator().manual_seed(recipe.seed)
        self._weights = WeightReceiver(recipe.acting.network)
        tagged = _Tagged(recipe.acting, self._weights)
        self._collector = recipe.kind.collector(self.sim, tagged, recipe.seed, self._generator)

    def collect(self, order: CollectOrder) -> ShardRollout:
        """Collect one rollout."""
        collector = self._collector
        began, sim_s, env_steps = time.perf_counter(), collector.sim_s, collector.env_steps
        self._weights.take(order.weights)
        self._acting.apply(order.weights.settings)
        if order.random is not None:
            self._generator.set_state(torch.from_numpy(order.random.copy()))
        if isinstance(collector, ActingGroups):
            rollout = Trajectories(*map(to_numpy, collector.episodes()))
        elif isinstance(collector, ActingSteps):
            rollout = collector.steps(order.steps, order.before)
        else:
            rollout = Rollout(*map(to_numpy, collector.rollout(order.steps)))
        scalars = self.sim.take_run_scalars() if isinstance(self.sim, HasRunScalars) else {}
        return ShardRollout(
            rollout,
            collector.env_steps - env_steps,
            order.weights.version,
            self._generator.get_state().numpy().copy(),
            scalars,
            time.perf_counter() - began,
            collector.sim_s - sim_s,
        )

    def state(self) -> dict[str, Any]:
        """State between two rollouts."""
        return saved({"collector": self._collector, "generator": self._generator, "acting": self._acting})

    def load(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`; the weights come with the next order."""
        for name, part in (("collector", self._collector), ("generator", self._generator), ("acting", self._acting)):
            restore(part, state[name])

    def close(self) -> None:
        """Close the sim."""
        self._collector.close()
