"""Reads logs of the nuPlan layout: SQLite files with the tables of the devkit's databases.

Read are `scene`, `lidar_pc`, `ego_pose`, `lidar_box`, `track`, `category`, and `scenario_tag` where it is there. Lanes
are in other files, so a clip drives on one wide lane along its own way; frames are not there either, so such a log is
one of vectors.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import DataError, check_number, short
from robotrl.sims.driving.logs import layout
from robotrl.sims.driving.logs.roads import continued
from robotrl.sims.driving.logs.tracks import LeftOut, clip_ranges, nearest_tracks, split_of
from robotrl.sims.driving.logs.writer import LogWriter
from robotrl.spec import Split

COLUMNS = {
    "scene": ("token", "name"),
    "lidar_pc": ("token", "scene_token", "ego_pose_token", "timestamp"),
    "ego_pose": ("token", "x", "y", "qw", "qx", "qy", "qz", "vx", "vy"),
    "lidar_box": ("lidar_pc_token", "track_token", "x", "y", "yaw", "length", "width", "vx", "vy"),
    "track": ("token", "category_token"),
    "category": ("token", "name"),
}
"""Tables and columns that are read."""
KIND = {"vehicle": 1, "bicycle": 2, "pedestrian": 3}
"""Names of categories to kinds of road users; all others are obstacles."""
OBSTACLE = 4
EGO_M = (5.176, 2.297)
"""Length and width of the logging car (Chrysler Pacifica)."""
REAR_TO_CENTER_M = 1.461
"""Distance from the logged point, the middle of the rear axle, to the car's center."""
SKIP_S = 0.075
"""Scans that come sooner than this after the last one that was kept are left out."""


class NuplanScene(NamedTuple):
    """Scans of a scene at about 10 Hz."""

    steps: NDArray[Any]
    tokens: list[bytes]


def read_nuplan(
    paths: Sequence[Path],
    out: Path,
    slots: int = 31,
    clip_s: float = 20.0,
    split: Split | None = None,
    progress: Callable[[int], None] | None = None,
    left_out: LeftOut | None = None,
) -> layout.LogIndex:
    """Write logs of the nuPlan layout as a driving log.

    Args:
        paths: SQLite files.
        out: folder of the log; must not exist, or be empty.
        slots: road users that are kept of a clip, those that come nearest to the ego.
        clip_s: length of the longest clip, s.
        split: split of all clips; None: of ten scenes eight for training, one for validation, one for the test.
        progress: called with the number of scenes so far.
        left_out: counts what is left out.

    Raises:
        ConfigError: a length out of range.
        DataError: a file is no such database; the table or column that is missing is named.
    """
    check_number("clip_s", clip_s, layout.MIN_STEPS * layout.PERIOD_S, 3600.0, "s")
    number = 0
    counted = LeftOut() if left_out is None else left_out
    with LogWriter(out, f"nuPlan-style logs {', '.join(path.name for path in paths)}"[:200], slots) as writer:
        for path in paths:
            with _opened(path) as base:
                _check(path, base)
                tags = _tags(base)
                for token, name in base.execute("SELECT token, name FROM scene ORDER BY name, token").fetchall():
                    chosen = split or split_of(number)
                    longest = round(clip_s / layout.PERIOD_S)
                    _add(writer, base, path, token, f"{path.stem}-{name}", tags, longest, chosen, counted)
                    number += 1
                    if progress is not None:
                        progress(number)
    return layout.LogIndex(layout.SCHEMA_VERSION, writer.source, tuple(writer.clips))


@contextlib.contextmanager
def _opened(path: Path) -> Any:
    """Connection to a database that is only read."""
    if not path.is_file():
        raise DataError(f"nuPlan log {path} does not exist, or is no file")
    base = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        yield base
    except sqlite3.Error as error:
        raise DataError(f"nuPlan log {path} cannot be read ({short(str(error), 160)})") from error
    finally:
        base.close()


def _check(path: Path, base: sqlite3.Connection) -> None:
    for table, columns in COLUMNS.items():
        there = [row[1] for row in base.execute(f"PRAGMA table_info({table})")]
        if not there:
            raise DataError(f"nuPlan log {path} has no table {table!r}: expected {', '.join(COLUMNS)}")
        for column in columns:
            if column not in there:
                raise DataError(f"nuPlan log {path}: table {table!r} has no column {column!r}: expected {columns}")


def _tags(base: sqlite3.Connection) -> dict[bytes, str]:
    """Type of the scenario of each scan that has one."""
    if not base.execute("SELECT 1 FROM sqlite_master WHERE name = 'scenario_tag'").fetchone():
        return {}
    return dict(base.execute("SELECT lidar_pc_token, type FROM scenario_tag ORDER BY type").fetchall())


