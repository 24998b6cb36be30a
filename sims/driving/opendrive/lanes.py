"""Driving lanes of an OpenDRIVE file: centre lines, speed limits, successors, neighbours and lane-change rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import DataError
from robotrl.sims.driving.opendrive.geometry import Floats, cubic_at, poses, stations
from robotrl.sims.driving.opendrive.roads import DEFAULT_SPEED_MPS, LaneRecord, Section, Timed, XodrRoad, in_force
from robotrl.sims.driving.opendrive.xml import Notes, shown, whole, word
from robotrl.sims.driving.roads.lanes import NONE, SPACING_M, JunctionTurn, RoadBuilder, resampled

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
NARROWEST_M = 1.0
"""Minimum width; a lane that is nowhere wider is no driving lane."""
SHORTEST_M = 0.05
"""Minimum length of a section that becomes a lane; shorter ones are bridged between predecessors and successors."""
TURNED_RAD = np.pi / 6.0
"""Heading change beyond which a road in a junction counts as a left or right turn."""
GAP_M = 1.0
"""Gap between a lane's start and its predecessor's end that triggers a warning."""
UNEVEN_M = 0.05
"""Deviation from the mean width beyond which a lane's width is recorded point by point."""
SAGITTA_M = 0.03
"""Deviation of a lane's chords from its centre line beyond which its points are closer than `SPACING_M`."""
CLOSEST_M = 0.25
MOST_UNFOLDED = 200
CHANGEABLE = {"broken", "none", "custom"}

Node = tuple[str, int, int]
"""Key of a lane: road id, index of the section on its side, lane id."""


class Strip(NamedTuple):
    """A driving lane of a section; same index as in the builder."""

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
    strips: list[Strip] = field(default_factory=list)
    nodes: dict[Node, int] = field(default_factory=dict)
    """Index of each driving lane; NONE for sections too short for a lane."""
    before: list[list[int]] = field(default_factory=list)
    """Predecessors of each lane."""

    @property
    def flip(self) -> float:
        """Factor on y: -1 mirrors files with left-hand traffic."""
        return -1.0 if self.left_hand else 1.0

    def forward(self, lane: int) -> bool:
        """True if traffic on a lane with this id runs along s."""
        return (lane < 0) != self.left_hand


def add_lanes(net: Network) -> None:
    """Add a lane for each driving lane of each section, with its neighbours.

    Raises:
        DataError: a driving lane without a width, or a discontinuous plan view.
    """
    for road in net.roads.values():
        sides = [sections for sections in road.sides.values() if any(driving(sections))]
        if not sides:
            continue
        s = stations(road.line, _marks(road))
        pose = poses(road.line, s)
        for sections in sides:
            for k, section in enumerate(sections):
                low, high = np.searchsorted(s, [section.start - 1e-6, section.end + 1e-6])
                _add_section(net, road, k, section, s[low:high], pose[low:high], _turn(net, pose))
                _add_neighbors(net, road, k, section)


def driving(sections: tuple[Section, ...]) -> Iterator[LaneRecord]:
    """Driving lanes of these sections."""
    return (lane for section in sections for lane in section.lanes if lane.kind in DRIVING)


def lateral(road: XodrRoad, section: Section, s: Floats) -> Iterator[tuple[LaneRecord, Floats, Floats]]:
    """Driving lanes of a section, each with the t of its centre and its width at each `s`.

    Raises:
        DataError: a driving lane has neither width nor border.
    """
    middle = cubic_at(road.offset, s, section.end)
    inner = middle
    for lane in section.lanes:
        outer = inner
        if lane.widths is not None:
            own = cubic_at(lane.widths, s - section.start, section.end - section.start)
            outer = inner + np.sign(lane.id) * np.maximum(own, 0.0)
        elif lane.borders is not None:
            outer = middle + cubic_at(lane.borders, s - section.start, section.end - section.start)
        elif lane.kind in DRIVING:
            raise DataError(
                f"{road.where}: <lane> {lane.id} in the section at s = {section.start:g} is {lane.kind!r} and has no"
                " <width> or <border>: expected one of them"
            )
        if lane.kind in DRIVING:
            yield lane, 0.5 * (inner + outer), np.abs(outer - inner)
        inner = outer


