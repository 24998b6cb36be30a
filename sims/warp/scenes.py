"""Scenes of a driving log: observations at logged steps, with the past and the future of all road users around them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import DataError, check_count, check_number
from robotrl.sims import starts
from robotrl.sims.driving import tables
from robotrl.sims.driving.traffic.right_of_way import RED
from robotrl.sims.driving.world import Maps
from robotrl.sims.warp.core import WarpCore
from robotrl.spec import Split
from robotrl.spec.vehicle import DIVIDER, EDGE, LoggedScenes, SceneCfg

NEAR_M = 60.0
"""Distance within which road users belong to a scene."""
PIECE_M = 3.0
"""Length of a piece of a line."""
ASIDE_M = 0.75
"""Distance beyond a lane's border at which there is road, or none."""
STOP_HALF_M = 2.5
"""Half the width of a stop line; on its own lane alone."""
AWAY_M = 1.0e4
"""Place of a stop line that does not exist."""
SPARE = 16
"""Pieces beyond those of a scene that take the places of such as were driven over."""
SLACK_M = 0.3
"""Distance from the logged ego's box within which a line was driven over, and so is none."""

Floats = NDArray[np.float32]


class Moment(NamedTuple):
    """A scene's own step, as the sim knows it."""

    clip: int
    step: int
    pool_map: int
    """Its map in the pool."""
    stop: NDArray[np.float64]
    """(4,) both ends of the next stop line in the world."""
    control: int
    """0 none, 1 light, 2 stop sign at which the ego has not stopped."""
    light: int
    limit_mps: float


def logged_scenes(core: WarpCore, split: Split, cfg: SceneCfg) -> LoggedScenes:
    """Scenes of all clips of a split; see `HasLoggedScenes`.

    Args:
        core: the sim; its episodes are abandoned.
        split: clips to use.
        cfg: sizes.

    Raises:
        ConfigError: a size out of range.
        DataError: no clip of the split, none that is long enough, or nobody but the ego was logged.
    """
    _check(core, split, cfg)
    obs, moments = _trace(core, split, cfg)
    pool: Maps = core.pool
    segments = {number: map_lines(pool, number) for number in {moment.pool_map for moment in moments}}
    parts = [_scene(core, pool, segments[moment.pool_map], moment, cfg) for moment in moments]
    joined = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
    if not (joined["kind"] > 0).any():
        raise DataError(
            f"driving log {core.log.path} has nobody within {NEAR_M:g} m of the ego in the clips of {split!r}: expected"
            " other road users, whose reactions are learned"
        )
    return LoggedScenes(
        obs=obs,
        clip=np.array([moment.clip for moment in moments], np.int64),
        step=np.array([moment.step for moment in moments], np.int64),
        limit_mps=np.array([moment.limit_mps for moment in moments], np.float32),
        **joined,
    )


def _check(core: WarpCore, split: Split, cfg: SceneCfg) -> None:
    for name, low, high in (
        ("every", 1, 1000),
        ("history", 1, 100),
        ("horizon", 1, 200),
        ("agents", 1, 256),
        ("lines", 1, 1024),
        ("points", 2, 100),
    ):
        check_count(f"scenes.{name}", getattr(cfg, name), low, high)
    check_number("scenes.spacing_m", cfg.spacing_m, 0.1, 20.0, "m")
    clips = [core.log.meta.clips[number] for number in core.log.clips_of(split)]
    needed = cfg.history + 1 + cfg.horizon
    if not clips:
        raise DataError(f"driving log {core.log.path} has no clip of the split {split!r}: expected one or more")
    longest = max(clip.steps for clip in clips)
    if longest < needed:
        raise DataError(
            f"driving log {core.log.path}: the longest clip of {split!r} has {longest} steps: expected {needed} or"
            f" more, {cfg.history} before a scene and a horizon of {cfg.horizon} after it"
        )


