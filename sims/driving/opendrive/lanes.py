"""Driving lanes of an OpenDRIVE file, section by section: where they run, how wide they are, who lies beside whom."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import DataError
from robotrl.sims.driving.opendrive.geometry import Floats, cubic_at, poses, stations
from robotrl.sims.driving.opendrive.roads import LaneRecord, Section, XodrRoad, in_force
from robotrl.sims.driving.opendrive.xml import Notes, shown
from robotrl.sims.driving.roads.lanes import RoadBuilder

DRIVING = {
    "driving",
    "bidirectional",
    "entry",
    "exit",
    "onRamp",
    "offRamp",
    "connectingRamp",
    "slipLane",
    "mwyEntry",
    "mwyExit",
}
NARROW_M = 2.0
"""Width below which a lane is too narrow for a car, the widest of which are 2 m wide."""
SHORTEST_M = 0.05
"""Minimum length of a lane; shorter ones are bridged between predecessors and successors."""
CHANGEABLE = {"broken", "none", "custom"}
MISPLACED_M = 0.01
"""Distance by which a border lies on the wrong side, or inside the lane within, that counts as an error of the file."""

Node = tuple[str, int, int]
"""Key of a driving lane in a section: road id, index of the section on its side, lane id."""


class LanePiece(NamedTuple):
    """A driving lane in one section."""

    road: XodrRoad
    forward: bool
    """True if traffic runs along s."""
    limit: float | None
    """Speed limit, m/s; None if the file gives none."""
    narrow: bool
    """True if a car does not fit in."""
    s: Floats
    """(n,) m along the reference line; one point in a section of no length."""
    points: Floats
    """(n, 2) centre line in the direction of s, m."""
    tangents: Floats
    """(n, 2) direction of the reference line."""
    widths: Floats
    """(n,) m."""


class LanePair(NamedTuple):
    """Two lanes of one direction side by side, and the lane changes that the line between them allows."""

    left: Node
    right: Node
    to_right: bool
    to_left: bool


class Strip(NamedTuple):
    """Where a lane of the builder lies on its road; same index as in the builder."""

    road: XodrRoad
    forward: bool
    """True if traffic runs along s."""
    limited: bool
    """True if the file gives a speed limit."""
    s: Floats
    """(n,) m along the reference line."""
    along: Floats
    """(n,) m along the lane, in the direction of s."""

    def at(self, s: float) -> float:
        """Distance, m, along the lane in driving direction at road coordinate `s`."""
        along = float(np.interp(s, self.s, self.along))
        return along if self.forward else float(self.along[-1]) - along


@dataclass
class Network:
    """State of a file while it is read."""

    name: str
    root: Element
    roads: dict[str, XodrRoad]
    left_hand: bool
    builder: RoadBuilder
    notes: Notes = field(default_factory=Notes)
    pieces: dict[Node, LanePiece] = field(default_factory=dict)
    """Driving lanes of each section, in the order of the file."""
    pairs: list[LanePair] = field(default_factory=list)
    bends: dict[str, float] = field(default_factory=dict)
    """Change of heading along each road, rad, left positive in the map's frame."""
    grids: dict[str, Floats] = field(default_factory=dict)
    """Positions, m along each road, at which it is sampled however it is divided into sections."""
    strips: list[Strip] = field(default_factory=list)
    nodes: dict[Node, int] = field(default_factory=dict)
    """Builder's lane of each driving lane of a section; NONE where it is too short for one."""
    before: list[list[int]] = field(default_factory=list)
    """Predecessors of each lane."""

    @property
    def flip(self) -> float:
        """Factor on y: -1 mirrors files with left-hand traffic."""
        return -1.0 if self.left_hand else 1.0

    def forward(self, lane: LaneRecord) -> bool:
        """True if traffic on a lane runs along s."""
        return ((lane.id < 0) != self.left_hand) != lane.against


def node_text(node: Node) -> str:
    """Name of a lane for messages."""
    return f"road {shown(node[0])}, lane {node[2]}"


def add_pieces(net: Network) -> None:
    """Compute the driving lanes of each section, and which lie beside each other.

    Raises:
        DataError: a driving lane without a width.
    """
    for road in net.roads.values():
        sides = [sections for sections in road.sides.values() if has_driving(sections)]
        if not sides:
            continue
        s = stations(road.line, _marks(road))
        pose = poses(road.line, s)
        heading = np.unwrap(pose[:, 2])
        net.bends[road.id] = net.flip * float(heading[-1] - heading[0])
        net.grids[road.id] = stations(road.line, ())
        for sections in sides:
            for k, section in enumerate(sections):
                low, high = np.searchsorted(s, [section.start - 1e-6, section.end + 1e-6])
                # a section between two stations has no length to speak of
                high = max(high, low + 1)
                _check_borders(net, road, section, s[low:high])
                _add_section(net, road, k, section, s[low:high], pose[low:high])
                _add_pairs(net, road, k, section)


def has_driving(sections: tuple[Section, ...]) -> bool:
    """True if any of the sections has a driving lane."""
    return any(lane.kind in DRIVING for section in sections for lane in section.lanes)