def link_lanes(net: Network) -> None:
    """Link lanes to successors: by the sections of a road, road links, and junction connections.

    A link joins an end of one lane to an end of another; the traffic directions decide which lane follows which. Links
    to missing lanes, or between lanes in opposite directions, are dropped and counted.

    Raises:
        DataError: a link refers to a road that the file does not have.
    """
    joints = [*_road_joints(net), *_junction_joints(net)]
    edges: dict[Node, list[Node]] = {}
    for (here, at_end), (there, at_other_end), where in joints:
        leaves, enters = net.forward(here[2]) == at_end, net.forward(there[2]) != at_other_end
        if leaves != enters:
            net.notes.add("links skipped between lanes that run against each other", where)
        elif leaves:
            edges.setdefault(here, []).append(there)
        else:
            edges.setdefault(there, []).append(here)
    lanes = net.builder.lanes
    net.before = [[] for _ in lanes]
    for node, number in net.nodes.items():
        if number != NONE:
            for follower in _followers(net, edges, node):
                net.builder.follow(number, follower)
                gap = float(np.linalg.norm(lanes[number].points[-1] - lanes[follower].points[0]))
                if gap > GAP_M:
                    what = f"lanes begin over {GAP_M:g} m from the end of the lane before"
                    net.notes.add(what, f"after {_node_text(node)}: {gap:.1f} m")
    for number, lane in enumerate(lanes):
        for follower in lane.next:
            net.before[follower].append(number)


def limit_junctions(net: Network) -> None:
    """Give junction lanes without a speed limit the lowest limit of the lanes that they join."""
    lanes = net.builder.lanes
    for number, strip in enumerate(net.strips):
        if strip.road.junction is not None and not strip.limited:
            around = [i for i in (*net.before[number], *lanes[number].next) if net.strips[i].limited]
            if around:
                lanes[number].speed_mps = min(lanes[i].speed_mps for i in around)


def _marks(road: XodrRoad) -> Iterator[float]:
    """All s at which a section or record begins."""
    yield from road.offset.starts
    for section in (section for sections in road.sides.values() for section in sections):
        yield section.start
        for lane in section.lanes:
            for cubics in (lane.widths, lane.borders):
                if cubics is not None:
                    yield from np.minimum(section.start + cubics.starts, section.end)


def _turn(net: Network, pose: Floats) -> tuple[JunctionTurn, JunctionTurn]:
    """Turn direction of the road, along s and against s."""
    heading = np.unwrap(pose[:, 2])
    turned = net.flip * float(heading[-1] - heading[0])
    if abs(turned) < TURNED_RAD:
        return JunctionTurn.STRAIGHT, JunctionTurn.STRAIGHT
    return (JunctionTurn.LEFT, JunctionTurn.RIGHT) if turned > 0.0 else (JunctionTurn.RIGHT, JunctionTurn.LEFT)


def _add_section(
    net: Network,
    road: XodrRoad,
    k: int,
    section: Section,
    s: Floats,
    pose: Floats,
    turns: tuple[JunctionTurn, JunctionTurn],
) -> None:
    long = section.end - section.start
    normal = np.stack([-np.sin(pose[:, 2]), np.cos(pose[:, 2])], axis=1)
    for lane, t, width in lateral(road, section, s):
        node = (road.id, k, lane.id)
        if long < SHORTEST_M:
            net.nodes[node] = NONE
            continue
        if width.max() < NARROWEST_M:
            continue
        points = (pose[:, :2] + t[:, None] * normal) * [1.0, net.flip]
        kept = unfolded(points, normal[:, ::-1] * [1.0, -net.flip])
        points = points[kept]
        along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))])
        if not 1e-2 < along[-1] < 3.0 * long + 100.0:
            raise DataError(
                f"{road.where}: <lane> {lane.id} is {along[-1]:.6g} m long where its section is {long:.6g} m: expected"
                " <geometry>, <laneOffset> and <width> without jumps"
            )
        forward, in_junction = net.forward(lane.id), road.junction is not None
        mean = float(np.trapezoid(width, s) / (s[-1] - s[0]))
        varies = bool(np.abs(width - mean).max() > UNEVEN_M)
        order = slice(None) if forward else slice(None, None, -1)
        heights = heights_at(road, s[kept])
        limit = in_force(lane.speeds, 0.5 * long) or in_force(road.speeds, section.start + 0.5 * long)
        net.nodes[node] = net.builder.lane(
            points[order],
            limit or DEFAULT_SPEED_MPS,
            mean,
            in_junction,
            turns[0 if forward else 1] if in_junction else JunctionTurn.STRAIGHT,
            _spacing(points, along),
            width[kept][order] if varies else None,
            None if heights is None else heights[order],
        )
        net.strips.append(Strip(road, forward, limit is not None, s[kept], along))


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


