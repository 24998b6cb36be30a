"""One ego on a route that another simulator reports, observed as in `bev/drive` and moved as its actions would move it.

The map is the route: a single lane along it. Road users, a light ahead and the speed limit are those that are reported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError
from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.backend import Threads, put
from robotrl.sims.driving.core import make_world
from robotrl.sims.driving.geometry import bicycle, pursuit
from robotrl.sims.driving.judge import begin_judging
from robotrl.sims.driving.kernels import draw_envs, observe_envs, settle
from robotrl.sims.driving.observations import make_observations
from robotrl.sims.driving.plan import SPACING_S, Actions, follow
from robotrl.sims.driving.render import raster
from robotrl.sims.driving.reported.phases import show_phases
from robotrl.sims.driving.rewards import carl, rules
from robotrl.sims.driving.roads.lane_index import lane_index, match_agents
from robotrl.sims.driving.roads.lanes import Control, RoadBuilder, RouteChoice, headings
from robotrl.sims.driving.roads.map_pool import MapPool
from robotrl.sims.driving.roads.maps import finish
from robotrl.sims.driving.traffic.ego import acceleration, locate, put_ego
from robotrl.sims.driving.traffic.following import empty

Points = NDArray[np.float64]

DT_S = 0.1
"""Control step of `bev/drive`."""
BEFORE_M = 20.0
"""Length by which a route is continued straight back from its first point, where the ego may still be."""
LEAST_M = 12.0
"""Length from which a route can be driven."""
FARTHEST_M = 30.0
"""Distance of the ego from its route up to which the route is taken for its own."""
LOOK_S, LEAST_LOOK_M = 1.0, 4.0
"""Look-ahead of the pursuit of the route beyond the last action."""
YELLOW_LEFT_S = 3.0
"""Remaining time of a yellow light, which is not reported."""
FOREVER_S = 20.0
"""Remaining time of a green light: the observation's largest."""


class ReportedEgo(NamedTuple):
    """The ego, by the center of its box, in a frame whose x and y are horizontal and whose yaw is counter-clockwise."""

    x_m: float
    y_m: float
    yaw_rad: float
    speed_mps: float
    accel_mps2: float = 0.0
    yaw_rate_radps: float = 0.0
    steer: float = 0.0
    """Last steering action, -1 to 1."""
    accel: float = 0.0
    """Last acceleration action, -1 to 1."""
    length_m: float = 4.7
    width_m: float = 1.9


class ReportedUser(NamedTuple):
    """Another road user, by the center of its box."""

    kind: int
    """`tables.CAR`, `CYCLIST`, `PEDESTRIAN` or `OBSTACLE`."""
    x_m: float
    y_m: float
    yaw_rad: float
    speed_mps: float
    accel_mps2: float
    length_m: float
    width_m: float


class ReportedLight(NamedTuple):
    """The next light of the ego's route."""

    ahead_m: float
    """Distance along the route from the ego's center to the stop line."""
    state: int
    """`phases.GREEN`, `YELLOW` or `RED`."""


class PlannedMotion(NamedTuple):
    """Motion of the ego by its actions: T control steps of `DT_S`, the first one ends at `DT_S`."""

    poses: Points
    """(T, 3) x, y of the center, m, and yaw, rad."""
    controls: Points
    """(T, 2) steering and acceleration action of each step."""


