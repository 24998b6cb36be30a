"""Reads scenarios of the Waymo Open Motion layout: TFRecord files of `Scenario` messages.

Read are the timestamps, the tracks with their states, the states of lights, lane centers with their neighbors and
successors, stop signs and crosswalks. Frames are not in this layout, so such a log is one of vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import DataError
from robotrl.sims.driving.logs import layout
from robotrl.sims.driving.logs.protobuf import ProtoMessage
from robotrl.sims.driving.logs.roads import NONE, continued
from robotrl.sims.driving.logs.tfrecord import records
from robotrl.sims.driving.logs.tracks import LeftOut, nearest_tracks, split_of
from robotrl.sims.driving.logs.writer import LogWriter
from robotrl.spec import Split

KIND = {1: 1, 2: 3, 3: 2, 4: 4}
"""Types of objects (vehicle, pedestrian, cyclist, other) to kinds of road users."""
LIGHT = {1: 2, 2: 1, 3: 0, 4: 2, 5: 1, 6: 0, 7: 2, 8: 1}
"""States of signals (arrow stop, arrow caution, arrow go, stop, caution, go, flashing stop, flashing caution) to states
of lights."""
BIKE_LANE = 3
LANE_WIDTH_M, WALK_WIDTH_M = 3.5, 3.0
"""Widths that the layout does not tell."""
MPS_PER_MPH = 0.44704
USUAL_MPH = 30.0
"""Speed limit of a lane that has none."""
MIN_LANE_M = 1.0
NEXT_MOST = 6


class WaymoLane(NamedTuple):
    """Lane of a scenario."""

    points: NDArray[np.float64]
    speed_mps: float
    next: list[int]
    left: int
    right: int
    joins: bool
    """True for a lane that joins two others across a junction."""


def read_waymo(
    paths: Sequence[Path],
    out: Path,
    slots: int = 31,
    split: Split | None = None,
    progress: Callable[[int], None] | None = None,
    left_out: LeftOut | None = None,
) -> layout.LogIndex:
    """Write scenarios as a driving log.

    Args:
        paths: TFRecord files.
        out: folder of the log; must not exist, or be empty.
        slots: road users that are kept of a scenario, those that come nearest to the ego.
        split: split of all clips; None: of ten scenarios eight for training, one for validation, one for the test.
        progress: called with the number of scenarios so far.
        left_out: counts what is left out.

    Raises:
        DataError: a file is no TFRecord, was altered, or holds messages that are no scenarios; both are named.
    """
    number = 0
    counted = LeftOut() if left_out is None else left_out
    with LogWriter(out, f"Waymo-style scenarios of {', '.join(path.name for path in paths)}"[:200], slots) as writer:
        for path in paths:
            for k, body in enumerate(records(path)):
                try:
                    _add(writer, ProtoMessage(body), split or split_of(number), counted)
                except DataError as error:
                    raise DataError(f"{path}, scenario {k}: {error}") from error
                number += 1
                if progress is not None:
                    progress(number)
    return layout.LogIndex(layout.SCHEMA_VERSION, writer.source, tuple(writer.clips))


def _add(writer: LogWriter, scenario: ProtoMessage, split: Split, left_out: LeftOut) -> None:
    times = np.array(scenario.doubles(1))
    tracks = scenario.messages(2)
    own = scenario.integer(6, -1)
    if not 0 <= own < len(tracks):
        raise DataError(f"sdc_track_index is {own}: expected 0 to {len(tracks) - 1}, the ego's track")
    states = [_states(track, len(times)) for track in tracks]
    valid = np.array([state["kind"] > 0 for state in states])
    # the ego is there in one piece
    there = np.flatnonzero(valid[own])
    if len(there) < layout.MIN_STEPS or there[-1] - there[0] + 1 != len(there):
        raise DataError(f"the ego is there in {len(there)} steps: expected {layout.MIN_STEPS} or more in a row")
    span = slice(int(there[0]), int(there[-1]) + 1)
    # coordinates near the ego, which 32 bits hold to less than a millimeter
    origin = np.array([states[own]["x"][span.start], states[own]["y"][span.start]])
    for state in states:
        state["x"] -= origin[0]
        state["y"] -= origin[1]
    ego = states[own][span]
    steps = np.zeros(len(ego), layout.STEP)
    steps["time_s"] = times[span] - times[span.start]
    for name in ("x", "y", "yaw"):
        steps[name] = ego[name]
    steps["speed"] = np.maximum(ego["speed"], 0.0)
    agents = np.zeros((len(ego), len(tracks)), layout.AGENT)
    for k, state in enumerate(states):
        if k == own:
            continue
        for name in layout.AGENT.names or ():
            agents[name][:, k] = state[name][span]
        agents["track"][:, k] = k
    name = scenario.text(5) or f"scenario-{len(writer.clips)}"
    arrays, lights = _roads(scenario, origin, span)
    if arrays is not None:
        writer.add_map(name, arrays)
    way = np.stack([steps["x"], steps["y"]], axis=1)
    writer.add_clip(
        name,
        split,
        steps,
        nearest_tracks(agents, steps, writer.slots, left_out),
        continued(way, float(steps["yaw"][-1])),
        None if arrays is None else name,
        size_m=(float(ego["length"][0]), float(ego["width"][0])),
        lights=lights,
    )


STATE = np.dtype(
    [
        ("kind", "<i4"),
        ("track", "<i4"),
        ("x", "<f8"),
        ("y", "<f8"),
        ("yaw", "<f4"),
        ("speed", "<f4"),
        ("length", "<f4"),
        ("width", "<f4"),
    ]
)
"""State of a track at a step; positions are too far from the origin for 32 bits."""


def _states(track: ProtoMessage, count: int) -> NDArray[Any]:
    """`STATE` records (count,) of a track; kind 0 where it is not valid."""
    states = track.messages(3)
    if len(states) != count:
        raise DataError(f"track {track.integer(1)} has {len(states)} states and the scenario {count} timestamps")
    out = np.zeros(count, STATE)
    kind = KIND.get(track.integer(2), 4)
    for row, state in zip(out, states, strict=True):
        if not state.integer(11):
            continue
        yaw = state.single(8)
        row["kind"], row["x"], row["y"], row["yaw"] = kind, state.double(2), state.double(3), yaw
        row["length"], row["width"] = state.single(5), state.single(6)
        row["speed"] = state.single(9) * math.cos(yaw) + state.single(10) * math.sin(yaw)
    return out


def _roads(
    scenario: ProtoMessage, origin: NDArray[np.float64], span: slice
) -> tuple[dict[str, NDArray[Any]] | None, NDArray[np.int8] | None]:
    """Arrays of the scenario's map, None without lanes, and states of its lights."""
    lanes: dict[int, WaymoLane] = {}
    stop_signs: dict[int, NDArray[np.float64]] = {}
    walks: list[list[float]] = []
    for feature in scenario.messages(8):
        if found := feature.messages(3):
            lane = _lane(found[0], origin)
            if lane is not None:
                lanes[feature.integer(1)] = lane
        elif found := feature.messages(7):
            for lane_id in found[0].integers(1):
                stop_signs[lane_id] = _points(found[0].messages(2), origin)
        elif found := feature.messages(8):
            walks += _walk(_points(found[0].messages(1), origin))
    if not lanes:
        return None, None
    states, stops = _signals(scenario, origin, lanes)
    groups = {lane: k for k, lane in enumerate(sorted(stops))}
    return _arrays(lanes, stop_signs, stops, groups, walks), _lights(states[span], groups)


