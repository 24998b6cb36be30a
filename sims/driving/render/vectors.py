"""Vector observations of the driving sim, in the ego's frame (x ahead, y left), scaled to about 1."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.backend import Zeros
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.render.localization import localize, localized
from robotrl.sims.driving.rewards import Rules
from robotrl.sims.driving.roads.maps import NEAREST
from robotrl.sims.driving.traffic.following import ahead_on, behind_on
from robotrl.sims.driving.traffic.heights import hidden, hides, passes_over
from robotrl.sims.driving.traffic.right_of_way import barrier, light
from robotrl.sims.driving.world import Maps, WorldState
from robotrl.spec import Spec

SPEED, LENGTH, SHORT, OFFSET = 15.0, 50.0, 10.0, 2.0
"""Scales of speeds (m/s), long and short distances and lateral offsets (m)."""
SIGHT_M = 60.0
"""Range of view ahead; anything further is ignored."""
LINE_M = 0.5
"""Difference up to which the place where the way is closed is that of the stop line ahead, m."""
CONFLICT_S, CONFLICT_M = 5.0, 3.0
"""Time and distance of a conflict: a centre that comes this near within this time at constant velocities."""
SOON_S = 1.5
"""Horizon for ranking road users by their distance."""
ROUTE_AT = (3, 6, 10, 15, 20, 28, 38, 50)
"""Distances ahead of the ego, m, at which the route is observed."""
SCALARS = (
    "speed",
    "accel",
    "steer_action",
    "accel_action",
    "yaw_rate",
    "route_offset",
    "heading_error_sin",
    "heading_error_cos",
    "lane_offset",
    "speed_limit",
    "speed_excess",
    "room_left",
    "room_right",
    "stop_line_distance",
    "light_green",
    "light_yellow",
    "light_red",
    "light_time_left",
    "stop_sign",
    "stop_sign_obeyed",
    "yield_sign",
    "junction_distance",
    "inside_junction",
    "way_closed_distance",
    "leader_gap",
    "leader_speed",
    "leader_closing",
    "route_left",
    "left_lane",
    "left_ahead_gap",
    "left_ahead_closing",
    "left_behind_gap",
    "left_behind_closing",
    "right_lane",
    "right_ahead_gap",
    "right_ahead_closing",
    "right_behind_gap",
    "right_behind_closing",
    "conflict_time",
    "conflict_miss",
    "conflict_x",
    "conflict_y",
)
EGO = (
    "speed",
    "accel",
    "steer_action",
    "accel_action",
    "yaw_rate",
    "speed_limit",
    "speed_excess",
    "inside_junction",
)
"""Scalars observed with the raster, as in CaRL's policy: state of the ego and speed limit, nothing of others."""
ROUTE = ("x", "y", "curvature")
AGENTS = ("x", "y", "heading_cos", "heading_sin", "speed", "length", "vulnerable", "accel")
LANES = ("x0", "y0", "x1", "y1", "speed_limit")
PRIVILEGED = (
    "time_left",
    "blocked_left",
    "route_left",
    "ttc_timer",
    *(f"comfort_timer_{name}" for name in tables.COMFORT),
    "offset_timer",
)
"""Privileged inputs of CaRL's critic: state of lasting penalties, which the policy cannot observe."""


class Vectors(NamedTuple):
    """Arrays of vector observations, one row per env; unused arrays have no rows."""

    scalars: NDArray[np.float32]
    route: NDArray[np.float32]
    """(N, len(ROUTE_AT), 3) points of the route."""
    agents: NDArray[np.float32]
    """(N, K, 8) road users by their distance within `SOON_S`, nearest first; zero rows if there are fewer."""
    agents_mask: NDArray[np.float32]
    """(N, K) 1 for valid rows of `agents`."""
    lanes: NDArray[np.float32]
    """(N, M, 5) lane segments near the ego."""
    lanes_mask: NDArray[np.float32]
    privileged: NDArray[np.float32]
    ego: NDArray[np.float32]
    """(N, 8) scalars `EGO`, for the raster observation."""


def _spec(shape: tuple[int, ...], names: tuple[str, ...]) -> Spec:
    n = len(names)
    return Spec(shape, names, ("1",) * n, (-float("inf"),) * n, (float("inf"),) * n)


