"""Layout of driving logs on disk: a folder of arrays, and a JSON index; read strictly.

    log.json     index: clips, frames, schema version
    steps.npy    (F,) `STEP`: time, ego pose and speed at each step of all clips, clip after clip
    agents.npy   (F, M) `AGENT`: the other road users; a slot is one of them as long as its `track` stays the same
    routes.npy   (P, 2) float64: points of the clips' routes, m
    lights.npy   (F, G) int8, optional: state of each light of the clip's map: 0 green, 1 yellow, 2 red, -1 unknown
    frames.npy   bird's-eye frames, optional: uint16 (F, height, width) with frames of kind "raster", (F, height, width,
                 channels) of uint8 with "channels" and of float32 with "features"
    maps/*.npz   lanes of a map, see `robotrl.sims.driving.logs.roads`

Coordinates are meters in a plane that all clips of a map share, right-handed, with yaw counter-clockwise from x in rad;
subtract an origin near by, because the simulation computes with 32 bits. Steps are 0.1 s apart. A frame shows the scene
of its step in the ego's direction, which is up; the ego is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import DataError, nearest, short
from robotrl.sims.driving.logs.roads import WAY_WIDTH_M, count_lights, read_roads
from robotrl.sims.driving.roads.maps import MARGIN_M
from robotrl.spec import Split
from robotrl.spec.json_fields import check_settings, settings_of
from robotrl.utils.files import not_fetched, read_json

SCHEMA_VERSION = 1
INDEX, STEPS, AGENTS, ROUTES, LIGHTS, FRAMES, MAPS = (
    "log.json",
    "steps.npy",
    "agents.npy",
    "routes.npy",
    "lights.npy",
    "frames.npy",
    "maps",
)
PERIOD_S, JITTER_S = 0.1, 0.05
"""Time between steps, and how much it may be off."""
MIN_STEPS = 10
"""Steps of the shortest clip."""
FARTHEST_M = 50_000.0
"""Largest coordinate, which 32 bits hold to 4 mm."""
STEP = np.dtype([("time_s", "<f8"), ("x", "<f8"), ("y", "<f8"), ("yaw", "<f8"), ("speed", "<f8")])
AGENT = np.dtype(
    [
        ("track", "<i4"),  # number of the road user within its clip
        ("kind", "<i4"),  # 0 empty, 1 car, 2 cyclist, 3 pedestrian, 4 obstacle
        ("x", "<f4"),
        ("y", "<f4"),
        ("yaw", "<f4"),
        ("speed", "<f4"),  # m/s, along the yaw
        ("length", "<f4"),
        ("width", "<f4"),
    ]
)
FrameKind = Literal["raster", "channels", "features"]
DTYPES: Mapping[str, np.dtype[Any]] = {
    "raster": np.dtype("<u2"),
    "channels": np.dtype("u1"),
    "features": np.dtype("<f4"),
}
KINDS = 5
"""Number of values of `AGENT`'s kind."""


@dataclass(frozen=True)
class FrameCfg:
    """Contents and scale of the frames; see the module."""

    kind: FrameKind
    """"raster": packed pixels as `bev/drive` draws them; "channels": bytes; "features": float32 numbers."""
    names: tuple[str, ...]
    """Name of each channel; none for "raster"."""
    pixels_per_m: float
    ego_row: float
    """Ego's center, pixels from the upper edge."""
    ego_column: float
    """Ego's center, pixels from the left edge."""


@dataclass(frozen=True)
class ClipCfg:
    """Clip: an uninterrupted piece of a drive."""

    name: str
    split: Split
    first: int
    """Its first step."""
    steps: int
    """Number of steps."""
    route_first: int
    """First point of its route."""
    route_points: int
    map: str | None = None
    """Name of its map; without one it drives on one wide lane along its own way."""
    scenario: str = "log"
    ego_length_m: float = 4.7
    ego_width_m: float = 1.9