def _trace(core: WarpCore, split: Split, cfg: SceneCfg) -> tuple[dict[str, NDArray[Any]], list[Moment]]:
    """Drive all clips of a split as they were logged; observations and moments of the scenes."""
    numbers, n = core.log.clips_of(split), core.num_envs
    first_id = starts.ids_of(split).start
    rows: dict[str, list[NDArray[Any]]] = {key: [] for key in core.obs}
    moments: list[Moment] = []
    for begin in range(0, len(numbers), n):
        chosen = numbers[begin : begin + n]
        core.queue_states([first_id + begin + k for k in range(len(chosen))])
        core.reset()
        length = np.zeros(n, np.int64)
        length[: len(chosen)] = [core.log.meta.clips[number].steps for number in chosen]
        for k in range(1, int(length.max())):
            core.trace(k < length)
            if k < cfg.history or (k - cfg.history) % cfg.every:
                continue
            envs = np.flatnonzero(k + cfg.horizon < length)
            for key, some in rows.items():
                some.append(core.obs[key][envs].copy())
            moments += [_moment(core, chosen[e], e, k) for e in envs.tolist()]
    return {key: np.concatenate(some) for key, some in rows.items()}, moments


def _moment(core: WarpCore, clip: int, e: int, k: int) -> Moment:
    pool, episode, ego = core.pool, core.world.episodes[e], core.world.egos[e]
    route = pool.routes[episode["route"]]
    points = pool.route_points[route["first"] : route["first"] + route["count"]]
    half = 0.5 * float(core.world.agents["length"][e, 0])
    here = points[int(ego["index"])]
    ahead = points[min(max(int(ego["progress"] + half), 0), len(points) - 1)]
    stop, control = np.full(4, AWAY_M), 0
    line = float(ahead["stop"])
    if line < tables.FAR and line < len(points):
        control = int(ahead["control"])
        if control == 2 and abs(float(ego["stopped"]) - line) <= 0.5:
            control = 0
        at = points[int(line)]
        x, y = at["x"] + (line - int(line)) * at["cos"], at["y"] + (line - int(line)) * at["sin"]
        side = STOP_HALF_M * np.array([-at["sin"], at["cos"]])
        stop = np.array([x + side[0], y + side[1], x - side[0], y - side[1]], np.float64)
    number = int(core.arrays.clips["map"][clip])
    return Moment(clip, k, number, stop, control, int(ahead["group"]), float(here["speed"]))


def _scene(core: WarpCore, pool: Maps, lines: tuple[Floats, NDArray[np.int64]], m: Moment, cfg: SceneCfg) -> Any:
    """Arrays of a scene, in the frame of its ego."""
    log, clip = core.log, core.log.meta.clips[m.clip]
    now = clip.first + m.step
    span = slice(now - cfg.history, now + cfg.horizon + 1)
    poses = _columns(log.steps[span])
    origin = poses[cfg.history, :3]
    ego = to_frame(poses, origin)
    agents, there, kind, size = _agents(core, pool, m, span, origin, cfg)
    way, way_there = logged_way(core.log.steps[now : clip.first + clip.steps], origin, cfg)
    ends = _points_to_frame(lines[0].reshape(-1, 2, 2), origin).reshape(-1, 4)
    sizes = np.array([clip.ego_length_m, clip.ego_width_m], np.float32)
    line, line_kind = _near_lines(ends, lines[1], ego[cfg.history :: 3], sizes, cfg.lines)
    closed = np.zeros(cfg.horizon + 1, bool)
    if m.control == 1 and m.light < log.lights.shape[1]:
        closed = np.asarray(log.lights[now : now + cfg.horizon + 1, m.light]) == RED
    elif m.control == 2:
        closed[:] = True
    stop = _points_to_frame(m.stop.reshape(2, 2), origin).reshape(4)
    return {
        "ego": ego,
        "ego_size": sizes,
        "agents": agents,
        "there": there,
        "kind": kind,
        "size": size,
        "way": way,
        "way_there": way_there,
        "lines": line,
        "line_kind": line_kind,
        "stop": stop.astype(np.float32),
        "closed": closed,
    }


def to_frame(poses: NDArray[np.float64], origin: NDArray[np.float64]) -> Floats:
    """Poses (..., 4) x, y, yaw and speed in the frame of a pose (3,) x, y, yaw."""
    xy = _points_to_frame(poses[..., :2], origin)
    yaw = (poses[..., 2] - origin[2] + np.pi) % (2 * np.pi) - np.pi
    return np.concatenate([xy, yaw[..., None], poses[..., 3:]], axis=-1).astype(np.float32)