def vector_specs(nearest: int, polylines: int) -> dict[str, Spec]:
    """Specs of the vector observations for K nearest road users and M lane segments."""
    specs = {"scalars": _spec((len(SCALARS),), SCALARS), "route": _spec((len(ROUTE_AT), len(ROUTE)), ROUTE)}
    if nearest:
        specs["agents"] = _spec((nearest, len(AGENTS)), AGENTS)
        specs["agents_mask"] = _spec((nearest,), tuple(f"agent_{i}" for i in range(nearest)))
    if polylines:
        specs["lanes"] = _spec((polylines, len(LANES)), LANES)
        specs["lanes_mask"] = _spec((polylines,), tuple(f"lane_{i}" for i in range(polylines)))
    return specs


def privileged_spec() -> Spec:
    """Spec of the privileged observation, for the critic only."""
    return _spec((len(PRIVILEGED),), PRIVILEGED)


def ego_spec() -> Spec:
    """Spec of the scalars observed with a raster."""
    return _spec((len(EGO),), EGO)


def make_vectors(zeros: Zeros, num_envs: int, nearest: int, polylines: int, vector: bool, privileged: bool) -> Vectors:
    """Allocate the arrays that `vector` and `privileged` select; the scalars `EGO` belong to the latter."""
    n = num_envs if vector else 0
    m = num_envs if privileged else 0
    return Vectors(
        zeros((n, len(SCALARS)), np.float32),
        zeros((n, len(ROUTE_AT), len(ROUTE)), np.float32),
        zeros((n, nearest, len(AGENTS)), np.float32),
        zeros((n, nearest), np.float32),
        zeros((n, polylines, len(LANES)), np.float32),
        zeros((n, polylines), np.float32),
        zeros((m, len(PRIVILEGED)), np.float32),
        zeros((m, len(EGO)), np.float32),
    )


@kernel
def beside_lane(maps: Maps, world: WorldState, e: int, target: int, out: Any, at: int) -> None:
    """Write five numbers of a neighbouring lane: existence, and the cars ahead and behind on it."""
    for k in range(5):
        out[at + k] = 0.0
    out[at + 1] = out[at + 3] = 1.0
    if target < 0:
        return
    ego, seen, agents = world.egos[e], localized(world, e), world.agents[e]
    lane, there = maps.lanes[ego.lane], maps.lanes[target]
    s = ego.lane_s * there.length / lane.length
    out[at] = 1.0
    k, far = ahead_on(maps, world, e, target, s)
    if k >= 0:
        other = agents[k]
        gap = far - 0.5 * (agents[0].length + other.length)
        out[at + 1] = min(max(gap, 0.0), SIGHT_M) / SIGHT_M
        out[at + 2] = (seen.v - other.v) / SHORT if gap < SIGHT_M else 0.0
    k, far = behind_on(maps, world, e, target, s, 0)
    if k >= 0:
        other = agents[k]
        gap = far - 0.5 * (agents[0].length + other.length)
        out[at + 3] = min(max(gap, 0.0), SIGHT_M) / SIGHT_M
        out[at + 4] = (other.v - seen.v) / SHORT if gap < SIGHT_M else 0.0


@kernel
def observe_conflict(maps: Maps, world: WorldState, e: int, out: Any) -> None:
    """Write the first conflict at constant velocities: time, closest distance, and present position of the other."""
    ego, agents = world.egos[e], world.agents[e]
    v = localized(world, e).v
    first, slot, miss = CONFLICT_S, -1, CONFLICT_M
    for k in range(1, len(agents)):
        other = agents[k]
        if other.kind == 0:
            continue
        dx, dy = other.x - ego.x, other.y - ego.y
        vx, vy = other.v * other.cos - v * ego.cos, other.v * other.sin - v * ego.sin
        closing, square = -(dx * vx + dy * vy), vx * vx + vy * vy
        if closing <= 0.0 or closing >= first * square:
            continue
        t = closing / square
        nx, ny = dx + t * vx, dy + t * vy
        if nx * nx + ny * ny < CONFLICT_M * CONFLICT_M and not passes_over(maps, world, e, other, t):
            first, slot, miss = t, k, math.sqrt(nx * nx + ny * ny)
    out[38] = first / CONFLICT_S
    out[39] = miss / CONFLICT_M
    out[40] = out[41] = 0.0
    if slot > 0:
        dx, dy = agents[slot].x - ego.x, agents[slot].y - ego.y
        out[40] = (dx * ego.cos + dy * ego.sin) / LENGTH
        out[41] = (dy * ego.cos - dx * ego.sin) / LENGTH


