"""Numpy core of `bev/drive`: runs the episodes of all envs on a backend; does not import torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import check_count
from robotrl.fn.random import counter_rng
from robotrl.sims import starts
from robotrl.sims.bev.kernels import begin, step_range
from robotrl.sims.bev.traffic.learned.layout import INPUT, SIZE
from robotrl.sims.bev.traffic.learned.network import SCRATCH
from robotrl.sims.bev.traffic.learned.stored import LearnedTraffic
from robotrl.sims.bev.traffic.scenarios import Scenario
from robotrl.sims.driving.backends.backend import Backend
from robotrl.sims.driving.exact import ExactCore
from robotrl.sims.driving.kernels import settle_range
from robotrl.sims.driving.observations import DrivingObservations
from robotrl.sims.driving.rewards import Rules
from robotrl.sims.driving.roads.map_pool import MapPool
from robotrl.sims.driving.roads.routes import split_rows
from robotrl.sims.driving.traffic.populations import Population, population_records
from robotrl.spec import Spec, Split

Ids = NDArray[np.int64]
LAYOUTS: dict[Split, tuple[int, int]] = {"train": (0, 64), "val": (1 << 20, 16), "test": (1 << 21, 32)}
"""First layout seed and number of layouts of each split, for each road family; the splits are disjoint."""


class Layouts:
    """Procedural road layouts: a map for each key, of which a start may drive every route."""

    def keys(self, ids: Ids, families: Sequence[str]) -> list[tuple[str, int]]:
        """Map of each start id, as the map pool knows it; see `map_keys`."""
        return map_keys(ids, families)

    def routes(self, ids: Ids, counts: Ids) -> tuple[Ids, Ids]:
        """First and number of the routes (n,) that each start id may drive, of `counts` (n,) on its map."""
        return np.zeros_like(counts), counts


class OneMap(Layouts):
    """A single map for all starts, whose routes are divided among the splits."""

    def keys(self, ids: Ids, families: Sequence[str]) -> list[tuple[str, int]]:
        """Key of the map, the same for all."""
        return [(family, 0) for family in families]

    def routes(self, ids: Ids, counts: Ids) -> tuple[Ids, Ids]:
        """Routes of each start's split; see `routes.split_rows`."""
        first, routes = np.zeros_like(counts), np.zeros_like(counts)
        for split, (low, high) in split_rows(int(counts[0])).items() if len(ids) else ():
            inside = starts.SPLITS[split]
            here = (ids >= inside.start) & (ids < inside.stop)
            first[here], routes[here] = low, high - low
        return first, routes


