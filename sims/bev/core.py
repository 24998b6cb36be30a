"""Numpy core of `bev/drive`: runs the episodes of all envs on a backend; does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.fn.random import counter_rng
from robotrl.sims import starts
from robotrl.sims.bev.kernels import begin, step_range
from robotrl.sims.bev.traffic.scenarios import Scenario
from robotrl.sims.driving.backends.backend import Backend
from robotrl.sims.driving.core import DrivingCore
from robotrl.sims.driving.kernels import settle_range
from robotrl.sims.driving.observations import DrivingObservations
from robotrl.sims.driving.rewards import Rules
from robotrl.sims.driving.roads.map_pool import MapPool
from robotrl.sims.driving.world import RECORDS
from robotrl.sims.exact_state import check_state
from robotrl.spec import Spec, Split

Ids = NDArray[np.int64]
LAYOUTS: dict[Split, tuple[int, int]] = {"train": (0, 64), "val": (1 << 20, 16), "test": (1 << 21, 32)}
"""First layout seed and number of layouts of each split, for each road family; the splits are disjoint."""


class BevCore(DrivingCore):
    """Driving episodes with traffic of our own, stepped by kernels; see `DrivingCore` for the other arguments.

    Args:
        scenarios: scenarios in use; a start's scenario is its id modulo their number.
    """

    def __init__(
        self,
        bank: MapPool,
        num_envs: int,
        agents: int,
        scenarios: Sequence[Scenario],
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
        self._scenarios = tuple(scenarios)
        self._events = np.array([scenario.event for scenario in scenarios], np.int64)

    def _begin(self, env_ids: Ids, ids: Ids) -> None:
        numbers, maps = self._chosen(ids)
        chosen = (env_ids, maps, numbers, self._events[numbers], ids, self.limit_steps)
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
        keys = map_keys(ids, [self._scenarios[n].family for n in numbers])
        maps = np.array([self.bank.number(key) for key in keys], np.int64)
        self._make_room()
        return numbers, maps

    # exact state

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Exact state as named arrays: everything that determines the further course."""
        self.machine.wait()
        out: dict[str, NDArray[Any]] = {
            "order": self.world.order.copy(),
            "state_ids": self.state_ids.copy(),
            **self._starts.state(),
        }
        for name in RECORDS:
            records = getattr(self.world, name)
            out |= {f"{name}/{field}": records[field].copy() for field in records.dtype.names}
        # maps are numbered in the order of their first use, which may differ in another process
        for key, base in self._bases().items():
            out[key] = np.where(out[key] >= 0, out[key] - base, -1).astype(out[key].dtype)
        return out

    def _bases(self) -> dict[str, NDArray[np.int64]]:
        """Offsets, by env, of each kind of reference into the map pool."""
        rows = self.bank.arrays.maps[self.world.episodes["map"]]
        lane, route = rows["lane"].astype(np.int64), rows["route"].astype(np.int64)
        return {
            "agents/lane": lane[:, None],
            "agents/next": lane[:, None],
            "egos/lane": lane,
            "episodes/route": route,
            "episodes/map": self.world.episodes["map"].astype(np.int64),
        }

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Restore a result of `get_state` and return the observations in that state.

        Raises:
            ConfigError: the state is of another sim or number of envs.
        """
        check_state(state, self.get_state())  # `get_state` waits for the backend
        self.world.order[:] = state["order"]
        self.state_ids[:] = state["state_ids"]
        self._starts.load(state)
        for name in RECORDS:
            records = getattr(self.world, name)
            for field in records.dtype.names:
                records[field] = state[f"{name}/{field}"]
        _, maps = self._chosen(self.state_ids)
        self.world.episodes["map"] = maps
        for key, base in self._bases().items():
            name, field = key.split("/")
            array = getattr(self.world, name)[field]
            if field != "map":
                array[:] = np.where(array >= 0, array + base, -1)
        self.machine.run(settle_range, self.num_envs, self.bank.arrays, self.world)
        self.observe(self._all)
        return self.obs


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