def _add(
    writer: LogWriter,
    base: sqlite3.Connection,
    path: Path,
    token: bytes,
    name: str,
    tags: dict[bytes, str],
    longest: int,
    split: Split,
    left_out: LeftOut,
) -> None:
    """Add the clips of a scene."""
    scene = _scene(base, path, token)
    for k, span in enumerate(clip_ranges(scene.steps["time_s"], longest, left_out)):
        steps = scene.steps[span.start : span.stop].copy()
        tokens = scene.tokens[span.start : span.stop]
        origin = np.array([steps["x"][0], steps["y"][0]])
        steps["x"] -= origin[0]
        steps["y"] -= origin[1]
        steps["time_s"] -= steps["time_s"][0]
        agents = nearest_tracks(_agents(base, tokens, origin), steps, writer.slots, left_out)
        way = continued(np.stack([steps["x"], steps["y"]], axis=1), float(steps["yaw"][-1]))
        kinds = [tags[one] for one in tokens if one in tags]
        scenario = max(sorted(set(kinds)), key=kinds.count) if kinds else "log"
        writer.add_clip(f"{name}-{k}", split, steps, agents, way, scenario=scenario, size_m=EGO_M)


def _scene(base: sqlite3.Connection, path: Path, token: bytes) -> NuplanScene:
    query = (
        "SELECT l.token, l.timestamp, p.x, p.y, p.qw, p.qx, p.qy, p.qz, p.vx, p.vy FROM lidar_pc AS l"
        " LEFT JOIN ego_pose AS p ON p.token = l.ego_pose_token WHERE l.scene_token = ? ORDER BY l.rowid"
    )
    rows = base.execute(query, (token,)).fetchall()
    if any(value is None for row in rows for value in row):
        raise DataError(f"nuPlan log {path}: a scan of a scene has no pose: expected one pose for each")
    times = np.array([row[1] for row in rows], np.float64) * 1e-6
    if (np.diff(times) <= 0).any():
        # rows may stand in any order, but not two at a time
        order = np.argsort(times, kind="stable")
        rows, times = [rows[k] for k in order], times[order]
        if (np.diff(times) <= 0).any():
            raise DataError(f"nuPlan log {path}: two scans of a scene have one timestamp: expected times that go on")
    kept: list[int] = []
    for k, time in enumerate(times.tolist()):
        if not kept or time - times[kept[-1]] > SKIP_S:
            kept.append(k)
    steps = np.zeros(len(kept), layout.STEP)
    for step, k in zip(steps, kept, strict=True):
        _, _, x, y, qw, qx, qy, qz, vx, vy = rows[k]
        yaw = math.atan2(2.0 * (qw * qz + qx * qy), 1.0 - 2.0 * (qy * qy + qz * qz))
        step["x"], step["y"] = x + REAR_TO_CENTER_M * math.cos(yaw), y + REAR_TO_CENTER_M * math.sin(yaw)
        # the velocity is that in the car's frame
        step["yaw"], step["speed"], step["time_s"] = yaw, math.hypot(vx, vy), times[k]
    return NuplanScene(steps, [rows[k][0] for k in kept])


def _agents(base: sqlite3.Connection, tokens: Sequence[bytes], origin: NDArray[np.float64]) -> NDArray[Any]:
    """`layout.AGENT` records (T, K) of all tracks of some scans."""
    query = (
        "SELECT b.track_token, c.name, b.x, b.y, b.yaw, b.length, b.width, b.vx, b.vy FROM lidar_box AS b"
        " JOIN track AS t ON t.token = b.track_token JOIN category AS c ON c.token = t.category_token"
        " WHERE b.lidar_pc_token = ?"
    )
    scans = [base.execute(query, (token,)).fetchall() for token in tokens]
    slot = {track: k for k, track in enumerate(dict.fromkeys(row[0] for scan in scans for row in scan))}
    out = np.zeros((len(tokens), len(slot)), layout.AGENT)
    for t, scan in enumerate(scans):
        for track, category, x, y, yaw, length, width, vx, vy in scan:
            row = out[t, slot[track]]
            row["track"], row["kind"] = slot[track], KIND.get(category, OBSTACLE)
            row["x"], row["y"], row["yaw"] = x - origin[0], y - origin[1], yaw
            row["length"], row["width"] = length, width
            row["speed"] = vx * math.cos(yaw) + vy * math.sin(yaw)
    return out