class BevCore(ExactCore):
    """Driving episodes with traffic of our own, stepped by kernels; see `DrivingCore` for the other arguments.

    Args:
        layouts: map and routes of each start.
        scenarios: scenarios in use; a start's scenario is its id modulo their number.
        populations: populations of traffic in use, one or more, of which a start draws one; rules or a network drive.
    """

    def __init__(
        self,
        bank: MapPool,
        layouts: Layouts,
        num_envs: int,
        agents: int,
        scenarios: Sequence[Scenario],
        populations: Sequence[Population | LearnedTraffic],
        limit_steps: int,
        rules: Rules,
        action_spec: Spec,
        seed: int,
        machine: Backend,
        observed: DrivingObservations,
    ) -> None:
        names = [scenario.name for scenario in scenarios]
        own = (limit_steps, rules, action_spec, seed, machine, observed)
        super().__init__("bev/drive", bank, num_envs, agents, names, *own)
        learned = [one for one in populations if isinstance(one, LearnedTraffic)]
        drivers = [one.drivers if isinstance(one, LearnedTraffic) else (one,) for one in populations]
        styles = population_records([population for group in drivers for population in group])
        self._first_driver = np.cumsum([1, *(len(group) for group in drivers)])
        """First row of each population in use among the world's; the first of all is for the ego's driver."""
        for k, one in enumerate(populations):
            if isinstance(one, LearnedTraffic):
                styles["network"][self._first_driver[k] : self._first_driver[k + 1]] = learned.index(one)
        there = machine.zeros(len(styles), styles.dtype)
        there[:] = styles
        self.world = self.world._replace(populations=there)
        self.traffic_sha256 = tuple(one.sha256 for one in learned)
        """Hashes of the stored populations in use, in the order in which they were given."""
        if learned:
            self.world = self.world._replace(
                networks=machine.zeros((len(learned), SIZE), np.float32),
                car_input=machine.zeros((num_envs, INPUT), np.float32),
                car_scratch=machine.zeros((num_envs, SCRATCH), np.float32),
            )
        for row, one in enumerate(learned):
            self.set_network(row, one.weights)
        self._layouts = layouts
        self._scenarios = tuple(scenarios)
        self._events = np.array([scenario.event for scenario in scenarios], np.int64)

    def set_network(self, row: int, weights: NDArray[np.float32]) -> None:
        """Replace the network that drives a stored population; cars decide by it from their next decision on.

        Args:
            row: which of the stored populations, in the order in which they were given.
            weights: (layout.SIZE,) parameters.

        Raises:
            ConfigError: there is no such population.
        """
        check_count("row", row, 0, len(self.world.networks) - 1)
        self.machine.wait()
        self.world.networks[row] = weights

    def _begin(self, env_ids: Ids, ids: Ids) -> None:
        numbers, maps = self._chosen(ids)
        routes = self._layouts.routes(ids, self.bank.arrays.maps["routes"][maps].astype(np.int64))
        chosen = (env_ids, maps, *routes, numbers, self._events[numbers], self._populations(ids), ids, self.limit_steps)
        self.machine.run(begin, len(env_ids), self.bank.arrays, self.world, *chosen)

    def _advance(self, actions: NDArray[np.float32]) -> None:
        self.machine.run(
            step_range,
            self.num_envs,
            self.bank.arrays,
            self.world,
            self.rules,
            self._vectors,
            actions,
            self.reward,
            self.terms,
            self._last,
            self.done,
            self.events,
            self.completion,
        )

    def _chosen(self, ids: Ids) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Scenario and map indices of each start; new maps are built."""
        numbers = ids % len(self.scenarios)
        keys = self._layouts.keys(ids, [self._scenarios[n].family for n in numbers])
        maps = np.array([self.bank.number(key) for key in keys], np.int64)
        self._make_room()
        return numbers, maps

    def _populations(self, ids: Ids) -> Ids:
        """Row of each start's population among the world's: one of those in use, and of a stored one its drivers."""
        share = counter_rng.uniform(0xC0DE, ids, 1)[:, 0] * (len(self._first_driver) - 1)
        k = share.astype(np.int64)
        first = self._first_driver[k]
        return first + ((share - k) * (self._first_driver[k + 1] - first)).astype(np.int64)

    # exact state

    def _restore_maps(self) -> None:
        self.world.episodes["map"] = self._chosen(self.state_ids)[1]
        self.world.episodes["population"] = self._populations(self.state_ids)

    def _settle(self) -> None:
        self.machine.run(settle_range, self.num_envs, self.bank.arrays, self.world)


def map_keys(ids: Ids, families: Sequence[str]) -> list[tuple[str, int]]:
    """Road family and layout seed of each start id; each split has its own layouts."""
    share = counter_rng.uniform(0xB0AD, ids, 1)[:, 0]
    base, count = np.zeros(len(ids), np.int64), np.ones(len(ids), np.int64)
    for split, (first, layouts) in LAYOUTS.items():
        inside = starts.SPLITS[split]
        here = (ids >= inside.start) & (ids < inside.stop)
        base[here], count[here] = first, layouts
    seeds = base + (share * count).astype(np.int64)
    return list(zip(families, seeds.tolist(), strict=True))
