"""Links of an OpenDRIVE file: which driving lane of a section follows which."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from robotrl.sims.driving.opendrive.lanes import Network, Node, node_text
from robotrl.sims.driving.opendrive.roads import Joint, LaneRecord, Section, XodrRoad
from robotrl.sims.driving.opendrive.xml import shown, whole, word

Edges = dict[Node, list[Node]]
"""Driving lanes that follow each one, in driving direction."""
Joined = tuple[tuple[Node, bool], tuple[Node, bool], str]
"""Two joined lane ends (True: the end at greater s), and the place in the file for messages."""


def successors(net: Network) -> Edges:
    """Followers of each driving lane: by the sections of a road, road links, and junction connections.

    A link joins an end of one lane to an end of another; the traffic directions decide which lane follows which. Links
    to missing roads, junctions and lanes, or between lanes in opposite directions, are left out and counted.

    Raises:
        DataError: an attribute is missing or unusable.
    """
    edges: Edges = {}
    for (here, at_end), (there, at_other_end), where in (*_road_joints(net), *_junction_joints(net)):
        leaves = net.pieces[here].forward == at_end
        enters = net.pieces[there].forward != at_other_end
        if leaves != enters:
            net.notes.add("links skipped between lanes that run against each other", where)
            continue
        first, second = (here, there) if leaves else (there, here)
        following = edges.setdefault(first, [])
        if second not in following:
            following.append(second)
    return edges


def _joined(
    net: Network, here: Node, at_end: bool, road: XodrRoad, k: int, lane: int, contact: bool
) -> Iterator[Joined]:
    """The link, unless the lane does not exist (counted) or is no driving lane."""
    sections = road.sides[1 if lane > 0 else -1]
    k = k if k >= 0 else len(sections) + k
    there = (road.id, k, lane)
    if there in net.pieces and here in net.pieces:
        yield (here, at_end), (there, contact), node_text(here)
    elif not (0 <= k < len(sections) and any(record.id == lane for record in sections[k].lanes)):
        net.notes.add(
            "links skipped to lanes that do not exist", f"{node_text(here)}, to lane {lane} of road {shown(road.id)}"
        )


def _road_joints(net: Network) -> Iterator[Joined]:
    for road in net.roads.values():
        for sections in road.sides.values():
            for k, section in enumerate(sections):
                for lane in section.lanes:
                    if (road.id, k, lane.id) in net.pieces:
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
                    net.notes.add("links skipped to roads without contactPoint", node_text(here))
                    continue
                contact = joint.contact == "end"
                yield from _joined(net, here, at_end, net.roads[joint.id], -1 if contact else 0, lane_id, contact)


def drop_dangling(net: Network) -> None:
    """Leave out the links of roads to roads and junctions that the file does not have, and count them.

    Files that are cut out of larger maps have them; SUMO's converter, and so CARLA's for OpenStreetMap, ends dead ends
    in junctions that it does not write.
    """
    junctions = {e.get("id") for e in net.root.findall("junction")}

    def kept(road: XodrRoad, joint: Joint | None) -> Joint | None:
        if joint is None or joint.id in (junctions if joint.junction else net.roads):
            return joint
        kind = "junction" if joint.junction else "road"
        what = f"road links skipped to {kind}s that do not exist"
        net.notes.add(what, f"road {shown(road.id)}, to {kind} {shown(joint.id)}")
        return None

    for own, road in net.roads.items():
        net.roads[own] = road._replace(predecessor=kept(road, road.predecessor), successor=kept(road, road.successor))


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
            missing = [name for name in (connection.get("incomingRoad"), connection.get(key)) if name not in net.roads]
            if missing:
                what = "junction connections skipped of roads that do not exist"
                net.notes.add(what, f"junction {shown(own)}, road {shown(missing[0])}")
                continue
            incoming, other = net.roads[connection.get("incomingRoad", "")], net.roads[connection.get(key, "")]
            yield from _connected(net, connection, own, where, incoming, other, contact == "end")


def _connected(
    net: Network, connection: Element, own: str, where: str, incoming: XodrRoad, other: XodrRoad, at_other_end: bool
) -> Iterator[Joined]:
    """Links of a connection of junction `own` from the incoming road to the other one."""
    ends = [
        at_end
        for at_end, joint in ((False, incoming.predecessor), (True, incoming.successor))
        if joint is not None and joint.junction and joint.id == own
    ]
    for link in connection.findall("laneLink"):
        source, target = whole(link, "from", where), whole(link, "to", where)
        side = incoming.sides[1 if source > 0 else -1]
        # a road with both ends, or none, at this junction: cars enter on the connection's source lanes
        record = next((lane for section in side for lane in section.lanes if lane.id == source), None)
        at_end = ends[0] if len(ends) == 1 else record is not None and net.forward(record)
        here = (incoming.id, len(side) - 1 if at_end else 0, source)
        if here not in net.pieces and not (side and any(lane.id == source for lane in side[here[1]].lanes)):
            net.notes.add("links skipped to lanes that do not exist", f"junction {shown(own)}, {node_text(here)}")
            continue
        yield from _joined(net, here, at_end, other, -1 if at_other_end else 0, target, at_other_end)
