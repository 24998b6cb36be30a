"""Numpy core of `bev/warp`: replays clips of a driving log around an ego that moves on its own; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError
from robotrl.fn.random import counter_rng
from robotrl.sims import starts
from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.backend import Backend
from robotrl.sims.driving.core import Ids
from robotrl.sims.driving.exact import ExactCore
from robotrl.sims.driving.logs.layout import ClipCfg, DriveLog
from robotrl.sims.driving.logs.roads import builder_of, continued, path_route, read_roads, way_builder
from robotrl.sims.driving.observations import DrivingObservations
from robotrl.sims.driving.rewards import Rules
from robotrl.sims.driving.roads import maps
from robotrl.sims.driving.roads.lane_index import LaneIndex, lane_index, match_agents
from robotrl.sims.driving.roads.map_pool import MapPool
from robotrl.sims.driving.world import Maps
from robotrl.sims.warp import replay, steps, tracing, warping
from robotrl.sims.warp.steps import Limits
from robotrl.spec import Spec, Split

LEAST_STEPS = 50
"""Steps that are left of a clip at the latest start."""
LEAST_ROUTE_M = 12.0
"""Length below which a route is continued straight ahead."""
LEAST_PROGRESS = 0.8
"""Progress ratio from which an episode that lasts to the end of its log is a success."""


class LogMaps(MapPool):
    """Maps of a log's clips: each env has a row of its own, whose lights are those of its step.

    Args:
        machine: backend that owns the memory.
        num_envs: number of envs N.
        lights: largest number of lights of a map.
    """

    def __init__(self, machine: Backend, build: Any, num_envs: int, lights: int) -> None:
        self._lights = lights
        self._rows = machine.zeros(num_envs, tables.MAP)
        self._signals = machine.zeros(max(num_envs * lights, 1), tables.SIGNAL)
        super().__init__(machine, build)

    def _view(self) -> Maps:
        self.pool = super()._view()
        """All maps, without the envs' rows."""
        return self.pool._replace(maps=self._rows, signals=self._signals)

    def put(self, env: int, number: int) -> None:
        """Give an env a map of the pool."""
        self._rows[env] = self.pool.maps[number]
        self._rows[env]["signal"] = env * self._lights


class Forecaster(Protocol):
    """Other road users of all envs: where they are at the next step, given where the ego is."""

    def begin(self, core: WarpCore, env_ids: Ids) -> None:
        """Prepare the envs `env_ids`, whose episodes have just begun; the road users stand where the log has them."""
        ...

    def advance(self, core: WarpCore, running: NDArray[np.bool_]) -> None:
        """Move slots 1 and up of `core.world.agents` to the steps `core.replays["at"]` in the `running` envs (N,)."""
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """Copies of all arrays that determine what comes next, by name."""
        ...

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a result of `state`."""
        ...


class LogReplay:
    """Road users that do what the log says, whatever the ego does."""

    def begin(self, core: WarpCore, env_ids: Ids) -> None:
        """See `Forecaster`."""

    def advance(self, core: WarpCore, running: NDArray[np.bool_]) -> None:
        """See `Forecaster`."""
        chosen = (core.bank.arrays, core.world, core.arrays, core.replays, running)
        core.machine.run(replay.replay_range, core.num_envs, *chosen)

    def state(self) -> dict[str, NDArray[Any]]:
        """See `Forecaster`."""
        return {}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See `Forecaster`."""


class Reactive:
    """Road users that keep to their logged ways, brake by IDM for an ego in their way, and then catch up.

    Args:
        num_envs: number of envs N.
        slots: M, slots for other road users.
    """

    def __init__(self, num_envs: int, slots: int) -> None:
        self.actors = np.zeros((num_envs, slots), replay.ACTOR)

    def begin(self, core: WarpCore, env_ids: Ids) -> None:
        """See `Forecaster`."""
        replay.begin_reacting(core.arrays, core.replays, self.actors, env_ids)

    def advance(self, core: WarpCore, running: NDArray[np.bool_]) -> None:
        """See `Forecaster`."""
        chosen = (core.bank.arrays, core.world, core.arrays, core.replays, self.actors, running)
        core.machine.run(replay.react_range, core.num_envs, *chosen)

    def state(self) -> dict[str, NDArray[Any]]:
        """See `Forecaster`."""
        return {f"actors/{name}": self.actors[name].copy() for name in replay.ACTOR.names or ()}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See `Forecaster`."""
        for name in replay.ACTOR.names or ():
            self.actors[name] = state[f"actors/{name}"]


class WarpedFrames(NamedTuple):
    """Observations that are warped from logged frames other than rasters."""

    key: str
    source: NDArray[Any]
    """(F, ...) frames as kernels read them."""
    out: NDArray[Any]
    """(N, ...) the observation's memory, likewise."""
    kernel: Any


