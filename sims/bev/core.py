"""Numpy core of the driving sim: runs the episodes of all envs on a backend; does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import unknown
from robotrl.fn.random import counter_rng
from robotrl.sims import starts
from robotrl.sims.actions import ActionBounds
from robotrl.sims.bev import tables
from robotrl.sims.bev.backends.backend import Backend, put
from robotrl.sims.bev.backends.kernels import ARRIVED, begin, draw_envs, observe_envs, settle_range, step_range
from robotrl.sims.bev.episode_summary import drive_of
from robotrl.sims.bev.render import raster
from robotrl.sims.bev.render import vectors as obs_module
from robotrl.sims.bev.rewards import Rules
from robotrl.sims.bev.roads.map_pool import MapPool
from robotrl.sims.bev.scores import Route, leaderboard_2_0
from robotrl.sims.bev.traffic.scenarios import Scenario
from robotrl.sims.bev.world import WorldState
from robotrl.sims.exact_state import check_state
from robotrl.spec import Spec, Split

Ids = NDArray[np.int64]
RECORDS = ("agents", "egos", "episodes", "judges")
RESET_OPTIONS = ("state_ids", "stagger")
LAYOUTS: dict[Split, tuple[int, int]] = {"train": (0, 64), "val": (1 << 20, 16), "test": (1 << 21, 32)}
"""First layout seed and number of layouts of each split, for each road family; the splits are disjoint."""


class DrivingStep(NamedTuple):
    """Result of one step of all envs; the next step overwrites the arrays, except the final ones."""

    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_obs: dict[str, NDArray[Any]]
    final_ids: Ids


class DrivingCore:
    """Runs driving episodes in N envs, with same-step reset.

    Args:
        bank: map pool.
        num_envs: number of envs N.
        agents: slots A for road users in each env, including the ego.
        scenarios: scenarios in use; a start's scenario is its id modulo their number.
        limit_steps: time limit of an episode, control steps.
        rules: action settings and reward.
        action_spec: spec of one env's action.
        seed: seed of the random training start ids.
        machine: backend that steps the envs and owns their memory.
        vectors: arrays of vector observations, in the backend's memory.
        views: arrays of rasters, in the backend's memory; None without rasters.
        observed: keys of `obs`, a selection of vector and raster arrays.
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
        vectors: obs_module.Vectors,
        views: raster.RasterViews | None,
        observed: Sequence[str],
    ) -> None:
        self.bank, self.num_envs, self.limit_steps = bank, num_envs, limit_steps
        self.machine, self.rules = machine, put(machine, rules)
        self.action_spec = action_spec
        self.scenarios = tuple(scenarios)
        self._events = np.array([scenario.event for scenario in scenarios], np.int64)
        self._starts = starts.StartQueue(seed)
        self._bounds = ActionBounds(action_spec, num_envs, "bev/drive")
        n, zeros = num_envs, machine.zeros
        self.world = WorldState(
            agents=zeros((n, agents), tables.AGENT),
            egos=zeros(n, tables.EGO),
            episodes=zeros(n, tables.EPISODE),
            judges=zeros(n, tables.JUDGE),
            order=zeros((n, agents), np.int32),
            places=zeros((n, agents), np.float64),
            claims=zeros((n, 1), tables.CLAIM),
            walking=zeros((n, 1), np.int32),
        )
        self.world.order[:] = np.arange(agents)
        self.state_ids: Ids = np.full(n, -1)
        self.reward: NDArray[np.float32] = zeros(n, np.float32)
        self.terms: NDArray[np.float32] = zeros((n, len(tables.TERMS)), np.float32)
        """(N, len(TERMS)) reward terms of the last step; see `rewards`."""
        self._last: NDArray[np.float32] = zeros((n, len(tables.TERMS)), np.float32)
        self.done: NDArray[np.int8] = zeros(n, np.int8)
        self.terminated, self.truncated, self.success = (zeros(n, np.bool_) for _ in range(3))
        self.state_id: Ids = zeros(n, np.int64)
        self.state_id[:] = -1
        self.events: NDArray[np.int32] = zeros(n, np.int32)
        self.completion: NDArray[np.float32] = zeros(n, np.float32)
        self.score: NDArray[np.float32] = zeros(n, np.float32)
        """(N,) driving score (leaderboard 2.0) of episodes that ended in the last step, 0 elsewhere."""
        self.drives: dict[int, Route] = {}
        """Episode summaries (inputs of the scores) of episodes that ended in the last step, by env."""
        self._vectors, self._views = vectors, views
        every: dict[str, NDArray[Any]] = dict(vectors._asdict())
        if views is not None:
            every["bev"] = raster.shown(views)
        self.obs = {key: every[key] for key in observed}
        self._channels = put(machine, raster.channel_table())
        self._all: Ids = zeros(n, np.int64)
        self._all[:] = np.arange(n)

    # episodes

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> dict[str, NDArray[Any]]:
        """Start new episodes in all envs.

        Args:
            seed: restarts the random training starts and clears the queue; None continues both.
            options: "state_ids": (N,) start ids; "stagger": True starts the step counters spread over the time limit.

        Raises:
            ConfigError: unknown option, or ids of the wrong shape.
        """
        given = dict(options or {})
        self.machine.wait()
        self._starts.restart(seed)
        if "state_ids" in given:
            self._starts.put(starts.queue_for_all(given.pop("state_ids"), self.num_envs))
        stagger = bool(given.pop("stagger", False))
        for name in given:
            raise unknown("reset option", name, RESET_OPTIONS)
        self._start(self._all)
        if stagger:
            self.world.episodes["steps"] = self._all * self.limit_steps // self.num_envs
        self.observe(self._all)
        return self.obs

    def restart(self, env_ids: Ids) -> None:
        """Start new episodes in the envs `env_ids`, abandoning the running ones."""
        self.machine.wait()
        self._start(env_ids)
        self.observe(env_ids)

    def step(self, actions: NDArray[np.float32]) -> DrivingStep:
        """Advance all envs by one action; ended episodes restart before this returns.

        Args:
            actions: (N, A), clipped to the bounds of `action_spec`, with one warning.

        Raises:
            ConfigError: wrong shape.
            NumericsError: an action is not finite; the message names env, step and action, and no env has moved.
        """
        self.machine.wait()
        actions = np.ascontiguousarray(self._bounds.checked(actions, self.world.episodes["steps"]))
        np.copyto(self.state_id, self.state_ids)
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
        np.equal(self.done, 1, out=self.terminated)
        np.equal(self.done, 2, out=self.truncated)
        # an arrival in the same step as a collision is no success
        np.equal(self.events & ~np.int32(tables.TIMED_OUT), ARRIVED, out=self.success)
        final_ids = self.done.nonzero()[0]
        self._draw(self._all)
        chosen = final_ids if len(final_ids) else slice(0)
        final_obs = {key: value[chosen] for key, value in self.obs.items()}
        self.score[:] = 0.0
        self.drives = {int(e): drive_of(self.world, int(e), self.events[e], self.completion[e]) for e in final_ids}
        for e, drive in self.drives.items():
            self.score[e] = leaderboard_2_0(drive).driving
        if len(final_ids):
            self._start(final_ids)
            self.observe(final_ids)
        return DrivingStep(self.reward, self.terminated, self.truncated, final_obs, final_ids)

    def observe(self, env_ids: Ids) -> None:
        """Update the observations of some envs."""
        arrays, world = self.bank.arrays, self.world
        self.machine.run(observe_envs, len(env_ids), arrays, world, self.rules, self._vectors, env_ids)
        self._draw(env_ids)

    def _draw(self, env_ids: Ids) -> None:
        if self._views is not None:
            args = (self.bank.arrays, self.world, self._views, self._channels, env_ids)
            self.machine.run(draw_envs, len(env_ids), *args)

    def queue_states(self, ids: Sequence[int] | NDArray[np.int64]) -> None:
        """Queue start ids for the next restarts, in order; after the last one, training ids are drawn again.

        Raises:
            ConfigError: an id outside all splits.
        """
        self._starts.put(starts.queue_of(ids))

    def _start(self, env_ids: Ids) -> None:
        ids = self._starts.take(len(env_ids))
        numbers, maps = self._chosen(ids)
        self.state_ids[env_ids] = ids
        chosen = (env_ids, maps, numbers, self._events[numbers], ids, self.limit_steps)
        self.machine.run(begin, len(env_ids), self.bank.arrays, self.world, *chosen)

    def _chosen(self, ids: Ids) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Scenario and map indices of each start; new maps are built."""
        numbers = ids % len(self.scenarios)
        keys = map_keys(ids, [self.scenarios[n].family for n in numbers])
        maps = np.array([self.bank.number(key) for key in keys], np.int64)
        self._make_room()
        return numbers, maps

    def _make_room(self) -> None:
        """Enlarge the scratch arrays for the largest map so far."""
        world = self.world
        more = self.bank.junction_lanes - world.claims.shape[1]
        if more > 0:
            # keep existing claims: other envs are running while one env gets a larger map
            world = world._replace(claims=self._wider(world.claims, more))
        more = self.bank.crosswalks - world.walking.shape[1]
        if more > 0:
            world = world._replace(walking=self._wider(world.walking, more))
        self.world = world

    def _wider(self, array: NDArray[Any], more: int) -> NDArray[Any]:
        rows, columns = array.shape
        out = self.machine.zeros((rows, columns + more), array.dtype)
        out[:, :columns] = array
        return out

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

    def close(self) -> None:
        """Release the backend's threads."""
        self.machine.close()


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
