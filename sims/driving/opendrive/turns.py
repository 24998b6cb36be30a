"""Turns of lanes through junctions, and who goes first there by what the file says."""

from __future__ import annotations

import numpy as np

from robotrl.sims.driving.opendrive.geometry import poses
from robotrl.sims.driving.opendrive.lanes import Network
from robotrl.sims.driving.opendrive.roads import Joint, XodrRoad
from robotrl.sims.driving.opendrive.xml import shown
from robotrl.sims.driving.roads.lanes import JunctionTurn

TURNED_RAD = np.pi / 6.0
"""Heading change beyond which a lane in a junction counts as a left or right turn."""
LOOK_M = 5.0
"""Length, m, of the end of a road whose curvature counts."""


def turn_of(net: Network, road: XodrRoad, forward: bool) -> tuple[JunctionTurn, float]:
    """Turn of the lanes of a road in a junction, and their change of heading, rad, left positive.

    A road that goes on in the curve of the roads at both of its ends, as the ring of a roundabout does, does not turn:
    their curvature is taken off.
    """
    if road.junction is None:
        return JunctionTurn.STRAIGHT, 0.0
    bend = net.bends[road.id]
    before = _curvature(net, road.predecessor, "end")
    after = _curvature(net, road.successor, "start")
    if before * after > 0.0 and before * bend > 0.0:
        usual = min(abs(before), abs(after)) * road.line.length
        bend -= np.copysign(min(usual, abs(bend)), bend)
    bend = float(bend if forward else -bend)
    if abs(bend) < TURNED_RAD:
        return JunctionTurn.STRAIGHT, bend
    return JunctionTurn.LEFT if bend > 0.0 else JunctionTurn.RIGHT, bend


def _curvature(net: Network, joint: Joint | None, along: str) -> float:
    """Curvature, 1/m, of a linked road where it is linked; its contact `along` is that of a road of the same way."""
    if joint is None or joint.junction or joint.contact is None:
        return 0.0
    line = net.roads[joint.id].line
    long = min(LOOK_M, line.length)
    if long < 0.1:
        return 0.0
    first = 0.0 if joint.contact == "start" else line.length - long
    heading = np.unwrap(poses(line, np.array([first, first + long]))[:, 2])
    curvature = net.flip * float(heading[1] - heading[0]) / long
    return curvature if joint.contact == along else -curvature


def add_priorities(net: Network) -> None:
    """Read the <priority> of junctions: which road goes first, of the junction's own roads or of those that enter it.

    Raises:
        DataError: an attribute is missing.
    """
    for junction in net.root.findall("junction"):
        own = junction.get("id")
        inside: dict[str, set[int]] = {}
        for number, strip in enumerate(net.strips):
            if strip.road.junction == own:
                entered = {net.strips[before].road.id for before in net.before[number]}
                for road in {strip.road.id, *entered}:
                    inside.setdefault(road, set()).add(number)
        for element in junction.findall("priority"):
            high, low = element.get("high"), element.get("low")
            if high is None or low is None or high not in inside or low not in inside:
                what = "priorities skipped of roads that are not in the junction"
                net.notes.add(what, f"junction {shown(own)}, {shown(high)} before {shown(low)}")
                continue
            for first in inside[high] - inside[low]:
                for second in inside[low] - inside[high]:
                    net.builder.give_way(second, first)
