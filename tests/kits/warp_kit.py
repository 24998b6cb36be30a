"""Driving logs for the tests: a road of two lanes with a bend, a few cars, frames that show a pattern on the ground.

Everything is written in numpy, apart from the kernels, so that what the sim shows can be compared with it.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.driving.logs import layout
from robotrl.sims.driving.logs.writer import LogWriter
from robotrl.spec import Split

Array = NDArray[Any]
STEPS, MARGIN_M = 90, 8.0
CLIPS: tuple[tuple[Split, int], ...] = (("train", 5), ("val", 5), ("test", 3))
LIGHTS = 1


def centerline(aside: float = 0.0) -> Array:
    """Points (n, 2) of a line `aside` m to the left of a road that goes straight on and then bends to the left."""
    s = np.arange(0.0, 400.0, 1.0)
    yaw = np.clip((s - 120.0) / 150.0, 0.0, 0.8)
    x, y = np.cumsum(np.cos(yaw)) - 1.0, np.cumsum(np.sin(yaw))
    return np.stack([x - aside * np.sin(yaw), y + aside * np.cos(yaw)], axis=1)


def poses_on(line: Array, s: Array) -> Array:
    """x, y, yaw (n, 3) at `s` m along a line."""
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(line, axis=0).T))])
    xy = np.stack([np.interp(s, along, line[:, k]) for k in range(2)], axis=1)
    ahead = np.stack([np.interp(s + 1.0, along, line[:, k]) for k in range(2)], axis=1)
    return np.column_stack([xy, np.arctan2(*(ahead - xy).T[::-1])])


def roads() -> dict[str, Array]:
    """Arrays of a map with two lanes of one direction; the right one has a light."""
    right, left = centerline(), centerline(3.5)
    return {
        "lane_sizes": np.array([len(right), len(left)], np.int32),
        "lane_points": np.concatenate([right, left]),
        "lane_width": np.array([3.5, 3.5]),
        "lane_speed": np.array([13.0, 15.0]),
        "lane_junction": np.zeros(2, bool),
        "lane_left": np.array([1, -1], np.int32),
        "lane_right": np.array([-1, 0], np.int32),
        "lane_next": np.zeros((0, 2), np.int32),
        "lane_control": np.array([1, 0], np.int32),
        "lane_stop_m": np.array([60.0, -1.0]),
        "lane_light": np.array([0, -1], np.int32),
        "crosswalks": np.array([[90.0, -3.0, 90.0, 7.0, 3.0]]),
        "parked": np.array([[150.0, -30.0, 0.3, 4.5, 1.9]]),
    }


def ground(x: Array, y: Array) -> Array:
    """Pattern on the ground, uint16 below 1 << 14: squares of 2 m with bits of their own."""
    i, j = np.floor(x / 2.0).astype(np.int64), np.floor(y / 2.0).astype(np.int64)
    return ((i * 7919 + j * 104729) % (1 << 14)).astype(np.uint16)


def pixel_positions(cfg: layout.FrameCfg, rows: int, columns: int, pose: Sequence[float]) -> tuple[Array, Array]:
    """World positions x, y (rows, columns) of the centers of a frame's pixels."""
    r, c = np.mgrid[:rows, :columns] + 0.5
    ahead, left = (cfg.ego_row - r) / cfg.pixels_per_m, (cfg.ego_column - c) / cfg.pixels_per_m
    cos, sin = np.cos(pose[2]), np.sin(pose[2])
    return pose[0] + ahead * cos - left * sin, pose[1] + ahead * sin + left * cos


def frame_cfg(kind: layout.FrameKind, pixels: int, ppm: float, names: tuple[str, ...] = ()) -> layout.FrameCfg:
    """A square frame that reaches `MARGIN_M` beyond a view of `pixels`."""
    size = pixels + 2 * round(MARGIN_M * ppm)
    ahead = pixels * (1.0 - 100 / 256) + MARGIN_M * ppm
    return layout.FrameCfg(kind, names, ppm, ahead, size / 2)


def frames_of(cfg: layout.FrameCfg, poses: Array) -> Array:
    """Frames of the ground seen from poses (T, 3)."""
    size = round(2 * cfg.ego_column)
    shown = np.stack([ground(*pixel_positions(cfg, size, size, pose)) for pose in poses])
    if cfg.kind == "raster":
        return shown
    channels = np.stack([(shown * (2 * k + 3)) % 251 for k in range(len(cfg.names))], axis=-1)
    return channels.astype(layout.DTYPES[cfg.kind])


def steps_of(poses: Array, speed: float) -> Array:
    """`layout.STEP` records."""
    steps = np.zeros(len(poses), layout.STEP)
    steps["time_s"] = 5.0 + 0.1 * np.arange(len(poses))
    steps["x"], steps["y"], steps["yaw"] = poses.T
    steps["speed"] = speed
    return steps


def agents_of(rng: np.random.Generator, count: int, steps: int = STEPS) -> Array:
    """`layout.AGENT` records (steps, count) of cars on the left lane, and of somebody who stands beside the road."""
    out = np.zeros((steps, count), layout.AGENT)
    for slot in range(count):
        speed = float(rng.uniform(4.0, 9.0))
        poses = poses_on(centerline(3.5), 5.0 + 25.0 * slot + float(rng.uniform(0, 9)) + 0.1 * speed * np.arange(steps))
        out[:, slot]["x"], out[:, slot]["y"], out[:, slot]["yaw"] = poses.T
        out[:, slot]["speed"], out[:, slot]["kind"], out[:, slot]["track"] = speed, 1, slot
        out[:, slot]["length"], out[:, slot]["width"] = 4.5, 1.8
    last = out[:, -1]
    last["x"], last["y"], last["yaw"], last["speed"], last["kind"] = float(rng.uniform(20, 60)), -6.0, 0.0, 0.0, 3
    last["length"] = last["width"] = 0.6
    return out


def write_log(
    path: Path,
    kind: layout.FrameKind | None = "raster",
    pixels: int = 32,
    ppm: float = 2.0,
    names: tuple[str, ...] = (),
    clips: Sequence[tuple[Split, int]] = CLIPS,
    with_map: bool = True,
    count: int = 4,
) -> Path:
    """Write a log; the ego keeps to the right lane at 8 m/s or so."""
    rng = np.random.default_rng(0)
    cfg = None if kind is None else frame_cfg(kind, pixels, ppm, names)
    with LogWriter(path, "tests", count, cfg) as writer:
        if with_map:
            writer.add_map("bend", roads())
        for split, number in clips:
            for k in range(number):
                speed, start = float(rng.uniform(5.0, 8.0)), float(rng.uniform(2.0, 30.0))
                poses = poses_on(centerline(), start + 0.1 * speed * np.arange(STEPS))
                lights = np.zeros((STEPS, LIGHTS), np.int8)
                lights[40 + k :] = 1
                writer.add_clip(
                    f"{split}-{k}",
                    split,
                    steps_of(poses, speed),
                    agents_of(rng, count),
                    centerline()[2:300],
                    "bend" if with_map else None,
                    ("straight", "bend")[k % 2],
                    lights=lights if with_map else None,
                    frames=None if cfg is None else frames_of(cfg, poses),
                )
    return path


@functools.cache
def small_log(kind: layout.FrameKind | None = "raster", names: tuple[str, ...] = ()) -> str:
    """Path of a log that this process writes once."""
    folder = Path(tempfile.mkdtemp(prefix="robotrl-log-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(write_log(folder / "log", kind, names=names))