@dataclass(frozen=True)
class LogIndex:
    """Content of `log.json`."""

    schema_version: int
    source: str
    """Where the log comes from, for people."""
    clips: tuple[ClipCfg, ...]
    frames: FrameCfg | None = None


class DriveLog(NamedTuple):
    """Driving log that was read; arrays are read-only and stay on disk until they are used."""

    path: Path
    meta: LogIndex
    steps: NDArray[Any]
    """(F,) `STEP` records."""
    agents: NDArray[Any]
    """(F, M) `AGENT` records."""
    routes: NDArray[np.float64]
    lights: NDArray[np.int8]
    """(F, G) states of lights; G is 0 without."""
    frames: NDArray[Any] | None

    def clips_of(self, split: Split) -> list[int]:
        """Numbers of the clips of a split."""
        return [k for k, clip in enumerate(self.meta.clips) if clip.split == split]

    def map_file(self, name: str) -> Path:
        """File of a map."""
        return self.path / MAPS / f"{name}.npz"


def read_log(path: Path) -> DriveLog:
    """Read a driving log and check it.

    Raises:
        DataError: a file is missing, truncated, or of another form; frames and poses differ in number; times go back;
            a number is not finite; a map has more lights than the log has states of.
    """
    if not (path / INDEX).exists():
        raise DataError(
            f"driving log {str(path)!r} has no {INDEX}: expected a folder that `robotrl driving-log` has written"
        )
    index = _index(path)
    steps = _array(path, STEPS, STEP, 1)
    agents = _array(path, AGENTS, AGENT, 2)
    routes = _array(path, ROUTES, np.dtype("<f8"), 2)
    lights = np.zeros((len(steps), 0), np.int8)
    # read-only as the arrays that are mapped: for kernels that is another type, which would be compiled again
    lights.flags.writeable = False
    if (path / LIGHTS).exists():
        lights = _array(path, LIGHTS, np.dtype("i1"), 2)
    frames = None
    if index.frames is not None:
        kind = index.frames.kind
        frames = _array(path, FRAMES, DTYPES[kind], 3 if kind == "raster" else 4)
        channels = 0 if kind == "raster" else frames.shape[-1]
        if len(index.frames.names) != channels:
            raise DataError(
                f"driving log {path}: {FRAMES} has {channels} channels and {INDEX} {len(index.frames.names)} names:"
                " expected one for each"
            )
        _same(path, FRAMES, "frames", len(frames), len(steps))
    _same(path, AGENTS, "rows", len(agents), len(steps))
    _same(path, LIGHTS, "rows", len(lights), len(steps))
    log = DriveLog(path, index, steps, agents, routes, lights, frames)
    for clip in index.clips:
        check_clip(f"driving log {path}, clip {clip.name!r}", log, clip)
    for name in {clip.map for clip in index.clips}:
        _check_inside(log, name)
    return log


def _check_inside(log: DriveLog, name: str | None) -> None:
    """Refuse poses of the ego that lie outside the map that their clips name, or far from the route without one."""
    low = high = np.zeros(2)
    if name is not None:
        roads = read_roads(log.map_file(name))
        check_lights(f"driving log {log.path}, map {name!r}", count_lights(roads), log.lights.shape[1], LIGHTS)
        low, high = extent(roads["lane_points"], float(roads["lane_width"].max()))
    for clip in log.meta.clips:
        if clip.map != name:
            continue
        if name is None:
            low, high = extent(log.routes[clip.route_first : clip.route_first + clip.route_points], WAY_WIDTH_M)
        steps = log.steps[clip.first : clip.first + clip.steps]
        poses = np.stack([steps["x"], steps["y"]], axis=1)
        outside = ((poses < low) | (poses > high)).any(1)
        if outside.any():
            k = int(np.flatnonzero(outside)[0])
            area = " and ".join(f"{axis} from {low[i]:.1f} to {high[i]:.1f}" for i, axis in enumerate("xy"))
            raise DataError(
                f"driving log {log.path}, clip {clip.name!r}, step {k}: the pose {poses[k, 0]:.1f}, {poses[k, 1]:.1f}"
                f" lies outside the map{f' {name!r}' if name else ''}: expected {area}"
            )


