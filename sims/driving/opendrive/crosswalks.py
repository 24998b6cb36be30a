"""Crosswalks of an OpenDRIVE file: objects of type crosswalk, converted to strips for pedestrians."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.driving.opendrive.geometry import Floats, poses
from robotrl.sims.driving.opendrive.lanes import Network, heights_at
from robotrl.sims.driving.opendrive.roads import XodrRoad
from robotrl.sims.driving.opendrive.xml import number, shown

SMALLEST_M = 0.3
"""Minimum length and width of a crosswalk."""


def add_crosswalks(net: Network) -> None:
    """Add a strip for each crosswalk: the smallest rectangle around its corners, or its length and width.

    Pedestrians walk across the road, except on strips more than twice as long along the road as across: those are
    walked along the road, since they cross another one.

    Raises:
        DataError: an attribute is not a number.
    """
    for road in net.roads.values():
        for element in road.element.iterfind("objects/object"):
            if element.get("type") != "crosswalk":
                continue
            corners, heading = outline(road, element)
            middle, axes, sizes = rectangle(corners) if len(corners) > 2 else (np.zeros(2), np.eye(2), np.zeros(2))
            if sizes.min() < SMALLEST_M:
                what = "crosswalks skipped without three corners or length and width"
                net.notes.add(what, f"road {shown(road.id)}, object {shown(element.get('id'))}")
                continue
            across = int(np.argmin(np.abs(axes @ [np.cos(heading), np.sin(heading)])))
            walked = 1 - across if sizes[1 - across] > 2.0 * sizes[across] else across
            half = 0.5 * sizes[walked] * axes[walked]
            ends = [(float(x), float(y)) for x, y in np.stack([middle - half, middle + half]) * [1.0, net.flip]]
            heights = heights_at(road, np.array([number(element, "s", road.where)]))
            height = 0.0 if heights is None else float(heights[0])
            net.builder.crosswalk(ends[0], ends[1], float(sizes[1 - walked]), height)


def outline(road: XodrRoad, element: Element) -> tuple[Floats, float]:
    """Corners (n, 2) of an object, m, and the road's heading there.

    Raises:
        DataError: an attribute is not a number.
    """
    where = f"{road.where}: object {shown(element.get('id'))}"
    s, t = number(element, "s", where), number(element, "t", where)
    x, y, heading = beside(road, np.array([s]), np.array([t]))[0]
    own = heading + number(element, "hdg", where, default=0.0)
    turn = np.array([[np.cos(own), -np.sin(own)], [np.sin(own), np.cos(own)]])
    shape = next(_outlines(element), None)
    if shape is None:
        u, v = (0.5 * number(element, key, where, default=0.0, low=0.0) for key in ("length", "width"))
        local = [(-u, -v), (u, -v), (u, v), (-u, v)]
    elif shape.find("cornerRoad") is not None:
        rows = np.array([[number(e, "s", where), number(e, "t", where)] for e in shape.findall("cornerRoad")])
        return beside(road, rows[:, 0], rows[:, 1])[:, :2], float(heading)
    else:
        local = [(number(e, "u", where), number(e, "v", where)) for e in shape.findall("cornerLocal")]
    return np.array([x, y]) + np.array(local) @ turn.T, float(heading)


def _outlines(element: Element) -> Iterator[Element]:
    for shape in (*element.findall("outlines/outline"), *element.findall("outline")):
        if shape.find("cornerRoad") is not None or shape.find("cornerLocal") is not None:
            yield shape


def beside(road: XodrRoad, s: Floats, t: Floats) -> Floats:
    """Positions and road heading (n, 3): x, y, heading at road coordinates (s, t)."""
    pose = poses(road.line, s)
    pose[:, 0] -= t * np.sin(pose[:, 2])
    pose[:, 1] += t * np.cos(pose[:, 2])
    return pose


def rectangle(corners: Floats) -> tuple[Floats, NDArray[np.float64], Floats]:
    """Smallest bounding rectangle aligned with an edge: centre (2,), axes (2, 2) as rows, sizes (2,) m."""
    edges = np.roll(corners, -1, axis=0) - corners
    edges = edges[np.linalg.norm(edges, axis=1) > 1e-6]
    best = (corners[0], np.eye(2), np.zeros(2))
    for x, y in edges / np.linalg.norm(edges, axis=1)[:, None]:
        axes = np.array([[x, y], [-y, x]])
        along = corners @ axes.T
        low, high = along.min(axis=0), along.max(axis=0)
        if best[2].prod() == 0.0 or (high - low).prod() < best[2].prod():
            best = (0.5 * (low + high) @ axes, axes, high - low)
    return best
