"""`Shard`: some of a run's envs with a copy of its policy; the same code steps them in any process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from robotrl.cluster.weights import WeightReceiver, WeightsMessage
from robotrl.learners.actor.process import to_numpy
from robotrl.learners.parts import restore, saved
from robotrl.rollout.collector import Collector, Decision
from robotrl.rollout.storage import Rollout
from robotrl.spec import Arrays, VecSim
from robotrl.spec.episode_log import HasRunScalars


class ShardRecipe(NamedTuple):
    """Everything that a shard is made from; picklable."""

    number: int
    """Number of the shard, from 0."""
    make_sim: Callable[[int, int], VecSim]
    """Function from number and seed to the sim of the shard's envs."""
    acting: Any
    """`RolloutActing`: the shard's own copy of the policy, whose weights come with each order."""
    gamma: float
    """Discount of each env step."""
    seed: int
    """Seeds the sim and the samples."""
    torch_threads: int
    """Torch threads, for a shard in another process."""


class CollectOrder(NamedTuple):
    """Order to collect one rollout."""

    weights: WeightsMessage
    steps: int
    """Steps in every env."""
    random: Any
    """State of the random generator to sample with; None: the shard's own."""


class ShardRollout(NamedTuple):
    """A shard's rollout; its tensors are numpy arrays."""

    rollout: Rollout
    version: int
    """Version of the weights that acted."""
    digest: str
    """Their hash."""
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


class Shard:
    """Some of the envs, and the policy that acts in them.

    Args:
        recipe: everything it is made from.
    """

    def __init__(self, recipe: ShardRecipe) -> None:
        self._acting = recipe.acting
        self.sim = recipe.make_sim(recipe.number, recipe.seed)
        self._collector = Collector(self.sim, recipe.acting.horizon, recipe.gamma)
        self._generator = torch.Generator().manual_seed(recipe.seed)
        self._weights = WeightReceiver(recipe.acting.network)
        self._collector.reset(recipe.seed, {"stagger": True})

    def collect(self, order: CollectOrder) -> ShardRollout:
        """Collect one rollout."""
        began, sim_s = time.perf_counter(), self._collector.sim_s
        self._weights.take(order.weights)
        self._acting.apply(order.weights.settings)
        if order.random is not None:
            self._generator.set_state(torch.from_numpy(order.random.copy()))
        rollout = Rollout(*map(to_numpy, self._collector.collect(self._decide, order.steps)))
        scalars = self.sim.take_run_scalars() if isinstance(self.sim, HasRunScalars) else {}
        return ShardRollout(
            rollout,
            order.weights.version,
            order.weights.digest,
            self._generator.get_state().numpy().copy(),
            scalars,
            time.perf_counter() - began,
            self._collector.sim_s - sim_s,
        )

    def _decide(self, obs: Arrays) -> Decision:
        return self._acting.decide(obs, self._generator, self._collector)

    def state(self) -> dict[str, Any]:
        """State between two rollouts; see `Collector.state`."""
        return saved({"collector": self._collector, "generator": self._generator, "acting": self._acting})

    def load(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`; the weights come with the next order."""
        for name, part in (("collector", self._collector), ("generator", self._generator), ("acting", self._acting)):
            restore(part, state[name])

    def close(self) -> None:
        """Close the sim."""
        self._collector.close()
