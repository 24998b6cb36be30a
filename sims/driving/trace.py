"""Episode recording of the driving sim for the viewer: map, poses, step results and plans."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.driving import geometry, tables
from robotrl.sims.driving.core import DrivingCore
from robotrl.sims.driving.roads.lanes import Control
from robotrl.sims.driving.traffic import ego
from robotrl.sims.driving.traffic.right_of_way import light
from robotrl.sims.driving.world import WorldState
from robotrl.spec.drive_trace import TraceFrame, TraceLane, TraceMap, TraceStep, TraceStop

AWAY_M = 1e5
"""Distance beyond which a road user has left the map."""


def map_of(core: DrivingCore, env: int) -> TraceMap:
    """Map of an env's running episode."""
    arrays, world = core.bank.arrays, core.world
    row, route = arrays.maps[world.episodes["map"][env]], arrays.routes[world.episodes["route"][env]]

    def part(name: str, first: str) -> Any:
        return getattr(arrays, name)[row[first] : row[first] + row[f"{first}s"]]

    lanes: list[TraceLane] = []
    stops: list[TraceStop] = []
    for lane in part("lanes", "lane"):
        points = arrays.points[lane["first"] : lane["first"] + lane["count"]]
        marks = bool(lane["junction"] >= 0), bool(lane["left"] >= 0), bool(lane["right"] >= 0)
        lanes.append(TraceLane(columns(points, "x", "y"), float(lane["width"]), *marks))
        if lane["control"] != Control.NONE:
            x, y, yaw = posed(points[min(round(float(lane["stop"] / lane["spacing"])), len(points) - 1)])
            control: Any = Control(lane["control"]).name.lower()
            stops.append(TraceStop(x, y, yaw, float(lane["width"]), control, int(lane["group"])))
    parked = part("parked", "parked")
    return TraceMap(
        scenario=core.scenarios[world.episodes["scenario"][env]],
        lanes=tuple(lanes),
        stops=tuple(stops),
        walks=columns(part("walks", "walk"), "x0", "y0", "x1", "y1", "width"),
        parked=np.column_stack([*posed(parked), columns(parked, "length", "width")]),
        route=columns(arrays.route_points[route["first"] : route["first"] + route["count"]], "x", "y"),
        size=(float(world.agents["length"][env, 0]), float(world.agents["width"][env, 0])),
    )


def frame_of(core: DrivingCore, world: WorldState, e: int) -> TraceFrame:
    """Poses of all road users in env `e` of a world."""
    arrays, me, episode = core.bank.arrays, world.egos[e], world.episodes[e]
    others = world.agents[e, 1:]
    slots = np.flatnonzero((others["kind"] > 0) & (np.abs(others["x"]) < AWAY_M))
    there = others[slots]
    point = arrays.route_points[arrays.routes[episode["route"]]["first"] + me["index"]]
    return TraceFrame(
        state_id=int(episode["seed"]),
        time_s=float(episode["time"]),
        ego=(float(me["x"]), float(me["y"]), float(me["yaw"])),
        speed_mps=float(me["v"]),
        limit_mps=float(point["speed"]),
        slots=slots + 1,
        kinds=there["kind"].astype(np.int64) - 1,
        boxes=np.column_stack([*posed(there), columns(there, "length", "width", "v")]),
        lights=tuple(light(arrays, world, e, g)[0] for g in range(arrays.maps[episode["map"]]["signals"])),
    )


def step_of(core: DrivingCore, env: int) -> TraceStep:
    """Result of the last step in an env."""
    events = int(core.events[env])
    hit = events & (tables.VEHICLE | tables.PERSON | tables.STATIC)
    return TraceStep(
        reward=float(core.reward[env]),
        terms={name: float(term) for name, term in zip(tables.TERMS, core.terms[env], strict=True)},
        completion=float(core.completion[env]),
        events=tuple(name for name, bit in tables.EVENTS.items() if events & bit),
        at_fault=bool(core.drives[env].at_fault) if hit else None,
        success=bool(core.success[env]),
        score=float(core.score[env]) if events else math.nan,
        last=frame_of(core, core.ended, int(np.flatnonzero(core.ended_ids == env)[0])) if events else None,
    )


def plan_of(core: DrivingCore, env: int, actions: NDArray[Any]) -> NDArray[np.float64]:
    """Predicted ego poses (m, 3) x, y, yaw: after each of the actions (n, A), or along the first trajectory."""
    rules, me = core.rules, core.world.egos[env]
    x, y, yaw, v = (float(me[name]) for name in ("x", "y", "yaw", "v"))
    if rules.planned:
        cos, sin = math.cos(yaw), math.sin(yaw)
        points = np.array([[0.0, 0.0], *np.reshape(actions[0], (-1, 2))])
        steps = np.diff(points, axis=0)
        turned = np.where(np.hypot(*steps.T) > 0.1, np.arctan2(steps[:, 1], steps[:, 0]), 0.0)
        ahead, left = points[1:].T
        return np.stack([x + ahead * cos - left * sin, y + ahead * sin + left * cos, yaw + turned], axis=-1)
    out = np.zeros((len(actions), 3))
    state = x, y, yaw, v
    for row, (steer, accel) in zip(out, np.clip(actions, -1.0, 1.0).tolist(), strict=True):
        for _ in range(ego.SUBSTEPS * rules.hold):
            rate = ego.acceleration(accel, rules.throttle)
            state = geometry.bicycle(*state, steer, rate, rules.dt / ego.SUBSTEPS)
        row[:] = state[:3]
    return out


def columns(records: Any, *names: str) -> NDArray[np.float64]:
    """Fields of records as an array (n, len(names))."""
    return np.stack([records[name] for name in names], axis=-1).astype(np.float64)


def posed(records: Any) -> tuple[Any, Any, Any]:
    """x, y and yaw of records with a direction (cos, sin)."""
    return records["x"], records["y"], np.arctan2(records["sin"], records["cos"])
