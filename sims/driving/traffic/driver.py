"""Rule-based driver: IDM for speed, pure pursuit for steering, lane changes around obstacles."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import check_number, unknown
from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.core import DrivingCore
from robotrl.sims.driving.geometry import BRAKE_MPS2, pedal, pursuit
from robotrl.sims.driving.judge import will_touch
from robotrl.sims.driving.plan import SPACING_S
from robotrl.sims.driving.traffic.asked_speed import COMFORT_MPS2, road_speed
from robotrl.sims.driving.traffic.following import GAP_M, PULL_OUT_M, ahead_on, behind_on, idm
from robotrl.sims.driving.traffic.right_of_way import barrier, merging, parting
from robotrl.sims.driving.world import Maps, WorldState
from robotrl.sims.expert_state import State, expert_state, restore_expert

MODES = ("calm", "brisk")
"""Driving styles, which differ in speed relative to the limit and in headway."""
PACE, HEADWAY_S = (0.75, 0.95), (1.5, 1.1)
PULL_OUT_MPS = 6.0
"""Speed for driving around a standing obstacle."""
MERGE_S, MERGE_M = 2.5, 8.0
"""Time or distance (whichever takes longer) after which a planned trajectory has joined its target line."""
LANE_END_M = 3.0
"""Distance from a junction at which the driver waits that has to be on another lane there; so far that its look-ahead
does not reach what is beyond."""


@kernel
def has_room(maps: Maps, world: WorldState, e: int, target: int) -> bool:
    """True if the ego can change to a neighbouring lane now."""
    ego, agents = world.egos[e], world.agents[e]
    lane, there = maps.lanes[ego.lane], maps.lanes[target]
    s = ego.lane_s * there.length / lane.length
    k, far = ahead_on(maps, world, e, target, s)
    if k >= 0:
        other = agents[k]
        if far - 0.5 * (agents[0].length + other.length) < 3.0 + 0.4 * ego.v:
            return False
    k, far = behind_on(maps, world, e, target, s, 0)
    if k >= 0:
        other = agents[k]
        closing = max(other.v - ego.v, 0.0)
        if far - 0.5 * (agents[0].length + other.length) < 3.0 + closing * closing / 4.0 + 0.8 * other.v:
            return False
    return True


@kernel
def stands_ahead(maps: Maps, world: WorldState, e: int, lane: int) -> bool:
    """True if a static obstacle is on a lane within the next 50 m (or just behind)."""
    ego, agents = world.egos[e], world.agents[e]
    here = maps.lanes[ego.lane]
    s = ego.lane_s * maps.lanes[lane].length / here.length
    for slot in range(1, len(agents)):
        other = agents[slot]
        if other.kind == tables.OBSTACLE and other.lane == lane and -8.0 < other.s - s < 50.0:
            return True
    return False


@kernel
def towards(maps: Maps, lane: int, goal: int) -> int:
    """Neighbour of a lane on the side of lane `goal` (same direction); the lane itself if `goal` is not reachable."""
    step = maps.lanes[lane].left
    for _ in range(4):
        if step < 0:
            break
        if step == goal:
            return maps.lanes[lane].left
        step = maps.lanes[step].left
    step = maps.lanes[lane].right
    for _ in range(4):
        if step < 0:
            break
        if step == goal:
            return maps.lanes[lane].right
        step = maps.lanes[step].right
    return lane


@kernel
def aim_lane(maps: Maps, world: WorldState, e: int, reach: int) -> int:
    """Lane to steer along now, -1 for the route itself; lane changes wait until there is room."""
    ego = world.egos[e]
    route = maps.routes[world.episodes[e].route]
    goal = maps.route_points[route.first + min(ego.index + reach, route.count - 1)].lane
    if maps.lanes[ego.lane].junction >= 0:
        return -1
    if towards(maps, ego.lane, goal) == ego.lane and goal != ego.lane:
        # the goal lane is further ahead, not beside; the route here may be, of which the next point may have the lane
        goal = maps.route_points[route.first + ego.index].lane
        if goal != ego.lane and towards(maps, ego.lane, goal) == ego.lane:
            goal = maps.route_points[route.first + min(ego.index + 1, route.count - 1)].lane
        if towards(maps, ego.lane, goal) == ego.lane:
            return -1
    if stands_ahead(maps, world, e, goal):
        lane = maps.lanes[goal]
        goal = lane.left if lane.left >= 0 and not stands_ahead(maps, world, e, lane.left) else lane.right
        if goal < 0:
            return -1
    if goal == ego.lane:
        return ego.lane if abs(ego.lane_d) < 2.0 else -1
    step = towards(maps, ego.lane, goal)
    return step if has_room(maps, world, e, step) else ego.lane


@kernel
def wrong_lane(maps: Maps, world: WorldState, e: int, lane_number: int) -> float:
    """Distance, m, from the front to where the driver waits for room to change lanes; FAR if it need not wait yet.

    Args:
        maps: all maps.
        world: all envs.
        e: env.
        lane_number: lane that it steers along, see `aim_lane`.
    """
    ego = world.egos[e]
    if lane_number != ego.lane:
        return tables.FAR
    reach = LANE_END_M + 10.0 + ego.v * ego.v / (2.0 * COMFORT_MPS2)
    number, lane = ego.lane, maps.lanes[ego.lane]
    left = lane.length - ego.lane_s
    while left < reach and lane.nexts > 0 and maps.lanes[lane.next[0]].junction < 0:
        number = lane.next[0]
        lane = maps.lanes[number]
        left += lane.length
    if left >= reach:
        return tables.FAR
    route = maps.routes[world.episodes[e].route]
    # the route's point beside the lane's end is one of two
    last = ego.index + int(left)
    for i in range(last, last - 2, -1):
        goal = maps.route_points[route.first + min(max(i, 0), route.count - 1)].lane
        if towards(maps, number, goal) != number:
            return left - 0.5 * world.agents[e, 0].length - LANE_END_M
    return tables.FAR


@kernel
def reach_of(v: float) -> float:
    """Pure-pursuit look-ahead distance, m, at a speed in m/s."""
    return min(max(3.5 + 0.55 * v, 4.0), 14.0)


@kernel
def choose_accel(maps: Maps, world: WorldState, e: int, pace: float, headway: float, lane_number: int) -> float:
    """Desired acceleration of the driver, m/s^2.

    Args:
        maps: all maps.
        world: all envs.
        e: env.
        pace: speed as a fraction of the limit.
        headway: time headway, s.
        lane_number: lane to steer along, -1 for the route.
    """
    ego = world.egos[e]
    wanted = max(road_speed(maps, world, e, pace), 1.0)
    gap, v = ego.gap, ego.leader_v
    if (
        ego.leader >= 0
        and world.agents[e, ego.leader].kind == tables.OBSTACLE
        and world.agents[e, ego.leader].lane >= 0
    ):
        if lane_number >= 0 and lane_number != ego.lane:
            gap, wanted = tables.FAR, min(wanted, PULL_OUT_MPS)
        else:
            # keep enough distance to pull out
            gap = max(gap - PULL_OUT_M, 0.1)
    accel = idm(ego.v, wanted, gap, ego.v - v, headway)
    # who turns off may stand with the tail still on this way; who comes in from beside is ahead at the end
    parted, v = parting(maps, world, e, 0)
    if parted < tables.FAR:
        accel = min(accel, idm(ego.v, wanted, max(parted, 0.1), ego.v - v, headway))
    merged, v = merging(maps, world, e, 0)
    if merged < tables.FAR:
        accel = min(accel, idm(ego.v, wanted, max(merged, 0.1), ego.v - v, headway))
    end = wrong_lane(maps, world, e, lane_number)
    if end < tables.FAR:
        accel = min(accel, idm(ego.v, wanted, max(end + GAP_M, 0.1), ego.v, 0.6))
    closed = barrier(maps, world, e, 0, 0.0)
    if closed < tables.FAR:
        accel = min(accel, idm(ego.v, wanted, max(closed + GAP_M - 0.7, 0.1), ego.v, 0.6))
    return -BRAKE_MPS2 if will_touch(maps, world, e, 1.6) else accel


@kernel
def line_ahead(
    maps: Maps, world: WorldState, e: int, lane_number: int, ahead: float
) -> tuple[float, float, float, float]:
    """Point `ahead` m on along the target line, with its direction: x, y, cos, sin.

    Args:
        maps: all maps.
        world: all envs.
        e: env.
        lane_number: the ego's lane or a neighbour, -1 for the route; from a junction on the route continues.
        ahead: distance, m.
    """
    ego = world.egos[e]
    if lane_number >= 0:
        lane = maps.lanes[lane_number]
        along = ego.lane_s * lane.length / maps.lanes[ego.lane].length + ahead
        while along >= lane.length and lane.nexts > 0 and maps.lanes[lane.next[0]].junction < 0:
            along -= lane.length
            lane = maps.lanes[lane.next[0]]
        if along < lane.length:
            i = max(int(along / lane.spacing), 0)
            q = maps.points[lane.first + i]
            rest = along - i * lane.spacing
            return q.x + rest * q.cos, q.y + rest * q.sin, q.cos, q.sin
    route = maps.routes[world.episodes[e].route]
    i = min(max(ego.index + int(ahead), 0), route.count - 1)
    p = maps.route_points[route.first + i]
    rest = ego.index + ahead - i
    return p.x + rest * p.cos, p.y + rest * p.sin, p.cos, p.sin


@kernel
def drive_ego(
    maps: Maps, world: WorldState, e: int, pace: float, headway: float, throttle: float, aside: float
) -> tuple[float, float]:
    """Steering and acceleration actions of the driver.

    Args:
        maps: all maps.
        world: all envs.
        e: env.
        pace: speed as a fraction of the limit.
        headway: time headway, s.
        throttle: acceleration, m/s^2, for an acceleration action of 1.
        aside: error of the driver's estimate of its lateral position, m, positive to the right.
    """
    ego = world.egos[e]
    reach = reach_of(ego.v)
    lane_number = aim_lane(maps, world, e, int(reach))
    accel = choose_accel(maps, world, e, pace, headway, lane_number)
    x, y, c, s = line_ahead(maps, world, e, lane_number, reach)
    x, y = x - aside * s - ego.x, y + aside * c - ego.y
    steer = pursuit(x * ego.cos + y * ego.sin, y * ego.cos - x * ego.sin)
    return steer, pedal(accel, throttle)


@kernel
def plan_ego(maps: Maps, world: WorldState, e: int, pace: float, headway: float, aside: float, trajectory: Any) -> None:
    """Write the driver's trajectory (2 n,), in the ego's frame; it joins the target line within `MERGE_S`."""
    ego = world.egos[e]
    lane_number = aim_lane(maps, world, e, int(reach_of(ego.v)))
    accel = choose_accel(maps, world, e, pace, headway, lane_number)
    x, y, c, s = line_ahead(maps, world, e, lane_number, 0.0)
    # the route point is up to 1 m behind
    along = (ego.x - x) * c + (ego.y - y) * s
    offset = (ego.y - y) * c - (ego.x - x) * s - aside
    for k in range(len(trajectory) // 2):
        t = SPACING_S * (k + 1)
        if accel < 0.0:
            t = min(t, ego.v / -accel)
        way = max(ego.v * t + 0.5 * accel * t * t, 0.0)
        x, y, c, s = line_ahead(maps, world, e, lane_number, way + along)
        u = min(way / max(MERGE_S * ego.v, MERGE_M), 1.0)
        left = offset * (1.0 - u) * (1.0 - u) * (1.0 + 2.0 * u)
        dx, dy = x - left * s - ego.x, y + left * c - ego.y
        trajectory[2 * k] = dx * ego.cos + dy * ego.sin
        trajectory[2 * k + 1] = dy * ego.cos - dx * ego.sin


@kernel
def drive_all(
    maps: Maps, world: WorldState, paces: Any, headways: Any, throttle: float, aside: Any, planned: int, actions: Any
) -> None:
    """Write the actions (N, A) of the driver in all envs."""
    for e in range(len(actions)):
        if planned == 1:
            plan_ego(maps, world, e, paces[e], headways[e], aside[e], actions[e])
        else:
            actions[e, 0], actions[e, 1] = drive_ego(maps, world, e, paces[e], headways[e], throttle, aside[e])


class RouteDriver:
    """Rule-based expert for all envs of a core; reads privileged state.

    Args:
        core: the driving core.
        noise: standard deviation of Gaussian noise on each action, as a fraction of half its range, 0 to 1.
        episode_noise: scale of errors drawn once per episode, 0 to 1; at 1 the driver's estimate of its lateral
            position is off by up to 1.5 m, it keeps half the distance and drives a third too fast.
        mode: "calm" or "brisk", or None to draw one for each episode.
        seed: seed of noise, errors and modes.

    Raises:
        ConfigError: unknown mode, or a value out of range.
    """

    modes: tuple[str, ...] = MODES

    def __init__(
        self, core: DrivingCore, noise: float = 0.0, episode_noise: float = 0.0, mode: str | None = None, seed: int = 0
    ) -> None:
        check_number("noise", noise, 0.0, 1.0)
        check_number("episode_noise", episode_noise, 0.0, 1.0)
        if mode is not None and mode not in MODES:
            raise unknown("expert mode", mode, MODES)
        n = core.num_envs
        self._core = core
        self._noise, self._episode_noise, self._mode = noise, episode_noise, mode
        self._rng = np.random.default_rng(seed)
        self.mode: NDArray[np.int64] = np.zeros(n, np.int64)
        self._pace, self._headway = np.zeros(n), np.zeros(n)
        self._aside = np.zeros(n)
        self._low, self._high = (np.array(bound, np.float32) for bound in (core.action_spec.low, core.action_spec.high))
        self._actions = np.zeros((n, len(self._low)), np.float32)

    def act(self, started: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Actions (N, A); `started` (N,) marks envs at the first step of an episode."""
        fresh = np.flatnonzero(started)
        if len(fresh):
            drawn = self._rng.integers(0, len(MODES), len(fresh))
            self.mode[fresh] = drawn if self._mode is None else MODES.index(self._mode)
            clumsy = self._episode_noise * self._rng.random((len(fresh), 3))
            self._pace[fresh] = np.array(PACE)[self.mode[fresh]] * (1 + clumsy[:, 0] / 3)
            self._headway[fresh] = np.array(HEADWAY_S)[self.mode[fresh]] * (1 - clumsy[:, 1] / 2)
            self._aside[fresh] = 1.5 * clumsy[:, 2] * self._rng.choice([-1.0, 1.0], len(fresh))
        core = self._core
        drive_all(
            core.bank.arrays,
            core.world,
            self._pace,
            self._headway,
            core.rules.throttle,
            self._aside,
            core.rules.planned,
            self._actions,
        )
        noise = self._rng.standard_normal(self._actions.shape).astype(np.float32)
        out = self._actions + self._noise * 0.5 * (self._high - self._low) * noise
        return np.clip(out, self._low, self._high).astype(np.float32)

    def get_state(self) -> State:
        """Exact state: episodes' errors and random numbers."""
        return expert_state(self)

    def set_state(self, state: State) -> None:
        """Restore exact state.

        Raises:
            ConfigError: it is of another number of envs.
        """
        restore_expert(state, self)
