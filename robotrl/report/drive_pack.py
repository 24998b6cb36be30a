"""Recorded drives as a compact JSON value for the page's viewer.

Positions are integer multiples of `unit` meters from `origin`, angles of pi / 32767, speeds of 0.01 m/s, 16 bits each;
plotted values are float32. Arrays are little-endian in base64.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.report.drive_trace import DriveTrace
from robotrl.spec.drive_trace import KINDS, REMARKS, TraceFrame

FULL = 32767
UNIT_M = 0.01
"""Smallest unit; large maps use a coarser one."""
SPEED_MPS = 0.01
TOLERANCE_M = 0.04
"""Largest distance between a simplified line and the recorded one."""
AROUND_M = 150.0
"""Margin of the map kept around the driven route."""
JUMP_M = 8.0
"""Larger movement in one step means that another road user has taken the slot."""

Points = NDArray[np.float64]


def pack_drive(trace: DriveTrace, dt_s: float, actions: tuple[str, ...]) -> dict[str, Any]:
    """Pack one drive.

    Args:
        trace: the recorded drive.
        dt_s: duration of a step, s.
        actions: names of the A elements of an action.
    """
    frames, steps, end = trace.frames, trace.steps, trace.steps[-1]
    ego = np.array([(*frame.ego, frame.speed_mps) for frame in frames])
    scale = _Scale(trace, ego)
    given = np.array(trace.actions, np.float32).reshape(len(steps), len(actions))
    columns = {name: np.array([step.terms[name] for step in steps]) for name in end.terms}
    return {
        "id": trace.state_id,
        "scenario": trace.map.scenario,
        "outcome": trace.outcome,
        "ok": end.success,
        "completion": round(end.completion, 4),
        "score": None if math.isnan(end.score) else round(end.score, 2),
        "dt": dt_s,
        "n": len(steps),
        "unit": scale.unit,
        "origin": [round(float(value), 3) for value in scale.origin],
        "size": [round(value, 2) for value in trace.map.size],
        "map": _map(trace, scale),
        "ego": scale.poses(ego),
        "limit": _floats([frame.limit_mps for frame in frames]),
        "others": _others(frames, scale),
        "lights": _lights(frames),
        "actions": {name: _floats(given[:, k]) for k, name in enumerate(actions)},
        "reward": _floats([step.reward for step in steps]),
        "done": _floats([step.completion for step in steps]),
        "terms": {name: _floats(values) for name, values in columns.items()},
        "decided": trace.decided,
        "trajectory": trace.trajectory,
        "plans": [
            [plan.step, scale.points(plan.poses[:, :2]), [scale.points(one[:, :2]) for one in plan.candidates]]
            for plan in trace.plans
        ],
        "remarks": _remarks(columns),
    }


class _Scale:
    """Quantization of the positions of one drive."""

    def __init__(self, trace: DriveTrace, ego: Points) -> None:
        driven = np.concatenate([ego[:, :2], trace.map.route])
        self.low, self.high = driven.min(0) - AROUND_M, driven.max(0) + AROUND_M
        self.origin = np.round((self.low + self.high) / 2, 3)
        others = [frame.boxes[:, :2] for frame in trace.frames]
        reach = float(np.abs(np.concatenate([*others, self.low[None], self.high[None]]) - self.origin).max())
        # lanes are kept whole, so leave a margin
        self.unit = max(math.ceil((reach + 100.0) / FULL * 1000) / 1000, UNIT_M)

    def whole(self, points: Points) -> NDArray[np.int64]:
        """Points (..., 2) in integer units."""
        return np.clip(np.round((points - self.origin) / self.unit), -FULL, FULL).astype(np.int64)

    def points(self, points: Points) -> str:
        """Points (n, 2)."""
        return _packed(self.whole(points))

    def line(self, points: Points) -> str:
        """A polyline (n, 2), simplified."""
        return self.points(reduced(points, TOLERANCE_M))

    def poses(self, rows: Points) -> str:
        """x, y, yaw, speed (n, 4)."""
        yaw = np.round((rows[:, 2] + np.pi) % (2 * np.pi) * (FULL / np.pi) - FULL)
        return _packed(np.column_stack([self.whole(rows[:, :2]), yaw, np.round(rows[:, 3] / SPEED_MPS)]))

    def near(self, points: Points) -> bool:
        """True if any of the points is near the driven path."""
        return bool(((points > self.low) & (points < self.high)).all(1).any())


def reduced(points: Points, tolerance: float) -> Points:
    """Simplify a polyline with the Douglas-Peucker algorithm, up to `tolerance`."""
    kept = np.zeros(len(points), bool)
    kept[[0, -1]] = True
    spans = [(0, len(points) - 1)]
    while spans:
        a, b = spans.pop()
        if b - a < 2:
            continue
        chord, between = points[b] - points[a], points[a + 1 : b] - points[a]
        length = float(np.linalg.norm(chord))
        along = np.clip(between @ chord / max(length * length, 1e-12), 0.0, 1.0)
        off = np.linalg.norm(between - along[:, None] * chord, axis=1)
        worst = int(off.argmax())
        if off[worst] > tolerance:
            kept[a + 1 + worst] = True
            spans += [(a, a + 1 + worst), (a + 1 + worst, b)]
    return points[kept]


def _map(trace: DriveTrace, scale: _Scale) -> dict[str, Any]:
    found = trace.map
    return {
        "lanes": [
            [scale.line(lane.points), round(lane.width_m, 2), *(int(flag) for flag in lane[2:])]
            for lane in found.lanes
            if scale.near(lane.points)
        ],
        "stops": [
            [*_rounded((stop.x, stop.y, stop.yaw, stop.width_m), 3), stop.control, stop.light]
            for stop in found.stops
            if scale.near(np.array([stop[:2]]))
        ],
        "walks": [_rounded(walk) for walk in found.walks if scale.near(walk[None, :2])],
        "parked": [_rounded(box, 3) for box in found.parked if scale.near(box[None, :2])],
        "route": scale.line(found.route),
    }


@dataclass
class _Other:
    """Track of another road user, from its first to its last step."""

    kind: str
    size: list[float]
    first: int
    rows: list[Points]
    """(4,) each: x, y, yaw, speed."""

    def is_it(self, kind: str, size: list[float], row: Points) -> bool:
        """True if the road user now in the slot is still the same one."""
        moved = float(np.linalg.norm(self.rows[-1][:2] - row[:2]))
        return (self.kind, self.size) == (kind, size) and moved <= JUMP_M


def _others(frames: list[TraceFrame], scale: _Scale) -> list[dict[str, Any]]:
    out: list[_Other] = []
    there: dict[int, _Other] = {}
    for step, frame in enumerate(frames):
        seen: dict[int, _Other] = {}
        for slot, number, box in zip(frame.slots.tolist(), frame.kinds.tolist(), frame.boxes, strict=True):
            row, kind, size = box[[0, 1, 2, 5]], KINDS[number], _rounded(box[3:5])
            one = there.get(slot)
            if one is None or not one.is_it(kind, size, row):
                one = _Other(kind, size, step, [])
                out.append(one)
            one.rows.append(row)
            seen[slot] = one
        there = seen
    return [
        {"kind": one.kind, "size": one.size, "from": one.first, "poses": scale.poses(np.array(one.rows))} for one in out
    ]


def _lights(frames: list[TraceFrame]) -> list[list[list[int]]]:
    """Steps at which each light changes, and its new state."""
    out: list[list[list[int]]] = []
    for states in zip(*(frame.lights for frame in frames), strict=True):
        changes = [k for k in range(len(states)) if k == 0 or states[k] != states[k - 1]]
        out.append([[k, states[k]] for k in changes])
    return out


def _remarks(terms: dict[str, NDArray[np.float64]]) -> list[list[Any]]:
    """Steps at which a reward penalty begins, and its name."""
    out: list[list[Any]] = []
    for name, text in REMARKS.items():
        if name in terms:
            below = np.concatenate([[False], terms[name] < 1.0])
            out += [[int(k), text] for k in np.flatnonzero(below[1:] & ~below[:-1])]
    return sorted(out)


def _rounded(values: Any, digits: int = 2) -> list[float]:
    return [round(float(value), digits) for value in values]


def _packed(whole: NDArray[Any]) -> str:
    return base64.b64encode(whole.astype("<i2").tobytes()).decode("ascii")


def _floats(values: Any) -> str:
    return base64.b64encode(np.asarray(values, "<f4").tobytes()).decode("ascii")