@kernel
def observe_scalars(maps: Maps, world: WorldState, e: int, out: Any) -> None:
    """Write the scalar observations."""
    ego, seen, episode = world.egos[e], localized(world, e), world.episodes[e]
    route = maps.routes[episode.route]
    p = maps.route_points[route.first + seen.index]
    half = 0.5 * world.agents[e, 0].length
    out[0] = seen.v / SPEED
    out[1] = ego.a / 5.0
    out[2] = ego.steer
    out[3] = ego.accel
    out[4] = ego.yaw_rate
    out[5] = seen.d / OFFSET
    out[6] = math.sin(seen.psi)
    out[7] = math.cos(seen.psi)
    out[8] = seen.lane_d / OFFSET
    out[9] = p.speed / SPEED
    out[10] = (seen.v - p.speed) / 5.0
    out[11] = (p.left - seen.d) / SHORT
    out[12] = (p.right + seen.d) / SHORT
    for k in range(14, 21):
        out[k] = 0.0
    ahead = p.stop - seen.progress - half
    out[13] = 1.0
    if ahead < SIGHT_M and ahead > -1.0:
        out[13] = ahead / SIGHT_M
        if p.control == 1:
            state, left = light(maps, world, e, p.group)
            out[14 + state] = 1.0
            out[17] = min(left, 20.0) / 20.0
        elif p.control == 2:
            out[18] = 1.0
            out[19] = 1.0 if abs(ego.stopped - p.stop) <= 0.5 else 0.0
        elif p.control == 3:
            out[20] = 1.0
    out[21] = min(max(p.conflict - seen.progress, 0.0), SIGHT_M) / SIGHT_M
    out[22] = p.inside
    closed = barrier(maps, world, e, 0, 0.0)
    if abs(closed - (maps.route_points[route.first + ego.index].stop - ego.progress - half)) < LINE_M:
        # it is the map that says where the line is
        closed -= seen.progress - ego.progress
    out[23] = min(max(closed, -2.0), 40.0) / 40.0
    out[24] = min(max(ego.gap, 0.0), SIGHT_M) / SIGHT_M
    near = ego.gap < SIGHT_M
    out[25] = ego.leader_v / SPEED if near else 0.0
    out[26] = (seen.v - ego.leader_v) / SHORT if near else 0.0
    out[27] = min(route.length - seen.progress, 200.0) / 200.0
    lane = maps.lanes[ego.lane]
    beside_lane(maps, world, e, lane.left, out, 28)
    beside_lane(maps, world, e, lane.right, out, 33)
    observe_conflict(maps, world, e, out)


@kernel
def observe_route(maps: Maps, world: WorldState, e: int, out: Any) -> None:
    """Write the points of the route ahead."""
    ego = localized(world, e)
    route = maps.routes[world.episodes[e].route]
    for k in range(len(ROUTE_AT)):
        i = min(ego.index + ROUTE_AT[k], route.count - 1)
        p = maps.route_points[route.first + i]
        dx, dy = p.x - ego.x, p.y - ego.y
        out[k, 0] = (dx * ego.cos + dy * ego.sin) / LENGTH
        out[k, 1] = (dy * ego.cos - dx * ego.sin) / SHORT
        out[k, 2] = p.curvature * SHORT


@kernel
def soon(ego: Any, other: Any) -> float:
    """Squared distance, m^2, of a road user's centre: the smaller of now and after `SOON_S` at constant velocities."""
    dx, dy = other.x - ego.x, other.y - ego.y
    later_x = dx + SOON_S * (other.v * other.cos - ego.v * ego.cos)
    later_y = dy + SOON_S * (other.v * other.sin - ego.v * ego.sin)
    return min(dx * dx + dy * dy, later_x * later_x + later_y * later_y)


@kernel
def observe_agents(maps: Maps, world: WorldState, e: int, out: Any, mask: Any) -> None:
    """Write the road users in range, ranked by `soon`, nearest first."""
    ego, agents = world.egos[e], world.agents[e]
    most = len(mask)
    # during insertion the mask holds squared distances, and column 6 the slots
    count = 0
    for slot in range(1, len(agents)):
        other = agents[slot]
        if other.kind == 0:
            continue
        dx, dy = other.x - ego.x, other.y - ego.y
        if dx * dx + dy * dy > SIGHT_M * SIGHT_M or hides(maps, world, e, other):
            continue
        square = soon(ego, other)
        if count == most and square >= mask[most - 1]:
            continue
        k = count if count < most else most - 1
        while k > 0 and mask[k - 1] > square:
            mask[k] = mask[k - 1]
            out[k, 6] = out[k - 1, 6]
            k -= 1
        mask[k] = square
        out[k, 6] = slot
        count = min(count + 1, most)
    for k in range(most):
        if k >= count:
            mask[k] = 0.0
            for j in range(len(AGENTS)):
                out[k, j] = 0.0
            continue
        mask[k] = 1.0
        other = agents[int(out[k, 6])]
        dx, dy = other.x - ego.x, other.y - ego.y
        out[k, 0] = (dx * ego.cos + dy * ego.sin) / LENGTH
        out[k, 1] = (dy * ego.cos - dx * ego.sin) / LENGTH
        out[k, 2] = other.cos * ego.cos + other.sin * ego.sin
        out[k, 3] = other.sin * ego.cos - other.cos * ego.sin
        out[k, 4] = other.v / SPEED
        out[k, 5] = other.length / SHORT
        out[k, 6] = 1.0 if other.kind == tables.PEDESTRIAN or other.kind == tables.CYCLIST else 0.0
        out[k, 7] = other.a / 5.0


