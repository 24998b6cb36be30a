"""Makes the collectors of a run whose envs are divided over workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from robotrl.cluster.collector import ShardedEpisodes, ShardedRollouts, ShardedSteps
from robotrl.cluster.local import LocalShards
from robotrl.cluster.ray_shards import RayShards
from robotrl.cluster.shard import GroupKind, RolloutKind, ShardKind, ShardRecipe, StepsKind, shard_seed
from robotrl.config import ClusterCfg
from robotrl.errors import ConfigError
from robotrl.learners.collection.acting import EpisodesActing, RolloutActing, StepsActing
from robotrl.replay.layout import ReplayLayout
from robotrl.spec import VecSim
from robotrl.utils.devices import CPU


class ClusterCollectors:
    """Factory of sharded collectors; implements `Collectors` and `StepsCollectors` of `robotrl.learners.collection`.

    Args:
        cfg: settings.
        make_sim: function from the number and the seed of a shard to its sim; picklable.
        torch_threads: torch threads of a worker.
        device: device of the rollouts.
    """

    def __init__(
        self, cfg: ClusterCfg, make_sim: Callable[[int, int], VecSim], torch_threads: int, device: torch.device
    ) -> None:
        self._cfg, self._make_sim, self._threads, self._device = cfg, make_sim, torch_threads, device

    def rollouts(
        self, sim: VecSim, acting: RolloutActing, gamma: float, seed: int, generator: torch.Generator
    ) -> ShardedRollouts:
        """See `Collectors.rollouts`; the learner's sim serves for its specs alone, and is closed."""
        runner = self._runner(sim, acting, RolloutKind(gamma), seed)
        return ShardedRollouts(runner, sim.num_envs, acting, generator, self._device, self._cfg.max_staleness)

    def groups(
        self, sim: VecSim, acting: EpisodesActing, size: int, seed: int, generator: torch.Generator
    ) -> ShardedEpisodes:
        """See `Collectors.groups`; the learner's sim serves for its specs alone, and is closed.

        Raises:
            ConfigError: a worker's envs make no whole groups; see also `Collectors.groups`.
        """
        num_envs = sim.num_envs // self._cfg.workers
        if size < 1 or num_envs % size:
            sim.close()
            raise ConfigError(
                f"sim.num_envs is {sim.num_envs} for {self._cfg.workers} workers (cluster.workers), and"
                f" algo.group_size is {size}: expected whole groups of each worker's {num_envs} envs"
            )
        runner = self._runner(sim, acting, GroupKind(size, ahead=self._cfg.max_staleness > 0), seed)
        return ShardedEpisodes(runner, sim.num_envs, acting, generator, self._device, self._cfg.max_staleness)

    def steps(
        self,
        sim: VecSim,
        acting: StepsActing,
        layout: ReplayLayout,
        gamma: float,
        seed: int,
        generator: torch.Generator,
    ) -> ShardedSteps:
        """See `StepsCollectors.steps`; the learner's sim serves for its specs alone, and is closed."""
        kind = StepsKind(replace(layout, streams=sim.num_envs // self._cfg.workers), gamma)
        runner = self._runner(sim, acting, kind, seed)
        return ShardedSteps(runner, sim.num_envs, acting, generator, self._device, self._cfg.max_staleness)

    def _runner(
        self, sim: VecSim, acting: RolloutActing | EpisodesActing | StepsActing, kind: ShardKind, seed: int
    ) -> LocalShards | RayShards:
        cfg = self._cfg
        num_envs = sim.num_envs // cfg.workers
        sim.close()
        copies = cfg.workers if cfg.name == "local" else 1
        acted = [acting.copied(num_envs, CPU) for _ in range(copies)]
        recipes = [
            ShardRecipe(
                shard,
                self._make_sim,
                acted[shard % copies],
                kind,
                shard_seed(seed, shard),
                self._threads,
            )
            for shard in range(cfg.workers)
        ]
        return LocalShards(recipes) if cfg.name == "local" else RayShards(recipes, num_envs, cfg)
