"""Recorded drives as videos, drawn with pillow, for slides and messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.report.drive_trace import DriveTrace
from robotrl.spec.drive_trace import KINDS, TraceFrame
from robotrl.utils.media import grid

if TYPE_CHECKING:
    from PIL import ImageDraw

SIZE = (560, 400)
SCALE = 6.0
"""Pixels per meter."""
FINER = 2
"""Supersampling factor for smooth edges."""
BEHIND = 0.34
HOLD_S = 1.5
"""Time for which the last frame of a drive is shown."""
FRAME_S = 0.1
SEEN_M = 75.0
"""Largest distance of a visible object from the ego."""
MAX_COLORS = 256

LAND, VERGE, ROAD, PAINT, CENTER = (223, 230, 216), (205, 210, 203), (163, 169, 176), (247, 248, 250), (240, 198, 72)
ROUTE, TRAIL, EGO, PLAN, GLASS, PARKED = (
    (120, 152, 192),
    (232, 120, 170),
    (224, 40, 125),
    (122, 15, 74),
    (29, 39, 51),
    (201, 206, 214),
)
COLORS = {
    "vehicle": (47, 111, 181),
    "cyclist": (15, 155, 142),
    "pedestrian": (217, 72, 15),
    "obstacle": (230, 168, 23),
}
LIGHTS = ((31, 163, 74), (242, 183, 5), (224, 49, 49))
BAD, GOOD, INK, CARD = (185, 28, 28), (21, 128, 61), (23, 32, 44), (250, 251, 252)

Points = NDArray[np.float64]
Color = tuple[int, int, int]


def frame_count(traces: Sequence[DriveTrace], dt_s: float) -> int:
    """Number of frames of `video_frames`."""
    return sum(len(_shown(trace, dt_s)) for trace in traces)


def video_frames(traces: Sequence[DriveTrace], dt_s: float) -> Iterator[tuple[NDArray[np.uint8], float]]:
    """Frames (h, w, 3) of all drives in sequence, in real time, and the seconds for which each is shown."""
    for trace in traces:
        film = DriveVideo(trace, dt_s)
        shown = _shown(trace, dt_s)
        for step in shown:
            yield film.picture(step), HOLD_S if step == shown[-1] else (shown[1] - shown[0]) * dt_s


def grid_count(traces: Sequence[DriveTrace], dt_s: float) -> int:
    """Number of frames of `grid_frames`."""
    return max(len(_shown(trace, dt_s)) for trace in traces)


def grid_frames(traces: Sequence[DriveTrace], dt_s: float) -> Iterator[tuple[NDArray[np.uint8], float]]:
    """Frames of all drives side by side, in real time, and the seconds for which each is shown.

    A drive that has ended waits in its last frame.
    """
    films = [DriveVideo(trace, dt_s) for trace in traces]
    steps = [_shown(trace, dt_s) for trace in traces]
    pictures: list[NDArray[np.uint8]] = [film.picture(shown[0]) for film, shown in zip(films, steps, strict=True)]
    last = grid_count(traces, dt_s) - 1
    for place in range(last + 1):
        for index, shown in enumerate(steps):
            if 0 < place < len(shown):
                pictures[index] = films[index].picture(shown[place])
        every = max(round(FRAME_S / dt_s), 1) * dt_s
        yield grid([picture[None] for picture in pictures])[0], HOLD_S if place == last else every


def palette() -> NDArray[np.uint8]:
    """(1, 1, n, 3) palette: all drawn colors, and the midpoints of all pairs for smooth edges."""
    plain = (LAND, VERGE, ROAD, PAINT, CENTER, ROUTE, TRAIL, EGO, PLAN, GLASS, PARKED, *COLORS.values(), *LIGHTS)
    both = [
        [(p + q) // 2 for p, q in zip(one, other, strict=True)]
        for k, one in enumerate((*plain, BAD, GOOD, INK, CARD))
        for other in plain[: k + 1]
    ]
    return np.unique(np.array([*both, BAD, GOOD, INK, CARD], np.uint8), axis=0)[None, None, :MAX_COLORS]


def _shown(trace: DriveTrace, dt_s: float) -> list[int]:
    """Steps that are shown, ten per second, always including the last one."""
    last = len(trace.steps)
    return sorted({*range(0, last, max(round(FRAME_S / dt_s), 1)), last})


class _Shape(NamedTuple):
    """A line, or a filled polygon if the width is 0."""

    points: Points
    width_m: float
    color: Color

    def near(self, point: Points) -> bool:
        """True if part of it may be visible around a point."""
        return bool((np.abs(self.points.clip(point - SEEN_M, point + SEEN_M) - self.points).max(1) == 0).any())


class DriveVideo:
    """Draws the frames of one drive, with the ego heading up.

    Args:
        trace: the recorded drive.
        dt_s: duration of a step, s.
    """

    def __init__(self, trace: DriveTrace, dt_s: float) -> None:
        self._trace, self._dt_s = trace, dt_s
        self._ground = _ground(trace)
        self._driven = np.array([frame.ego[:2] for frame in trace.frames])

    def picture(self, step: int) -> NDArray[np.uint8]:
        """Frame (h, w, 3) at a step."""
        from PIL import Image, ImageDraw

        trace, frame = self._trace, self._trace.frames[step]
        image = Image.new("RGB", (SIZE[0] * FINER, SIZE[1] * FINER), LAND)
        brush = _Brush(ImageDraw.Draw(image), frame)
        here = np.array(frame.ego[:2])
        for shape in self._ground:
            if shape.near(here):
                brush.shape(shape)
        ahead = int(np.linalg.norm(trace.map.route - here, axis=1).argmin())
        brush.shape(_strip(trace.map.route[ahead : ahead + round(2 * SEEN_M)], 1.3, ROUTE))
        for stop in trace.map.stops:
            half = np.array([-np.sin(stop.yaw), np.cos(stop.yaw)]) * stop.width_m * 0.46
            color = LIGHTS[frame.lights[stop.light]] if 0 <= stop.light < len(frame.lights) else PAINT
            brush.line(np.array([stop[:2] - half, stop[:2] + half]), 0.6, color)
        brush.line(self._driven[: step + 1], 0.25, TRAIL)
        for box in trace.map.parked:
            brush.car(box, PARKED)
        for kind, box in zip(frame.kinds.tolist(), frame.boxes, strict=True):
            if KINDS[kind] == "pedestrian":
                brush.disc(box[:2], 0.5, COLORS["pedestrian"])
            else:
                brush.car(box[:5], COLORS[KINDS[kind]])
        plan = [found for found in trace.plans if found.step <= min(step, len(trace.steps) - 1)][-1:]
        for found in plan:
            past = step - found.step if trace.decided > 1 else 0
            for other in found.candidates:
                brush.line(np.concatenate([[frame.ego[:2]], other[past:, :2]]), 0.12, PLAN)
            rest = found.poses[past:, :2]
            brush.line(np.concatenate([[frame.ego[:2]], rest]), 0.35, PLAN)
        brush.car(np.array([*frame.ego, *trace.map.size]), EGO)
        return np.asarray(self._captioned(image.reduce(FINER), step))

    def _captioned(self, image: Any, step: int) -> Any:
        from PIL import ImageDraw, ImageFont

        trace, frame = self._trace, self._trace.frames[step]
        draw, font = ImageDraw.Draw(image), ImageFont.load_default(15)
        caption = f"{trace.map.scenario}   {step * self._dt_s:.1f} s   {frame.speed_mps:.1f} m/s"
        draw.rounded_rectangle((8, 8, 22 + draw.textlength(caption, font), 34), 8, CARD)
        draw.text((15, 12), caption, INK, font)
        if step == len(trace.steps):
            wide = draw.textlength(trace.outcome, font)
            x, y = (SIZE[0] - wide) / 2, SIZE[1] - 44
            draw.rounded_rectangle((x - 12, y, x + wide + 12, y + 28), 8, GOOD if trace.steps[-1].success else BAD)
            draw.text((x, y + 5), trace.outcome, CARD, font)
        return image


class _Brush:
    """Draws shapes given in meters."""

    def __init__(self, draw: ImageDraw.ImageDraw, frame: TraceFrame) -> None:
        self._draw, self._scale = draw, SCALE * FINER
        x, y, yaw = frame.ego
        self._center = np.array([x, y])
        # world to pixels, ego heading up
        right, up = np.array([np.sin(yaw), -np.cos(yaw)]), np.array([np.cos(yaw), np.sin(yaw)])
        self._matrix = np.stack([right, -up]).T * self._scale
        self._middle = np.array([SIZE[0] / 2, SIZE[1] * (1 - BEHIND)]) * FINER

    def _pixels(self, points: Points) -> list[tuple[float, float]]:
        return [(x, y) for x, y in ((points - self._center) @ self._matrix + self._middle).tolist()]

    def shape(self, shape: _Shape) -> None:
        if shape.width_m:
            self.line(shape.points, shape.width_m, shape.color)
        elif len(shape.points) > 2:
            self._draw.polygon(self._pixels(shape.points), shape.color)

    def line(self, points: Points, width_m: float, color: Color) -> None:
        if len(points) > 1:
            self._draw.line(self._pixels(points), color, max(round(width_m * self._scale), 1))

    def disc(self, point: Points, radius_m: float, color: Color) -> None:
        ((x, y),), r = self._pixels(point[None]), radius_m * self._scale
        self._draw.ellipse((x - r, y - r, x + r, y + r), color, GLASS)

    def car(self, box: Points, color: Color) -> None:
        x, y, yaw, length, width = box.tolist()
        along, across = np.array([np.cos(yaw), np.sin(yaw)]) * length / 2, np.array([-np.sin(yaw), np.cos(yaw)])
        across = across * width / 2
        self._draw.polygon(self._pixels(_corners(x, y, along, across, 1.0, -1.0, 1.0)), color, GLASS, 2)
        if width > 1.0:
            self._draw.polygon(self._pixels(_corners(x, y, along, across, 0.5, 0.16, 0.8)), GLASS)


def _corners(x: float, y: float, along: Points, across: Points, front: float, back: float, share: float) -> Points:
    """Corners of a part of a box: from `back` to `front` (in half lengths), with a `share` of its width."""
    signs = ((front, share), (front, -share), (back, -share), (back, share))
    return np.array([(x, y) + along * f + across * s for f, s in signs])


def _ground(trace: DriveTrace) -> list[_Shape]:
    """Static shapes, bottom layer first."""
    lanes = trace.map.lanes
    out = [_strip(lane.points, lane.width_m + 2.4, VERGE) for lane in lanes]
    out += [_strip(lane.points, lane.width_m + 0.1, ROAD) for lane in lanes]
    for lane in lanes:
        if lane.inside:
            continue
        left, right = (_beside(lane.points, side * lane.width_m / 2) for side in (1, -1))
        if lane.left_open:
            out += [_Shape(dash, 0.2, PAINT) for dash in _dashes(left, 3.0)]
        else:
            out.append(_Shape(left, 0.2, CENTER))
        if not lane.right_open:
            out.append(_Shape(right, 0.2, PAINT))
    for x0, y0, x1, y1, width in trace.map.walks.tolist():
        out += [_Shape(dash, width, PAINT) for dash in _dashes(np.array([[x0, y0], [x1, y1]]), 0.5)]
    return out


def _strip(points: Points, width_m: float, color: Color) -> _Shape:
    if len(points) < 2:
        return _Shape(points, 0.0, color)
    return _Shape(np.concatenate([_beside(points, width_m / 2), _beside(points, -width_m / 2)[::-1]]), 0.0, color)


def _beside(points: Points, left_m: float) -> Points:
    tangent = np.gradient(points, axis=0)
    tangent /= np.maximum(np.linalg.norm(tangent, axis=1, keepdims=True), 1e-9)
    return points + left_m * np.stack([-tangent[:, 1], tangent[:, 0]], axis=1)


def _dashes(points: Points, length_m: float) -> list[Points]:
    """Dashes of a line, as long as the gaps."""
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))])
    starts = np.arange(0.0, along[-1] - length_m / 2, 2 * length_m)
    at = np.stack([starts, np.minimum(starts + length_m, along[-1])], axis=1)
    xs, ys = (np.interp(at, along, points[:, k]) for k in (0, 1))
    return list(np.stack([xs, ys], axis=2))