class WarpCore(ExactCore):
    """Driving episodes on clips of a log; see `DrivingCore` for the other arguments.

    Args:
        log: the log.
        forecaster: the other road users.
        limits: how far the ego may leave the log, and the sequence reward.
        mask: (N, height, width) validity masks, which this writes; no rows without.
        frames: observation of frames that are no rasters; None without.
        more_obs: arrays of observations besides those of all driving sims, by key.
    """

    def __init__(
        self,
        log: DriveLog,
        num_envs: int,
        forecaster: Forecaster,
        limits: Limits,
        mask: NDArray[np.uint8],
        frames: WarpedFrames | None,
        more_obs: Mapping[str, NDArray[Any]],
        limit_steps: int,
        rules: Rules,
        action_spec: Spec,
        seed: int,
        machine: Backend,
        observed: DrivingObservations,
    ) -> None:
        slots = log.agents.shape[1]
        bank = LogMaps(machine, self._road, num_envs, log.lights.shape[1])
        self.log, self._names = log, sorted({clip.scenario for clip in log.meta.clips})
        own = (limit_steps, rules, action_spec, seed, machine, observed)
        super().__init__("bev/warp", bank, num_envs, slots + 1, self._names, *own)
        self._bank = bank
        self.obs |= more_obs
        self._frames, self._mask, self.limits, self.forecaster = frames, mask, limits, forecaster
        self.arrays = _arrays(log)
        self.replays = machine.zeros(num_envs, replay.REPLAY)
        self._running = machine.zeros(num_envs, np.bool_)
        self._origins = machine.zeros((num_envs, 4), np.float64)
        self._clips: dict[Split, list[int]] = {split: log.clips_of(split) for split in starts.SPLITS}
        if not self._clips["train"]:
            raise ConfigError(
                f"driving log {log.path} has no clip of the split 'train': expected one or more, on which episodes"
                " start that nobody asked for"
            )
        self._indices: dict[int, LaneIndex] = {}
        """Lane index of each map of the pool."""
        self.ratio, self.safety, self.efficiency = (machine.zeros(num_envs, np.float32) for _ in range(3))
        self.deviation, self.covered = (machine.zeros(num_envs, np.float32) for _ in range(2))
        self.cut = machine.zeros(num_envs, np.bool_)
        """(N,) episodes that left the log in the last step, see `robotrl.spec.cut`."""

    @property
    def pool(self) -> Maps:
        """All maps, without the envs' rows."""
        return self._bank.pool

    # clips and their maps

    def clip_of(self, state_id: int) -> tuple[int, int]:
        """Clip of a start, and the clip's step at which it starts.

        Ids of a split go through its clips, from their beginnings at first, from other steps afterwards.

        Raises:
            ConfigError: the log has no clip of that split.
        """
        split: Split = next(name for name, ids in starts.SPLITS.items() if state_id in ids)
        clips = self._clips[split]
        if not clips:
            has = ", ".join(f"{len(found)} {name}" for name, found in self._clips.items() if found)
            raise ConfigError(
                f"start id {state_id} is of the split {split!r}, of which driving log {self.log.path} has no clip:"
                f" it has {has}"
            )
        lap, place = divmod(state_id - starts.SPLITS[split].start, len(clips))
        clip = clips[place]
        if lap == 0:
            return clip, 0
        share = float(counter_rng.uniform(0x10C5, np.array([state_id]), 1)[0, 0])
        return clip, int(share * max(self.log.meta.clips[clip].steps - LEAST_STEPS, 1))

    def _road(self, key: tuple[str, int]) -> maps.RoadMap:
        """Map of the pool; `key` is its name and -1, or "" and the number of a clip that has none."""
        name, number = key
        clips = self._sharing(key)
        if number >= 0:
            clip = self.log.meta.clips[number]
            builder = way_builder(clip.name, self._way(clip))
        else:
            builder = builder_of(name, read_roads(self.log.map_file(name)))
        index = lane_index(builder)
        for clip in clips:
            builder.routes.append(path_route(builder, index, self._way(clip)))
        road = maps.finish(builder)
        self._indices[len(self._indices)] = lane_index(road)
        return road

    def _sharing(self, key: tuple[str, int]) -> list[ClipCfg]:
        """Clips on a map, in the order of their routes."""
        name, number = key
        if number >= 0:
            return [self.log.meta.clips[number]]
        return [clip for clip in self.log.meta.clips if clip.map == name]

    def _way(self, clip: ClipCfg) -> NDArray[np.float64]:
        """Points of a clip's route."""
        route = self.log.routes[clip.route_first : clip.route_first + clip.route_points]
        way = np.asarray(route, np.float64)
        if np.hypot(*np.diff(way, axis=0).T).sum() < LEAST_ROUTE_M:
            return continued(way, float(self.arrays.poses[clip.first, 2]))
        return way

    def _prepare(self, number: int) -> None:
        """Build the map of a clip, and find the lanes of its road users, at its first use."""
        row = self.arrays.clips[number]
        if row["map"] >= 0:
            return
        clip = self.log.meta.clips[number]
        key = (clip.map, -1) if clip.map is not None else ("", number)
        row["map"] = self.bank.number(key)
        self._make_room()
        pool = self._bank.pool
        row["route"] = pool.maps["route"][row["map"]] + [c.name for c in self._sharing(key)].index(clip.name)
        route = pool.routes[row["route"]]
        replay.trace_route(self.arrays, number, pool.route_points[route["first"] : route["first"] + route["count"]])
        replay.measure_way(self.arrays, number)
        self._match(clip, int(row["map"]))
        replay.find_walks(pool, self.arrays, number)

    def _match(self, clip: ClipCfg, map_number: int) -> None:
        """Find the lanes of a clip's road users, counted within the map."""
        chosen = slice(clip.first, clip.first + clip.steps)
        logged = self.log.agents[chosen]
        found = np.zeros(logged.size, tables.AGENT)
        for name in ("kind", "x", "y"):
            found[name] = logged[name].ravel()
        found["cos"], found["sin"] = np.cos(logged["yaw"].ravel()), np.sin(logged["yaw"].ravel())
        here = np.zeros(1, tables.MAP)[0]
        match_agents(found, here, self._indices[map_number])
        for name, field in (("lane", "lane"), ("next", "next"), ("lane_s", "s"), ("lane_d", "d")):
            getattr(self.arrays, name)[chosen] = found[field].reshape(logged.shape)

    # episodes

    def _begin(self, env_ids: Ids, ids: Ids) -> None:
        chosen = np.array([self.clip_of(int(one)) for one in ids], np.int64).reshape(-1, 2)
        for e, state_id, (number, _) in zip(env_ids.tolist(), ids.tolist(), chosen.tolist(), strict=True):
            self._put_map(e, number)
            episode = self.world.episodes[e]
            episode["seed"], episode["route"] = state_id, self.arrays.clips["route"][number]
            episode["scenario"] = self._names.index(self.log.meta.clips[number].scenario)
        clips, first = np.ascontiguousarray(chosen[:, 0]), np.ascontiguousarray(chosen[:, 1])
        self.machine.run(
            steps.begin_range,
            len(env_ids),
            self.bank.arrays,
            self.world,
            self.arrays,
            self.replays,
            self.limits,
            env_ids,
            clips,
            first,
            self.limit_steps,
        )
        self.forecaster.begin(self, env_ids)

    def _put_map(self, env: int, number: int) -> None:
        """Give an env the map of a clip."""
        self._prepare(number)
        self._bank.put(env, int(self.arrays.clips["map"][number]))
        self.world.episodes["map"][env] = env

    def _advance(self, actions: NDArray[np.float32]) -> None:
        self._running[:] = True
        for k in range(self.rules.hold):
            self.replays["at"] += self._running
            self.forecaster.advance(self, self._running)
            self.machine.run(
                steps.step_range,
                self.num_envs,
                self.bank.arrays,
                self.world,
                self.arrays,
                self.replays,
                self._running,
                self.rules,
                self.limits,
                self._vectors,
                actions,
                self._origins,
                k,
                self.reward,
                self.terms,
                self._last,
                self.done,
                self.events,
                self.completion,
            )
            if not self._running.any():
                break
        state = self.replays
        self.ratio[:], self.safety[:], self.efficiency[:] = state["ratio"], state["safety"], state["efficiency"]
        self.deviation[:], self.covered[:] = np.abs(state["aside"]), state["covered"]

    def trace(self, running: NDArray[np.bool_]) -> None:
        """Put everybody, the ego included, where the log has them a step later, in the `running` envs (N,)."""
        self.machine.wait()
        self.replays["at"] += running
        LogReplay().advance(self, running)
        logged = (self.bank.arrays, self.world, self.arrays, self.replays, running, self.rules, self._last)
        self.machine.run(tracing.trace_range, self.num_envs, *logged)
        self.observe(self._all)

    def _find_success(self) -> None:
        """An episode that lasts to the end of its log succeeds with enough progress, one that arrives succeeds, too.

        One that leaves its log is cut off.
        """
        np.not_equal(self.events & tables.DEVIATION, 0, out=self.cut)
        kept = self.events & ~np.int32(tables.TIMED_OUT)
        arrived = (kept == tables.FINISHED) | (kept == tables.FINISHED | tables.LOG_ENDED)
        self.success[:] = arrived | ((kept == tables.LOG_ENDED) & (self.ratio >= LEAST_PROGRESS))

    def _draw(self, env_ids: Ids) -> None:
        limits = self.limits
        if self._views is not None:
            self.machine.run(
                steps.warp_rasters,
                len(env_ids),
                self.world,
                self.arrays,
                self.replays,
                limits,
                self.log.frames,
                self._views,
                self._channels,
                self._mask,
                env_ids,
            )
        elif self._frames is not None:
            frames, count = self._frames, len(env_ids)
            numbers, poses = np.zeros(count, np.int64), np.zeros((count, 3))
            steps.relative_poses(self.world, self.arrays, self.replays, env_ids, numbers, poses)
            views = (limits.source, limits.shown, poses, env_ids)
            self.machine.run(frames.kernel, count, frames.source, numbers, *views, frames.out)
            if len(self._mask):
                height, width = limits.source_height, limits.source_width
                self.machine.run(warping.mark_valid_frames, count, height, width, *views, self._mask)

    # exact state

    def _more_state(self) -> dict[str, NDArray[Any]]:
        own = {f"replays/{name}": self.replays[name].copy() for name in replay.REPLAY.names or ()}
        return own | self.forecaster.state()

    def _load_more(self, state: Mapping[str, NDArray[Any]]) -> None:
        for name in replay.REPLAY.names or ():
            self.replays[name] = state[f"replays/{name}"]
        self.forecaster.load(state)

    def _restore_maps(self) -> None:
        for e, number in enumerate(self.replays["clip"].tolist()):
            self._put_map(e, number)

    def _settle(self) -> None:
        arrays = (self.bank.arrays, self.world, self.arrays, self.replays)
        self.machine.run(steps.settle_lights, self.num_envs, *arrays)


def _arrays(log: DriveLog) -> replay.ReplayArrays:
    """Arrays of a log for kernels; what is derived of a clip is filled in at its first use."""
    clips = np.zeros(len(log.meta.clips), replay.CLIP)
    for row, clip in zip(clips, log.meta.clips, strict=True):
        row["first"], row["steps"], row["map"] = clip.first, clip.steps, -1
        row["length"], row["width"] = clip.ego_length_m, clip.ego_width_m
    poses = np.stack([log.steps[name] for name in ("x", "y", "yaw", "speed")], axis=1)
    shape, lights = log.agents.shape, log.lights.shape
    return replay.ReplayArrays(
        clips=clips,
        poses=np.ascontiguousarray(poses, np.float64),
        progress=np.zeros(len(poses), np.float32),
        agents=log.agents,
        lane=np.zeros(shape, np.int32),
        next=np.zeros(shape, np.int32),
        lane_s=np.zeros(shape, np.float32),
        lane_d=np.zeros(shape, np.float32),
        way=np.zeros(shape, np.float32),
        lights=log.lights,
        light_left_s=np.zeros(lights, np.float32),
    )