def check_lights(where: str, lights: int, states: int, whose: str) -> None:
    """Refuse a map with more lights than there are states.

    Raises:
        DataError: it has more.
    """
    if lights > states:
        raise DataError(
            f"{where} has {lights} lights and {whose} the states of {states}: expected {lights} or more; -1 is a state"
            " that nobody knows"
        )


def extent(points: NDArray[np.float64], width_m: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Corners of the area of a map around points of its lanes."""
    margin = MARGIN_M + 0.5 * width_m
    return points.min(0) - margin, points.max(0) + margin


def _same(path: Path, name: str, what: str, count: int, poses: int) -> None:
    if count != poses:
        raise DataError(
            f"driving log {path}: {name} has {count} {what} and {STEPS} {poses} poses: expected one for each pose"
        )


def _index(path: Path) -> LogIndex:
    data = read_json(path / INDEX, "driving log", SCHEMA_VERSION)
    where = f"driving log {path / INDEX}"
    clips = data.get("clips")
    if not isinstance(clips, list) or not clips:
        raise DataError(f"{where} has clips {short(repr(clips))}: expected a list of one or more")
    index = _settings(LogIndex, data | {"clips": [], "frames": None}, where)
    frames = data.get("frames")
    described = None if frames is None else _settings(FrameCfg, frames, f"{where}, frames")
    if described is not None and not (described.pixels_per_m > 0):
        raise DataError(f"{where} has pixels_per_m {described.pixels_per_m}: expected above 0")
    found = [_settings(ClipCfg, clip, f"{where}, clips[{k}]") for k, clip in enumerate(clips)]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    names = [clip.name for clip in found]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{where} has two clips {twice!r}: expected a name of its own for each")
    return LogIndex(index.schema_version, index.source, tuple(found), described)


def _settings(cls: Any, data: Any, where: str) -> Any:
    """A dataclass from JSON, with one error for whatever is wrong."""
    if not isinstance(data, Mapping):
        raise DataError(f"{where} is {short(repr(data))}: expected values by name")
    known = cls.__dataclass_fields__
    for name in data:  # pyright: ignore[reportUnknownVariableType]
        if name not in known:
            close = nearest(str(name), known)  # pyright: ignore[reportUnknownArgumentType]
            hint = f"did you mean {close!r}? " if close else ""
            raise DataError(f"{where} has an unknown field {short(repr(name))}: {hint}known: {', '.join(known)}")  # pyright: ignore[reportUnknownArgumentType]
    try:
        found = settings_of(cls, data)  # pyright: ignore[reportUnknownArgumentType]
        check_settings(found)
    except TypeError as error:
        raise DataError(f"{where}: {error}: expected {', '.join(known)}") from error
    except Exception as error:
        raise DataError(f"{where}: {error}") from error
    return found


def _array(path: Path, name: str, dtype: np.dtype[Any], axes: int) -> NDArray[Any]:
    """Array of a file, mapped into memory.

    Raises:
        DataError: missing, truncated, or of another type.
    """
    file = path / name
    pointer = not_fetched(file)
    if pointer is not None:
        raise pointer
    try:
        array = np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))
    except FileNotFoundError:
        raise DataError(f"driving log {path} has no {name}: expected {dtype} of {axes} axes") from None
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"driving log {path}: {name} cannot be read ({short(str(error), 160)})") from error
    if array.dtype != dtype or array.ndim != axes or not array.flags.c_contiguous:
        raise DataError(
            f"driving log {path}: {name} holds {short(str(array.dtype))} of shape {array.shape}: expected"
            f" {short(str(dtype))} of {axes} axes in C order"
        )
    return array


def check_clip(where: str, log: DriveLog, clip: ClipCfg) -> None:
    """Check one clip of a log.

    Args:
        where: the clip, for errors.
        log: the log.
        clip: its entry in the index.

    Raises:
        DataError: it lies outside the arrays, is too short, its times go back or are not 0.1 s apart, a number is not
            finite or too large, a road user has no size, or its route has no length.
    """
    last, route_last = clip.first + clip.steps, clip.route_first + clip.route_points
    if clip.first < 0 or clip.steps < MIN_STEPS or last > len(log.steps):
        raise DataError(
            f"{where} has the steps {clip.first} to {last}: expected {MIN_STEPS} or more of 0 to {len(log.steps)}"
        )
    if clip.route_first < 0 or clip.route_points < 2 or route_last > len(log.routes):
        raise DataError(
            f"{where} has the route points {clip.route_first} to {route_last}: expected 2 or more of 0 to"
            f" {len(log.routes)}"
        )
    if not (0.5 <= clip.ego_length_m <= 30.0 and 0.3 <= clip.ego_width_m <= 5.0):
        raise DataError(
            f"{where} has an ego of {clip.ego_length_m:g} by {clip.ego_width_m:g} m: expected 0.5 to 30 by 0.3 to 5"
        )
    steps = log.steps[clip.first : last]
    check_steps(where, steps)
    agents = log.agents[clip.first : last]
    if ((agents["kind"] < 0) | (agents["kind"] >= KINDS)).any():
        raise DataError(f"{where} has road users of kind {agents['kind'].max()}: expected 0 to {KINDS - 1}")
    there = agents[agents["kind"] > 0]
    for name in ("x", "y", "yaw", "speed", "length", "width"):
        if not (np.abs(there[name]) <= FARTHEST_M).all():
            raise DataError(f"{where} has a road user whose {name} is not finite, or too large")
    if not ((there["length"] > 0) & (there["width"] > 0)).all():
        raise DataError(f"{where} has a road user without a size: expected length and width above 0")
    route = log.routes[clip.route_first : route_last]
    if not (np.abs(route) <= FARTHEST_M).all() or np.ptp(route, axis=0).max() < 1.0:
        raise DataError(f"{where} has a route without length, or with points that are not finite")


def check_steps(where: str, steps: NDArray[Any]) -> None:
    """Check times and poses of a clip.

    Raises:
        DataError: times go back or are not 0.1 s apart; a pose is not finite or too far away.
    """
    for name in STEP.names or ():
        values = steps[name]
        if not np.isfinite(values).all():
            k = int(np.flatnonzero(~np.isfinite(values))[0])
            raise DataError(f"{where}, step {k}: {name} is {values[k]}: expected a finite number")
    gaps = np.diff(steps["time_s"])
    if (gaps <= 0).any():
        k = int(np.flatnonzero(gaps <= 0)[0])
        raise DataError(
            f"{where}, step {k + 1}: time_s goes back from {steps['time_s'][k]:g} to {steps['time_s'][k + 1]:g}:"
            f" expected {PERIOD_S:g} s more"
        )
    if (np.abs(gaps - PERIOD_S) > JITTER_S).any():
        k = int(np.abs(gaps - PERIOD_S).argmax())
        raise DataError(
            f"{where}, step {k + 1}: {gaps[k]:g} s after the step before: expected {PERIOD_S:g} s, within {JITTER_S:g};"
            " resample the clip"
        )
    far = np.maximum(np.abs(steps["x"]), np.abs(steps["y"])).max()
    if far > FARTHEST_M:
        raise DataError(
            f"{where} has a pose {far:,.0f} m from the origin: expected {FARTHEST_M:,.0f} m at most; subtract an origin"
        )


def index_json(index: LogIndex) -> dict[str, Any]:
    """JSON of an index."""
    return asdict(index)