def _points(points: Iterable[ProtoMessage], origin: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([[point.double(1), point.double(2)] for point in points]).reshape(-1, 2) - origin


def _lane(lane: ProtoMessage, origin: NDArray[np.float64]) -> WaymoLane | None:
    """Lane of a message; None for a bike lane, or one without length."""
    points = _points(lane.messages(8), origin)
    if lane.integer(2) == BIKE_LANE or len(points) < 2 or np.hypot(*np.diff(points, axis=0).T).sum() < MIN_LANE_M:
        return None
    beside = [[one.integer(1) for one in lane.messages(number)] for number in (11, 12)]
    left, right = (found[0] if found else NONE for found in beside)
    speed = lane.double(1, USUAL_MPH) or USUAL_MPH
    return WaymoLane(points, speed * MPS_PER_MPH, lane.integers(10), left, right, bool(lane.integer(3)))


def _walk(polygon: NDArray[np.float64]) -> list[list[float]]:
    """Crosswalk as a strip along the longer middle line of its first four corners."""
    if len(polygon) < 4:
        return []
    middles = [(polygon[k] + polygon[(k + 1) % 4]) / 2 for k in range(4)]
    lines = sorted(((middles[0], middles[2]), (middles[1], middles[3])), key=lambda line: np.ptp(line, axis=0).max())
    across, along = lines
    width = float(np.hypot(*(across[1] - across[0])))
    return [[*along[0].tolist(), *along[1].tolist(), width or WALK_WIDTH_M]]


def _signals(
    scenario: ProtoMessage, origin: NDArray[np.float64], lanes: Mapping[int, WaymoLane]
) -> tuple[list[dict[int, int]], dict[int, NDArray[np.float64]]]:
    """States of lights by lane at each step, and the stopping points (n, 2) of the lanes with lights."""
    states: list[dict[int, int]] = []
    stops: dict[int, NDArray[np.float64]] = {}
    for step in scenario.messages(7):
        here: dict[int, int] = {}
        for signal in step.messages(1):
            lane = signal.integer(1)
            if lane not in lanes:
                continue
            here[lane] = LIGHT.get(signal.integer(2), -1)
            point = _points(signal.messages(3), origin)
            if len(point) or lane not in stops:
                stops[lane] = point if len(point) else lanes[lane].points[:1]
        states.append(here)
    return states, stops


def _lights(states: Sequence[Mapping[int, int]], groups: Mapping[int, int]) -> NDArray[np.int8] | None:
    """States (T, G) of lights; None without."""
    if not groups:
        return None
    out = np.full((len(states), len(groups)), -1, np.int8)
    for row, here in zip(out, states, strict=True):
        for lane, state in here.items():
            row[groups[lane]] = state
    return out


def _arrays(
    lanes: Mapping[int, WaymoLane],
    stop_signs: Mapping[int, NDArray[np.float64]],
    stops: Mapping[int, NDArray[np.float64]],
    groups: Mapping[int, int],
    walks: Sequence[Sequence[float]],
) -> dict[str, NDArray[Any]]:
    """Arrays of a map."""
    number = {lane: k for k, lane in enumerate(lanes)}
    control, light, stop = (np.full(len(lanes), value) for value in (0, NONE, float(NONE)))
    following: list[tuple[int, int]] = []
    for lane, k in number.items():
        following += [(k, number[n]) for n in lanes[lane].next[:NEXT_MOST] if n in number]
        place = stops.get(lane, stop_signs.get(lane))
        if place is None or not len(place):
            continue
        control[k] = 1 if lane in groups else 2
        light[k] = groups.get(lane, NONE)
        stop[k] = _along(lanes[lane].points, place[0])
    return {
        "lane_sizes": np.array([len(lane.points) for lane in lanes.values()], np.int32),
        "lane_points": np.concatenate([lane.points for lane in lanes.values()]),
        "lane_width": np.full(len(lanes), LANE_WIDTH_M),
        "lane_speed": np.array([lane.speed_mps for lane in lanes.values()]),
        "lane_junction": np.array([lane.joins for lane in lanes.values()]),
        "lane_left": np.array([number.get(lane.left, NONE) for lane in lanes.values()], np.int32),
        "lane_right": np.array([number.get(lane.right, NONE) for lane in lanes.values()], np.int32),
        "lane_next": np.array(following, np.int32).reshape(-1, 2),
        "lane_control": control.astype(np.int32),
        "lane_stop_m": stop.astype(np.float64),
        "lane_light": light.astype(np.int32),
        "crosswalks": np.array(walks, np.float64).reshape(-1, 5),
        "parked": np.zeros((0, 5)),
    }


def _along(points: NDArray[np.float64], place: NDArray[np.float64]) -> float:
    """Distance along a line of its place that is nearest to a point, m."""
    steps = np.diff(points, axis=0)
    lengths = np.hypot(*steps.T)
    share = ((place - points[:-1]) * steps).sum(1) / np.maximum(lengths, 1e-9) ** 2
    share = np.clip(share, 0.0, 1.0)
    apart = np.hypot(*(points[:-1] + share[:, None] * steps - place).T)
    k = int(apart.argmin())
    return float(lengths[:k].sum() + share[k] * lengths[k])
