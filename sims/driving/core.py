"""Numpy core of the driving sims: episodes, observations and scores of all envs; does not import torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import unknown
from robotrl.sims import starts
from robotrl.sims.actions import ActionBounds
from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.backend import Backend, Zeros, put
from robotrl.sims.driving.episode_summary import drive_of
from robotrl.sims.driving.kernels import ARRIVED, draw_envs, observe_envs
from robotrl.sims.driving.observations import DrivingObservations
from robotrl.sims.driving.render import raster
from robotrl.sims.driving.rewards import Rules
from robotrl.sims.driving.roads.map_pool import MapPool
from robotrl.sims.driving.scores import Route, leaderboard_2_0
from robotrl.sims.driving.traffic.populations import population_records
from robotrl.sims.driving.world import WorldState
from robotrl.spec import Spec

Ids = NDArray[np.int64]
RESET_OPTIONS = ("state_ids", "stagger")


def make_world(zeros: Zeros, num_envs: int, agents: int, localized: bool = False) -> WorldState:
    """Empty state of N envs, without networks of traffic.

    Args:
        zeros: allocates the arrays.
        num_envs: N.
        agents: slots A for road users in each env, including the ego.
        localized: the ego's localization has errors.
    """
    n = num_envs
    world = WorldState(
        agents=zeros((n, agents), tables.AGENT),
        egos=zeros(n, tables.EGO),
        episodes=zeros(n, tables.EPISODE),
        judges=zeros(n, tables.JUDGE),
        order=zeros((n, agents), np.int32),
        places=zeros((n, agents), np.float64),
        claims=zeros((n, 1), tables.CLAIM),
        walking=zeros((n, 1), np.int32),
        localized=zeros(n if localized else 0, tables.EGO),
        populations=zeros(1, tables.POPULATION),
        networks=zeros((0, 0), np.float32),
        car_input=zeros((0, 0), np.float32),
        car_scratch=zeros((0, 0), np.float32),
    )
    world.populations[:] = population_records(())
    world.order[:] = np.arange(agents)
    return world


class DrivingStep(NamedTuple):
    """Result of one step of all envs; the next step overwrites the arrays, except the final ones."""

    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_obs: dict[str, NDArray[Any]]
    final_ids: Ids


class DrivingCore(ABC):
    """Runs driving episodes in N envs, with same-step reset; a driving world says how they begin and go on.

    Args:
        name: name of the sim, for messages.
        bank: map pool.
        num_envs: number of envs N.
        agents: slots A for road users in each env, including the ego.
        scenarios: names of the scenarios in use; a start's scenario is its id modulo their number.
        limit_steps: time limit of an episode, control steps.
        rules: action settings and reward.
        action_spec: spec of one env's action.
        seed: seed of the random training start ids.
        machine: backend that steps the envs and owns their memory.
        observed: observations, in the backend's memory.
    """

    ended: WorldState
    """Last state of the episodes that ended last, one row for each of `ended_ids`."""
    ended_ids: Ids

    def __init__(
        self,
        name: str,
        bank: MapPool,
        num_envs: int,
        agents: int,
        scenarios: Sequence[str],
        limit_steps: int,
        rules: Rules,
        action_spec: Spec,
        seed: int,
        machine: Backend,
        observed: DrivingObservations,
    ) -> None:
        self.bank, self.num_envs, self.limit_steps = bank, num_envs, limit_steps
        self.machine, self.rules = machine, put(machine, rules)
        self.action_spec = action_spec
        self.scenarios = tuple(scenarios)
        self._starts = starts.StartQueue(seed)
        self._bounds = ActionBounds(action_spec, num_envs, name)
        n, zeros = num_envs, machine.zeros
        self.world = make_world(zeros, n, agents, rules.localization_errs())
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
        self.lost: NDArray[np.bool_] = zeros(n, np.bool_)
        """(N,) episodes that were lost in the last step, where a world can lose one; they are no results."""
        self.observe_into(observed, observed.arrays())
        self._channels = put(machine, raster.channel_table())
        self._all: Ids = zeros(n, np.int64)
        self._all[:] = np.arange(n)

    @abstractmethod
    def _begin(self, env_ids: Ids, ids: Ids) -> None:
        """Put the start states `ids` (n,) into the envs `env_ids` (n,)."""

    @abstractmethod
    def _advance(self, actions: NDArray[np.float32]) -> None:
        """Run the actions (N, A) of all envs; write reward, terms, done, events, completion and vector observations."""

    def _find_success(self) -> None:
        """Write which episodes have just ended in success; an arrival in the same step as a collision is none."""
        np.equal(self.events & ~np.int32(tables.TIMED_OUT), ARRIVED, out=self.success)

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
        self._advance(actions)
        np.equal(self.done, 1, out=self.terminated)
        np.equal(self.done, 2, out=self.truncated)
        self._find_success()
        final_ids = self.done.nonzero()[0]
        self._draw(self._all)
        chosen = final_ids if len(final_ids) else slice(0)
        final_obs = {key: value[chosen] for key, value in self.obs.items()}
        self.score[:] = 0.0
        kept = final_ids[~self.lost[final_ids]]
        self.drives = {
            e: drive_of(self.world, e, int(self.events[e]), float(self.completion[e])) for e in kept.tolist()
        }
        for e, drive in self.drives.items():
            self.score[e] = leaderboard_2_0(drive).driving
        if len(final_ids):
            self._start(final_ids)
            self.observe(final_ids)
        return DrivingStep(self.reward, self.terminated, self.truncated, final_obs, final_ids)

    def observe_into(self, observed: DrivingObservations, obs: dict[str, NDArray[Any]]) -> None:
        """Write the observations from now on into other arrays: `obs`, of which `observed` is made."""
        self._vectors, self._views, self.obs = observed.vectors, observed.views, obs

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
        """Start the next episodes in some envs; what ended there is kept for recordings."""
        world = self.world
        rows = {name: getattr(world, name)[env_ids] for name in ("agents", "egos", "episodes")}
        self.ended, self.ended_ids = world._replace(**rows), env_ids
        ids = self._starts.take(len(env_ids))
        self.state_ids[env_ids] = ids
        self._begin(env_ids, ids)

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

    def close(self) -> None:
        """Release the backend's threads."""
        self.machine.close()