class RouteScene:
    """Observations and motion of one ego.

    Args:
        obs: "vector", "raster" or "both".
        nearest: road users observed.
        polylines: lane segments observed.
        view: size and resolution of the raster.
        packed: the raster is two bytes of bits for each pixel.
        actions: format of the actions.
        throttle_mps2: acceleration for an acceleration action of 1.
        users: road users that are taken, the nearest ones.

    Raises:
        ConfigError: an option is out of range.
    """

    def __init__(
        self,
        obs: str,
        nearest: int,
        polylines: int,
        view: raster.RasterCfg,
        packed: bool,
        actions: Actions,
        throttle_mps2: float,
        users: int = 32,
    ) -> None:
        machine = self._machine = Threads(1)
        self.actions, self._throttle = actions, throttle_mps2
        self._observed = make_observations(machine.zeros, obs, 1, nearest, polylines, view, packed)
        self.specs = {key: spec for key, spec in self._observed.specs.items() if key != "privileged"}
        """Specs of the observations, by key."""
        self._world = make_world(machine.zeros, 1, users + 1)
        self._rules = put(machine, rules(carl(), actions, 1e3, throttle_mps2, DT_S))
        self._channels = put(machine, raster.channel_table())
        self._env = machine.zeros(1, np.int64)
        self._way: Points = np.zeros((0, 2))
        self._stop_m, self._limit_mps = math.nan, math.nan
        self._bank: MapPool | None = None
        self._index: Any = None

    def close(self) -> None:
        """Release the backend."""
        self._machine.close()

    def observe(
        self,
        way: Points,
        limit_mps: float,
        ego: ReportedEgo,
        users: Sequence[ReportedUser] = (),
        light: ReportedLight | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Take over a scene and observe it.

        Args:
            way: (n, 2) center line of the route ahead, m.
            limit_mps: speed limit.
            ego: the ego.
            users: other road users.
            light: the next light of the route.

        Returns:
            One env's observations by key; the next call overwrites them.

        Raises:
            ConfigError: a way that cannot be driven, or a number that is not finite.
        """
        way = drivable(way)
        numbers = [*ego, *(value for user in users for value in user), *(() if light is None else light)]
        if not np.isfinite(np.asarray(numbers, np.float64)).all():
            raise ConfigError("the reported scene has a number that is not finite: expected poses, speeds and sizes")
        here = along_way(way, ego.x_m, ego.y_m)
        x, y = point_on(way, here)
        away = math.hypot(ego.x_m - x, ego.y_m - y)
        if away > FARTHEST_M:
            raise ConfigError(f"the ego is {away:.1f} m from its route: expected {FARTHEST_M:g} m at most")
        stop_m = math.nan if light is None else here + max(light.ahead_m, 0.0)
        maps = self._mapped(way, limit_mps, stop_m)
        world, episode, me = self._world, self._world.episodes[0], self._world.egos[0]
        self._world.episodes[0] = np.zeros((), tables.EPISODE)
        episode["limit"], episode["target"] = 1, -1
        for slot in range(world.agents.shape[1]):
            empty(world.agents[0, slot])
        world.order[0] = np.arange(world.order.shape[1])
        pose = (ego.x_m, ego.y_m, ego.yaw_rad, max(ego.speed_mps, 0.0), ego.length_m, ego.width_m)
        put_ego(maps, world, 0, *pose)
        route = maps.route_points[: maps.routes["count"][0]]
        me["index"] = int(((route["x"] - ego.x_m) ** 2 + (route["y"] - ego.y_m) ** 2).argmin())
        me["a"], me["yaw_rate"] = ego.accel_mps2, ego.yaw_rate_radps
        me["steer"], me["accel"] = ego.steer, ego.accel
        locate(maps, world, 0)
        me["best"] = me["progress"]
        self._put(users, ego)
        match_agents(world.agents[0, 1:], maps.maps[0], self._index)
        if light is not None:
            left_s = YELLOW_LEFT_S if light.state == 1 else FOREVER_S
            show_phases(maps.signals[:1], 0.0, np.array([light.state]), np.array([left_s]))
        begin_judging(world, 0)
        settle(maps, world, 0)
        views = self._observed.views
        self._machine.run(observe_envs, 1, maps, world, self._rules, self._observed.vectors, self._env)
        if views is not None:
            self._machine.run(draw_envs, 1, maps, world, views, self._channels, self._env)
        return {key: array[0] for key, array in self._observed.arrays().items() if key in self.specs}

    def motion(self, actions: Points, period_s: float, acts_s: float, horizon_s: float) -> PlannedMotion:
        """Motion of the last observed ego by a chunk of actions, as `bev/drive` moves it.

        Steering and acceleration are held for `period_s` each. Beyond them, or beyond the points of a trajectory, the
        ego follows the route at its speed.

        Args:
            actions: (H, A) chunk; of trajectories the first one is followed.
            period_s: time of an action.
            acts_s: least time for which the last action is held, s.
            horizon_s: length of the motion.
        """
        world = self._world
        me = world.egos[0]
        before = me.copy()
        x0, y0, cos0, sin0 = float(me["x"]), float(me["y"]), float(me["cos"]), float(me["sin"])
        planned = self.actions.kind == "trajectory"
        ends_s = self.actions.points * SPACING_S if planned else max(len(actions) * period_s, acts_s)
        steps = max(round(max(horizon_s, acts_s) / DT_S), 1)
        poses, controls = np.zeros((steps, 3)), np.zeros((steps, 2))
        for k in range(steps):
            t = k * DT_S
            if t >= ends_s - 1e-9:
                steer, accel = self._onward()
            elif planned:
                steer, accel = follow(world, 0, actions[0], x0, y0, cos0, sin0, t, self._throttle)
            else:
                row = actions[min(int(t / period_s + 1e-9), len(actions) - 1)]
                steer, accel = float(row[0]), float(row[1])
            rate = acceleration(accel, self._throttle)
            pose = (float(me["x"]), float(me["y"]), float(me["yaw"]), float(me["v"]))
            me["x"], me["y"], me["yaw"], me["v"] = bicycle(*pose, steer, rate, DT_S)
            me["cos"], me["sin"] = math.cos(me["yaw"]), math.sin(me["yaw"])
            poses[k] = me["x"], me["y"], me["yaw"]
            controls[k] = steer, accel
        world.egos[0] = before
        return PlannedMotion(poses, controls)

    def _onward(self) -> tuple[float, float]:
        """Controls that follow the route at the present speed."""
        me = self._world.egos[0]
        here = along_way(self._way, float(me["x"]), float(me["y"]))
        x, y = point_on(self._way, here + max(LOOK_S * float(me["v"]), LEAST_LOOK_M))
        dx, dy = x - float(me["x"]), y - float(me["y"])
        cos, sin = float(me["cos"]), float(me["sin"])
        return pursuit(dx * cos + dy * sin, dy * cos - dx * sin), 0.0

    def _put(self, users: Sequence[ReportedUser], ego: ReportedEgo) -> None:
        """Write the nearest road users into the slots from 1 on."""
        agents = self._world.agents[0]
        nearest = sorted(users, key=lambda user: math.hypot(user.x_m - ego.x_m, user.y_m - ego.y_m))
        for user, me in zip(nearest, agents[1:], strict=False):
            me["kind"], me["x"], me["y"] = user.kind, user.x_m, user.y_m
            me["cos"], me["sin"] = math.cos(user.yaw_rad), math.sin(user.yaw_rad)
            me["v"], me["a"], me["length"], me["width"] = user.speed_mps, user.accel_mps2, user.length_m, user.width_m

    def _mapped(self, way: Points, limit_mps: float, stop_m: float) -> Any:
        """Records of the route's map, made anew where the route, the limit or the stop line are other ones."""
        same = self._bank is not None and np.array_equal(way, self._way) and limit_mps == self._limit_mps
        if self._bank is None or not (same and np.array_equal(stop_m, self._stop_m, equal_nan=True)):
            road = finish(route_road(way, limit_mps, stop_m))
            bank = MapPool(self._machine, lambda key: road)
            bank.number(("route", 0))
            self._index = lane_index(road)
            self._bank, self._way, self._limit_mps, self._stop_m = bank, way, limit_mps, stop_m
        return self._bank.arrays


def drivable(way: Points) -> Points:
    """A reported way (n, 2) or (n, 3) as a center line: continued straight back by `BEFORE_M`, without repetitions.

    Raises:
        ConfigError: a number that is not finite, or a way shorter than `LEAST_M`.
    """
    points = np.asarray(way, np.float64)
    if points.ndim != 2 or points.shape[1] not in (2, 3) or not np.isfinite(points).all():
        raise ConfigError(f"the reported route has shape {points.shape}: expected finite points (n, 2) or (n, 3), m")
    points = points[:, :2]
    steps = np.hypot(*np.diff(points, axis=0).T) if len(points) > 1 else np.zeros(0)
    if steps.sum() < LEAST_M:
        raise ConfigError(f"the reported route is {steps.sum():.1f} m long: expected {LEAST_M:g} m or more")
    points = points[np.concatenate([[True], steps > 1e-3])]
    yaw = headings(points[:2])[0]
    return np.concatenate([[points[0] - BEFORE_M * np.array([math.cos(yaw), math.sin(yaw)])], points])


def route_road(way: Points, limit_mps: float, stop_m: float) -> RoadBuilder:
    """Road network of a route: one lane, with a light's stop line at `stop_m` along it (NaN, or beyond its end: none).

    Raises:
        ConfigError: the speed limit is not above 0.
    """
    road = RoadBuilder("route")
    lane = road.lane(way, limit_mps)
    length = road.lanes[lane].length_m
    road.signal(0.0, 0.0)
    if stop_m < length - 1.0:
        road.stop(lane, Control.LIGHT, 0, max(stop_m, 1.0))
    road.routes.append(RouteChoice((lane,), 0.0, length))
    return road


def along_way(way: Points, x: float, y: float) -> float:
    """Position along a polyline (n, 2), m, of its point nearest to (x, y)."""
    start, step = way[:-1], np.diff(way, axis=0)
    length = np.hypot(*step.T)
    part = np.clip(((np.array([x, y]) - start) * step).sum(1) / length**2, 0.0, 1.0)
    away = np.hypot(*(start + part[:, None] * step - np.array([x, y])).T)
    k = int(away.argmin())
    return float(length[:k].sum() + part[k] * length[k])


def point_on(way: Points, at_m: float) -> tuple[float, float]:
    """Point of a polyline (n, 2) at a position along it, m; straight on after its end."""
    step = np.diff(way, axis=0)
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*step.T))])
    over = max(at_m - along[-1], 0.0) / math.hypot(*step[-1])
    x, y = (float(np.interp(at_m, along, way[:, axis]) + over * step[-1, axis]) for axis in (0, 1))
    return x, y