def _points_to_frame(points: NDArray[Any], origin: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points (..., 2) in the frame of a pose (3,)."""
    cos, sin = np.cos(origin[2]), np.sin(origin[2])
    x, y = points[..., 0] - origin[0], points[..., 1] - origin[1]
    return np.stack([x * cos + y * sin, y * cos - x * sin], axis=-1)


def _agents(
    core: WarpCore, pool: Maps, m: Moment, span: slice, origin: NDArray[np.float64], cfg: SceneCfg
) -> tuple[Floats, NDArray[np.bool_], NDArray[np.int64], Floats]:
    """Nearest road users: poses (K, M, 4), steps at which they are there (K, M), kinds (M,), sizes (M, 2)."""
    logged = np.asarray(core.log.agents[span])
    here = logged[cfg.history]
    steps = len(logged)
    moving = np.flatnonzero(here["kind"] > 0)
    row = pool.maps[m.pool_map]
    parked = pool.parked[int(row["parked"]) : int(row["parked"]) + int(row["parkeds"])]
    places = np.concatenate(
        [
            np.stack([here["x"][moving], here["y"][moving]], axis=1),
            np.stack([parked["x"], parked["y"]], axis=1),
        ]
    )
    distance = np.hypot(*(places - origin[:2]).T)
    order = np.argsort(distance, kind="stable")
    order = order[distance[order] < NEAR_M][: cfg.agents]
    poses = np.zeros((steps, cfg.agents, 4))
    there = np.zeros((steps, cfg.agents), bool)
    kind, size = np.zeros(cfg.agents, np.int64), np.zeros((cfg.agents, 2), np.float32)
    slots = np.arange(len(order))
    cars = slots[order < len(moving)]
    who = logged[:, moving[order[cars]]]
    there[:, cars] = _around((who["kind"] > 0) & (who["track"] == who["track"][cfg.history]), cfg.history)
    poses[:, cars] = _columns(who)
    kind[cars] = who["kind"][cfg.history]
    size[cars, 0], size[cars, 1] = who["length"][cfg.history], who["width"][cfg.history]
    rest = slots[order >= len(moving)]
    boxes = parked[order[rest] - len(moving)]
    yaw = np.arctan2(boxes["sin"], boxes["cos"])
    poses[:, rest] = np.stack([boxes["x"], boxes["y"], yaw, np.zeros(len(rest))], axis=1)
    there[:, rest], kind[rest] = True, tables.OBSTACLE
    size[rest, 0], size[rest, 1] = boxes["length"], boxes["width"]
    return to_frame(poses, origin) * there[..., None], there, kind, size


def _columns(records: NDArray[Any]) -> NDArray[np.float64]:
    """x, y, yaw and speed (..., 4) of records of the log."""
    return np.stack([records[name].astype(np.float64) for name in ("x", "y", "yaw", "speed")], axis=-1)


def _around(there: NDArray[np.bool_], at: int) -> NDArray[np.bool_]:
    """The uninterrupted stretch of true values (K, m) around an index, along the first axis."""
    before = np.logical_and.accumulate(there[: at + 1][::-1], axis=0)[::-1]
    return np.concatenate([before, np.logical_and.accumulate(there[at + 1 :], axis=0)])


def logged_way(steps: NDArray[Any], origin: NDArray[np.float64], cfg: SceneCfg) -> tuple[Floats, NDArray[np.bool_]]:
    """Points (P, 2) at equal distances along the way of logged steps (n,), and which of them were reached (P,).

    Beyond the end of the clip the way goes straight on.
    """
    xy = _points_to_frame(np.stack([steps["x"], steps["y"]], axis=1), origin)
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(xy, axis=0).T))])
    at = cfg.spacing_m * np.arange(1, cfg.points + 1)
    way = np.stack([np.interp(at, along, xy[:, k]) for k in range(2)], axis=1)
    course = steps["yaw"][-1] - origin[2]
    way += np.maximum(at - along[-1], 0.0)[:, None] * np.array([np.cos(course), np.sin(course)])
    return way.astype(np.float32), at <= along[-1]


def map_lines(pool: Maps, number: int) -> tuple[Floats, NDArray[np.int64]]:
    """Pieces (n, 4) of the lines of a map, both ends, and their kinds: borders of lanes beyond which no lane follows.

    There are none in junctions.
    """
    row = pool.maps[number]
    ends: list[NDArray[Any]] = []
    kinds: list[NDArray[np.int64]] = []
    for lane in pool.lanes[int(row["lane"]) : int(row["lane"]) + int(row["lanes"])]:
        if lane["junction"] >= 0:
            continue
        points = pool.points[int(lane["first"]) : int(lane["first"]) + int(lane["count"])]
        step = max(round(PIECE_M / float(lane["spacing"])), 1)
        points = points[np.unique(np.append(np.arange(0, len(points), step), len(points) - 1))]
        for side, name in ((1.0, "left"), (-1.0, "right")):
            # a log tells where one may change lanes, not which lanes lie beside each other
            if lane[name] >= 0 or lane[f"beside_{name}"] >= 0 or len(points) < 2:
                continue
            out = side * 0.5 * float(lane["width"])
            x, y = points["x"] - out * points["sin"], points["y"] + out * points["cos"]
            ends.append(np.stack([x[:-1], y[:-1], x[1:], y[1:]], axis=1))
            beyond = side * ASIDE_M
            middle_x = 0.5 * (x[:-1] + x[1:]) - beyond * points["sin"][:-1]
            middle_y = 0.5 * (y[:-1] + y[1:]) + beyond * points["cos"][:-1]
            kinds.append(np.where(_drivable(pool, row, middle_x, middle_y), DIVIDER, EDGE))
    if not ends:
        return np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
    return np.concatenate(ends).astype(np.float32), np.concatenate(kinds).astype(np.int64)


def _drivable(pool: Maps, row: Any, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.bool_]:
    """True for the points (n,) that lie on a map's drivable surface; on any level."""
    r, c = np.floor((y - row["y0"]) / row["cell"]).astype(int), np.floor((x - row["x0"]) / row["cell"]).astype(int)
    inside = (r >= 0) & (c >= 0) & (r < row["rows"]) & (c < row["columns"])
    cell = int(row["tile"]) + np.where(inside, r * int(row["columns"]) + c, 0)
    return inside & (pool.tiles[cell] & tables.DRIVABLE != 0)


def _near_lines(
    ends: NDArray[np.float64], kinds: NDArray[np.int64], ego: Floats, size: Floats, most: int
) -> tuple[Floats, NDArray[np.int64]]:
    """The nearest pieces (L, 4), and their kinds (L,), without those over which the logged ego (T, 4) drives."""
    out, out_kind = np.zeros((most, 4), np.float32), np.zeros(most, np.int64)
    middle = 0.5 * (ends[:, :2] + ends[:, 2:])
    distance = np.hypot(middle[:, 0] - 0.25 * NEAR_M, middle[:, 1])
    order = np.argsort(distance, kind="stable")[: most + SPARE]
    driven = _driven_over(ends[order], ego, size)
    order = order[~driven][:most]
    out[: len(order)], out_kind[: len(order)] = ends[order], kinds[order]
    return out, out_kind


def _driven_over(ends: NDArray[np.float64], ego: Floats, size: Floats) -> NDArray[np.bool_]:
    """True for the pieces (n, 4) of which a point lies in the ego's box, with slack, at one of the poses (T, 4)."""
    part = np.array([0.0, 0.25, 0.5, 0.75, 1.0])[:, None]
    points = ends[:, None, :2] + part * (ends[:, None, 2:] - ends[:, None, :2])
    apart = points[:, :, None] - ego[None, None, :, :2]
    cos, sin = np.cos(ego[:, 2]), np.sin(ego[:, 2])
    ahead, left = apart[..., 0] * cos + apart[..., 1] * sin, apart[..., 1] * cos - apart[..., 0] * sin
    inside = (np.abs(ahead) < 0.5 * size[0] + SLACK_M) & (np.abs(left) < 0.5 * size[1] + SLACK_M)
    return inside.any(axis=(1, 2))