def lateral(road: XodrRoad, section: Section, s: Floats) -> Iterator[tuple[LaneRecord, Floats, Floats]]:
    """Driving lanes of a section, each with the t of its centre and its width at each `s`.

    Borders count as distances on the lane's own side, and no lane reaches into the one within it.

    Raises:
        DataError: a driving lane has neither width nor border.
    """
    middle = cubic_at(road.offset, s, section.end)
    inner = middle
    for lane in section.lanes:
        outer = inner
        side = np.sign(lane.id)
        if lane.widths is not None:
            own = cubic_at(lane.widths, s - section.origin, section.end - section.origin)
            outer = inner + side * np.maximum(own, 0.0)
        elif lane.borders is not None:
            own = np.abs(cubic_at(lane.borders, s - section.origin, section.end - section.origin))
            outer = inner + side * np.maximum(side * (middle - inner) + own, 0.0)
        elif lane.kind in DRIVING:
            raise DataError(
                f"{road.where}: <lane> {lane.id} in the section at s = {section.start:g} is {lane.kind!r} and has no"
                " <width> or <border>: expected one of them"
            )
        if lane.kind in DRIVING:
            yield lane, 0.5 * (inner + outer), np.abs(outer - inner)
        inner = outer


def may_change(inner: LaneRecord, at: float) -> tuple[bool, bool]:
    """Lane changes allowed outwards and inwards across a lane's outer mark, `at` m from its section's start."""
    mark = in_force(inner.marks, at)
    if mark is None:
        return True, True
    declared = mark.get("laneChange")
    if declared in ("both", "none", "increase", "decrease"):
        rising, falling = declared in ("both", "increase"), declared in ("both", "decrease")
        return (rising, falling) if inner.id > 0 else (falling, rising)
    lines = mark.get("type", "none").replace("botts dots", "broken").split() or ["none"]
    return lines[0] in CHANGEABLE, lines[-1] in CHANGEABLE


def limit_at(road: XodrRoad, section: Section, lane: LaneRecord, s: float) -> float | None:
    """Speed limit of a lane, m/s: its own, else its road's; None if the file gives none."""
    return in_force(lane.speeds, s - section.origin) or in_force(road.speeds, s)


def heights_at(road: XodrRoad, s: Floats) -> Floats | None:
    """Heights (n,) of a road's reference line at each `s`, m; None without.

    Raises:
        DataError: a height is not finite.
    """
    if road.heights is None:
        return None
    found = cubic_at(road.heights, s, road.line.length)
    if not np.isfinite(found).all():
        raise DataError(f"{road.where}: <elevation> gives a height that is not finite: expected numbers")
    return found


def _marks(road: XodrRoad) -> Iterator[float]:
    """All s at which a section or record begins."""
    yield from road.offset.starts
    for section in (section for sections in road.sides.values() for section in sections):
        yield section.start
        for lane in section.lanes:
            for cubics in (lane.widths, lane.borders):
                if cubics is not None:
                    yield from np.clip(section.origin + cubics.starts, section.start, section.end)


def _check_borders(net: Network, road: XodrRoad, section: Section, s: Floats) -> None:
    """Count borders that cannot be meant as they stand; `lateral` takes them as distances, and outwards."""
    at, long = s - section.origin, section.end - section.origin
    reached = np.zeros(len(s))
    for lane in section.lanes:
        where = node_text((road.id, 0, lane.id))
        if lane.widths is not None:
            reached = reached + np.maximum(cubic_at(lane.widths, at, long), 0.0)
        elif lane.borders is not None:
            own = np.sign(lane.id) * cubic_at(lane.borders, at, long)
            if own.min() < -MISPLACED_M:
                net.notes.add("borders on the other side taken for distances on the lane's own side", where)
            if (reached - np.abs(own)).max() > MISPLACED_M:
                net.notes.add("borders inside of the lane within taken for its edge", where)
            reached = np.maximum(reached, np.abs(own))


def _add_section(net: Network, road: XodrRoad, k: int, section: Section, s: Floats, pose: NDArray[np.float64]) -> None:
    normal = np.stack([-np.sin(pose[:, 2]), np.cos(pose[:, 2])], axis=1)
    middle = 0.5 * (section.start + section.end)
    for lane, t, width in lateral(road, section, s):
        net.pieces[road.id, k, lane.id] = LanePiece(
            road,
            net.forward(lane),
            limit_at(road, section, lane, middle),
            float(np.interp(middle, s, width)) < NARROW_M,
            s,
            (pose[:, :2] + t[:, None] * normal) * [1.0, net.flip],
            normal[:, ::-1] * [1.0, -net.flip],
            width,
        )


def _add_pairs(net: Network, road: XodrRoad, k: int, section: Section) -> None:
    """Note which lanes lie side by side; with right-hand traffic the inner lane is the left one."""
    middle = 0.5 * (section.start + section.end)
    for inner, outer in zip(section.lanes, section.lanes[1:], strict=False):
        nodes = (road.id, k, inner.id), (road.id, k, outer.id)
        if all(node in net.pieces for node in nodes) and inner.against == outer.against:
            outwards, inwards = may_change(inner, middle - section.origin)
            if road.junction is not None:
                outwards = inwards = False
            if inner.against:
                net.pairs.append(LanePair(nodes[1], nodes[0], inwards, outwards))
            else:
                net.pairs.append(LanePair(nodes[0], nodes[1], outwards, inwards))