def _spacing(points: Floats, along: Floats) -> float:
    """Distance of points at which the lane's chords stay within `SAGITTA_M` of these points: less in tight bends."""
    spacing = SPACING_M
    while spacing > CLOSEST_M:
        coarse = resampled(points, spacing)
        at = np.linspace(0.0, along[-1], len(coarse))
        chord = np.stack([np.interp(along, at, coarse[:, k]) for k in range(2)], axis=1)
        if np.linalg.norm(chord - points, axis=1).max() <= SAGITTA_M:
            break
        spacing /= 2.0
    return spacing


def unfolded(points: Floats, tangents: Floats) -> NDArray[np.intp]:
    """Indices of the points to keep so that a lane offset to the inside of a tight bend does not run backwards.

    Args:
        points: (n, 2) points of the lane.
        tangents: (n, 2) directions of the reference line.
    """
    kept = np.arange(len(points))
    for _ in range(MOST_UNFOLDED):
        steps = np.diff(points[kept], axis=0)
        back = np.flatnonzero((steps * (tangents[kept[:-1]] + tangents[kept[1:]])).sum(axis=1) < 0.0)
        drop = np.unique(np.concatenate([back, back + 1]))
        drop = drop[(drop > 0) & (drop < len(kept) - 1)]
        if not len(drop):
            break
        kept = np.delete(kept, drop)
    return kept


def _add_neighbors(net: Network, road: XodrRoad, k: int, section: Section) -> None:
    """Link neighbouring lanes; with right-hand traffic the inner lane is the left one."""
    if road.junction is not None:
        return
    for inner, outer in zip(section.lanes, section.lanes[1:], strict=False):
        left, right = (net.nodes.get((road.id, k, lane.id), NONE) for lane in (inner, outer))
        if left == NONE or right == NONE:
            continue
        outwards, inwards = changes(inner.marks, section.end - section.start, inner.id > 0)
        net.builder.beside(left, right, outwards and inwards)
        lanes = net.builder.lanes
        if outwards and not inwards:
            lanes[left].right, lanes[left].right_solid = right, False
        elif inwards and not outwards:
            lanes[right].left, lanes[right].left_solid = left, False


def changes(marks: Timed[Element], long: float, left_side: bool) -> tuple[bool, bool]:
    """Lane changes allowed outwards and inwards across a lane's outer mark, by the greater part of its length."""
    ends = [*(start for start, _ in marks), long][1:]
    forbidden = np.zeros(2)
    for (start, mark), end in zip(marks, ends, strict=True):
        forbidden += max(min(end, long) - start, 0.0) * ~np.array(_changes(mark, left_side))
    outwards, inwards = forbidden <= 0.5 * long
    return bool(outwards), bool(inwards)


def _changes(mark: Element, left_side: bool) -> tuple[bool, bool]:
    declared = mark.get("laneChange")
    if declared in ("both", "none", "increase", "decrease"):
        rising, falling = declared in ("both", "increase"), declared in ("both", "decrease")
        return (rising, falling) if left_side else (falling, rising)
    lines = mark.get("type", "none").replace("botts dots", "broken").split() or ["none"]
    return lines[0] in CHANGEABLE, lines[-1] in CHANGEABLE


Joined = tuple[tuple[Node, bool], tuple[Node, bool], str]
"""Two joined lane ends (True: the end at greater s), and the place in the file for messages."""


def _node_text(node: Node) -> str:
    return f"road {shown(node[0])}, lane {node[2]}"


def _followers(net: Network, edges: dict[Node, list[Node]], node: Node) -> Iterator[int]:
    """Indices of the following lanes, bridging sections too short for a lane."""
    ahead, seen = list(edges.get(node, ())), set[Node]()
    for there in ahead:
        if there not in seen:
            seen.add(there)
            number = net.nodes[there]
            if number == NONE:
                ahead += edges.get(there, ())
            else:
                yield number