@kernel
def observe_lanes(maps: Maps, world: WorldState, e: int, out: Any, mask: Any) -> None:
    """Write lane segments near the ego, from the grid of its map."""
    ego = localized(world, e)
    row = maps.maps[world.episodes[e].map]
    r = min(max(int((ego.y - row.y0) / row.grid_cell), 0), row.grid_rows - 1)
    c = min(max(int((ego.x - row.x0) / row.grid_cell), 0), row.grid_columns - 1)
    base = row.grid + (r * row.grid_columns + c) * NEAREST
    k = 0
    for i in range(NEAREST):
        number = maps.nearest[base + i]
        if k == len(mask) or number < 0:
            break
        segment = maps.segments[number]
        for j in range(2):
            dx = (segment.x0 if j == 0 else segment.x1) - ego.x
            dy = (segment.y0 if j == 0 else segment.y1) - ego.y
            out[k, 2 * j] = (dx * ego.cos + dy * ego.sin) / LENGTH
            out[k, 2 * j + 1] = (dy * ego.cos - dx * ego.sin) / LENGTH
        ahead, left = 0.5 * LENGTH * (out[k, 0] + out[k, 2]), 0.5 * LENGTH * (out[k, 1] + out[k, 3])
        if hidden(maps, world, e, segment.z, ahead, left):
            continue
        mask[k] = 1.0
        out[k, 4] = segment.speed / SPEED
        k += 1
    for rest in range(k, len(mask)):
        mask[rest] = 0.0
        for j in range(5):
            out[rest, j] = 0.0


@kernel
def observe_privileged(maps: Maps, world: WorldState, rules: Rules, e: int, out: Any) -> None:
    """Write the privileged observation."""
    ego, episode, judge = world.egos[e], world.episodes[e], world.judges[e]
    route = maps.routes[episode.route]
    hold = max(rules.hold_s, 1e-6)
    out[0] = (episode.limit - episode.steps) / max(episode.limit, 1)
    out[1] = 1.0 - episode.blocked / rules.blocked_s
    out[2] = (route.length - ego.best) / route.length
    out[3] = judge.ttc / hold
    for k in range(6):
        out[4 + k] = judge.comfort[k] / hold
    out[10] = min(judge.offset, 6.0) / 3.0


@kernel
def observe_ego(maps: Maps, world: WorldState, e: int, out: Any) -> None:
    """Write the scalars observed with a raster."""
    ego = localized(world, e)
    p = maps.route_points[maps.routes[world.episodes[e].route].first + ego.index]
    out[0] = ego.v / SPEED
    out[1] = ego.a / 5.0
    out[2] = ego.steer
    out[3] = ego.accel
    out[4] = ego.yaw_rate
    out[5] = p.speed / SPEED
    out[6] = (ego.v - p.speed) / 5.0
    out[7] = p.inside


@kernel
def observe(maps: Maps, world: WorldState, rules: Rules, vectors: Vectors, e: int) -> None:
    """Write all vector observations of env `e`, and where its ego takes itself to be."""
    if len(world.localized) > 0:
        localize(maps, world, rules, e)
    if len(vectors.scalars) > 0:
        observe_scalars(maps, world, e, vectors.scalars[e])
        observe_route(maps, world, e, vectors.route[e])
        if vectors.agents_mask.shape[1] > 0:
            observe_agents(maps, world, e, vectors.agents[e], vectors.agents_mask[e])
        if vectors.lanes_mask.shape[1] > 0:
            observe_lanes(maps, world, e, vectors.lanes[e], vectors.lanes_mask[e])
    if len(vectors.privileged) > 0:
        observe_privileged(maps, world, rules, e, vectors.privileged[e])
        observe_ego(maps, world, e, vectors.ego[e])
