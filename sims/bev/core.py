"""The numpy core of the driving world: all envs and their episodes, stepped by a machine. Knows no torch."""

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
"""First layout seed and number of layouts of each split, for each family; disjoint."""


class CoreStep(NamedTuple):
    """One step of all envs; arrays are buffers that the next step overwrites, except the final ones."""

    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_obs: dict[str, NDArray[Any]]
    final_ids: Ids


class DrivingCore:
    """Episodes of the driving world in N envs, with same-step reset.

    Args:
        bank: where maps come from.
        num_envs: N.
        agents: A, slots for road users in each env, the ego's included.
        scenarios: which are driven; start id modulo their number says which.
        limit_steps: of an episode.
        rules: how actions are read, and what is rewarded.
        action_spec: of an env's action.
        seed: which training starts are drawn.
        machine: what steps the envs, and in whose memory they lie.
        vectors: arrays of vector observations, of that machine.
        views: arrays of rasters likewise, None without.
        observed: keys of `obs` (what of the two is observed).
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
        """Terms of the reward of the last step; see `rewards`."""
        self._last: NDArray[np.float32] = zeros((n, len(tables.TERMS)), np.float32)
        self.done: NDArray[np.int8] = zeros(n, np.int8)
        self.terminated, self.truncated, self.success = (zeros(n, np.bool_) for _ in range(3))
        self.state_id: Ids = zeros(n, np.int64)
        self.state_id[:] = -1
        self.events: NDArray[np.int32] = zeros(n, np.int32)
        self.completion: NDArray[np.float32] = zeros(n, np.float32)
        self.score: NDArray[np.float32] = zeros(n, np.float32)
        """Driving score (leaderboard 2.0) of the episodes that the last step ended, 0 elsewhere."""
        self.drives: dict[int, Route] = {}
        """What the scores are made of, of the episodes that the last step ended, by env."""
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
        """Start new episodes everywhere.

        Args:
            seed: restarts the draw of training starts and drops what is queued; None lets both run on.
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
        """Start new episodes in the envs `env_ids`, whatever became of their present ones."""
        self.machine.wait()
        self._start(env_ids)
        self.observe(env_ids)

    def step(self, actions: NDArray[np.float32]) -> CoreStep:
        """Advance all envs by one action; rows that end are restarted before this returns.

        Args:
            actions: (N, A), clipped to the bounds of `action_spec`; the first time that one lies outside, a warning
                says so.

        Raises:
            ConfigError: wrong shape.
            NumericsError: an action is no number; env, step and action are named, and nothing has moved.
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
        # who arrives in a crash has not arrived
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
        return CoreStep(self.reward, self.terminated, self.truncated, final_obs, final_ids)

    def observe(self, env_ids: Ids) -> None:
        """Bring the observations of some envs up to date."""
        arrays, world = self.bank.arrays, self.world
        self.machine.run(observe_envs, len(env_ids), arrays, world, self.rules, self._vectors, env_ids)
        self._draw(env_ids)

    def _draw(self, env_ids: Ids) -> None:
        if self._views is not None:
            args = (self.bank.arrays, self.world, self._views, self._channels, env_ids)
            self.machine.run(draw_envs, len(env_ids), *args)

    def queue_states(self, ids: Sequence[int] | NDArray[np.int64]) -> None:
        """Start ids that the next restarts take, in order; when none is left, training ids are drawn again.

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
        """Scenario and map of each start; maps that are new are built."""
        numbers = ids % len(self.scenarios)
        keys = map_keys(ids, [self.scenarios[n].family for n in numbers])
        maps = np.array([self.bank.number(key) for key in keys], np.int64)
        self._make_room()
        return numbers, maps

    def _make_room(self) -> None:
        """Scratch for the largest map so far."""
        world = self.world
        more = self.bank.junction_lanes - world.claims.shape[1]
        if more > 0:
            # others are on the road while one env gets a larger map
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
        """Everything that decides what happens next, as named arrays."""
        self.machine.wait()
        out: dict[str, NDArray[Any]] = {
            "order": self.world.order.copy(),
            "state_ids": self.state_ids.copy(),
            **self._starts.state(),
        }
        for name in RECORDS:
            records = getattr(self.world, name)
            out |= {f"{name}/{field}": records[field].copy() for field in records.dtype.names}
        # maps are numbered in the order of their first use, which may be another elsewhere
        for key, base in self._bases().items():
            out[key] = np.where(out[key] >= 0, out[key] - base, -1).astype(out[key].dtype)
        return out

    def _bases(self) -> dict[str, NDArray[np.int64]]:
        """For each reference into the bank what it counts from, by env."""
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
        """Restore what `get_state` gave; returns the observations there.

        Raises:
            ConfigError: the state is of another sim or number of envs.
        """
        check_state(state, self.get_state())  # which waits for the machine
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
        """Let the machine's threads go."""
        self.machine.close()


def map_keys(ids: Ids, families: Sequence[str]) -> list[tuple[str, int]]:
    """Family and layout seed of each start id; splits have layouts of their own."""
    share = counter_rng.uniform(0xB0AD, ids, 1)[:, 0]
    base, count = np.zeros(len(ids), np.int64), np.ones(len(ids), np.int64)
    for split, (first, layouts) in LAYOUTS.items():
        inside = starts.SPLITS[split]
        here = (ids >= inside.start) & (ids < inside.stop)
        base[here], count[here] = first, layouts
    seeds = base + (share * count).astype(np.int64)
    return list(zip(families, seeds.tolist(), strict=True))