def _joined(
    net: Network, here: Node, at_end: bool, road: XodrRoad, k: int, lane: int, contact: bool
) -> Iterator[Joined]:
    """The link, unless the lane does not exist (counted) or is no driving lane."""
    sections = road.sides[1 if lane > 0 else -1]
    k = k if k >= 0 else len(sections) + k
    there = (road.id, k, lane)
    if there in net.nodes and here in net.nodes:
        yield (here, at_end), (there, contact), _node_text(here)
    elif not (0 <= k < len(sections) and any(record.id == lane for record in sections[k].lanes)):
        net.notes.add(
            "links skipped to lanes that do not exist", f"{_node_text(here)}, to lane {lane} of road {shown(road.id)}"
        )


def _road_joints(net: Network) -> Iterator[Joined]:
    junctions = {e.get("id") for e in net.root.findall("junction")}
    for road in net.roads.values():
        for tag, joint in (("predecessor", road.predecessor), ("successor", road.successor)):
            if joint is None:
                continue
            if joint.junction and joint.id not in junctions:
                # SUMO's converter, and so CARLA's for OpenStreetMap, ends dead ends in junctions that it does not write
                net.notes.add(
                    "road links skipped to junctions that do not exist",
                    f"road {shown(road.id)}, to junction {shown(joint.id)}",
                )
            elif not joint.junction and joint.id not in net.roads:
                raise DataError(
                    f"{road.where}: <{tag}> elementId is {shown(joint.id)}: expected the id of a road of this file"
                )
        for sections in road.sides.values():
            for k, section in enumerate(sections):
                for lane in section.lanes:
                    if (road.id, k, lane.id) in net.nodes:
                        yield from _lane_joints(net, road, sections, k, lane)


def _lane_joints(
    net: Network, road: XodrRoad, sections: tuple[Section, ...], k: int, lane: LaneRecord
) -> Iterator[Joined]:
    here = (road.id, k, lane.id)
    for at_end, ids, joint, other in (
        (False, lane.predecessors, road.predecessor, k - 1),
        (True, lane.successors, road.successor, k + 1),
    ):
        for lane_id in ids:
            if 0 <= other < len(sections):
                yield from _joined(net, here, at_end, road, other, lane_id, not at_end)
            elif joint is not None and not joint.junction:
                if joint.contact is None:
                    net.notes.add("links skipped to roads without contactPoint", _node_text(here))
                    continue
                contact = joint.contact == "end"
                yield from _joined(net, here, at_end, net.roads[joint.id], -1 if contact else 0, lane_id, contact)


def _junction_joints(net: Network) -> Iterator[Joined]:
    for junction in net.root.findall("junction"):
        own = word(junction, "id", f"{net.name}: junction")
        where = f"{net.name}: junction {shown(own)}"
        for connection in junction.findall("connection"):
            # a direct junction has no roads of its own: the connection names the road that it leads into
            key = "linkedRoad" if connection.get("connectingRoad") is None else "connectingRoad"
            contact = connection.get("contactPoint")
            if connection.get("incomingRoad") is None or connection.get(key) is None or contact not in ("start", "end"):
                what = "junction connections skipped without incomingRoad, connectingRoad or contactPoint"
                net.notes.add(what, f"junction {shown(own)}")
                continue
            incoming, other = _named(net, connection, "incomingRoad", where), _named(net, connection, key, where)
            ends = [
                at_end
                for at_end, joint in ((False, incoming.predecessor), (True, incoming.successor))
                if joint is not None and joint.junction and joint.id == own
            ]
            for link in connection.findall("laneLink"):
                source, target = whole(link, "from", where), whole(link, "to", where)
                # a road with both ends, or none, at this junction: cars enter on the connection's source lanes
                at_end = ends[0] if len(ends) == 1 else net.forward(source)
                side = incoming.sides[1 if source > 0 else -1]
                here = (incoming.id, len(side) - 1 if at_end else 0, source)
                if here not in net.nodes and not (side and any(lane.id == source for lane in side[here[1]].lanes)):
                    net.notes.add(
                        "links skipped to lanes that do not exist", f"junction {shown(own)}, {_node_text(here)}"
                    )
                    continue
                at_other_end = contact == "end"
                yield from _joined(net, here, at_end, other, -1 if at_other_end else 0, target, at_other_end)


def _named(net: Network, element: Element, key: str, where: str) -> XodrRoad:
    """Road that a connection refers to.

    Raises:
        DataError: the road does not exist.
    """
    own = element.get(key, "")
    if own not in net.roads:
        raise DataError(f"{where}: <connection> {key} is {shown(own)}: expected the id of a road of this file")
    return net.roads[own]
