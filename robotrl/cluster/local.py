"""Shards in this process, stepped one after the other: the numbers of a cluster without one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from robotrl.cluster.shard import CollectOrder, Shard, ShardRecipe, ShardRollout, shard_seed
from robotrl.cluster.weights import PublishedWeights


class LocalShards:
    """Shards in this process; implements `ShardRunner`.

    Args:
        recipes: one of each shard.
    """

    restarts = lost_rollouts = shared = 0
    """See `ShardRunner`."""

    def __init__(self, recipes: Sequence[ShardRecipe]) -> None:
        self._recipes = list(recipes)
        self._shards = list[Shard]()
        self.weights_bytes = 0
        """See `ShardRunner`."""
        self._at: int | None = None
        self._orders = deque[tuple[PublishedWeights, int, Any, int]]()
        try:
            for recipe in recipes:
                self._shards.append(Shard(recipe))
        except BaseException:
            self.close()
            raise

    def submit(self, weights: PublishedWeights, steps: int, random: Any, before: int) -> None:
        """See `ShardRunner.submit`."""
        self._orders.append((weights, steps, random, before))

    def take(self) -> list[ShardRollout]:
        """See `ShardRunner.take`."""
        weights, steps, random, before = self._orders.popleft()
        message = weights.message(self._at)
        if self._at != weights.version:
            self.weights_bytes += len(self._shards) * message.data.nbytes
        self._at = weights.version
        return [
            shard.collect(CollectOrder(message, steps, None if number else random, before))
            for number, shard in enumerate(self._shards)
        ]

    def states(self) -> list[dict[str, Any]]:
        """See `ShardRunner.states`."""
        return [shard.state() for shard in self._shards]

    def load(self, states: list[dict[str, Any]]) -> None:
        """See `ShardRunner.load`."""
        self._orders.clear()
        for shard, state in zip(self._shards, states, strict=True):
            shard.load(state)

    def restart(self, seed: int) -> None:
        """See `ShardRunner.restart`."""
        self._orders.clear()
        self._at = None
        for number, recipe in enumerate(self._recipes):
            self._shards[number].close()
            self._shards[number] = Shard(recipe._replace(seed=shard_seed(seed, number)))

    def close(self) -> None:
        """See `ShardRunner.close`."""
        for shard in self._shards:
            shard.close()
