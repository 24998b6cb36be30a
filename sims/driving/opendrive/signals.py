"""Traffic lights, stop signs and yield signs of an OpenDRIVE file: their lanes, stop lines and light cycles.

A signal applies to the lanes at its position for which it is valid (<validity>; without one all lanes of the direction
given by its orientation; if the two have no lane in common, <validity> alone, and inside a junction all lanes). The
stop line is at its s, or 1 m before the end of the lane. A signal on a road inside a junction applies to the lanes that
lead into that road. A signal up to 20 m before a junction whose own lane ends earlier applies to the last lane before
the junction. A signal referenced by several roads (<signalReference>) applies to the lanes of each. A lane has one stop
line: a light has priority over a stop sign, and a stop sign over a yield sign; among lights, a full one over an arrow,
and the one for straight on.

OpenDRIVE has no timing. Here all lights of a map share a cycle of 15 s per phase of the junction with the most phases,
at least 30 s. In each junction the phases share the cycle equally: green, 3 s yellow, 2 s red for all. A phase is a
controller, in the order of the junction's sequence numbers, if every light of the junction has one and there are two or
more. Otherwise it is an approach (one road from one direction) together with the opposite one (within 45 degrees), if
any. A junction with one phase, and a light without a junction, is green for half of the cycle.

With `own_lights` there are no phases: every signal is a light of its own, for worlds that set the lights' states.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from robotrl.sims.driving.opendrive.lanes import Network
from robotrl.sims.driving.opendrive.roads import XodrRoad
from robotrl.sims.driving.opendrive.xml import number, shown, whole, word
from robotrl.sims.driving.roads.lanes import NONE, Control, JunctionTurn

PHASE_S = 15.0
YELLOW_S = 3.0
ALL_RED_S = 2.0
OPPOSITE_RAD = 0.75 * np.pi
"""Heading difference beyond which approaches are opposite."""
REACH_M = 60.0
"""Largest distance from a light's lane to the junction that it belongs to."""
MOVED_M = 20.0
"""Largest distance to a junction from which a stop line moves to the last lane before it."""
SHORT_M = 2.0
"""Lane length below which a stop line is also put on the predecessors, for lack of space before it."""
LIGHT = "1000001"
NOT_FOR_CARS = {"1000002", "1000007", "1000013"}
"""Signal types of lights for pedestrians and bicycles."""
SIGNS = {"206": Control.STOP, "205": Control.YIELD}
RANK = {Control.LIGHT: 0, Control.STOP: 1, Control.YIELD: 2}


class Placed(NamedTuple):
    """A stop line, ordered by priority: the smallest of several on a lane counts."""

    rank: int
    aside: bool
    """True if the signal is for a turn: on a turning lane of the junction, or an arrow."""
    at: float
    control: Control
    signal: str


class Light(NamedTuple):
    """A lane with a traffic light."""

    lane: int
    signal: str
    approach: tuple[str, bool]
    """Road by which the junction is entered, and true if along s."""
    heading: float


def add_signals(net: Network, own_lights: bool = False) -> None:
    """Add stop lines to the lanes and set the timing of the lights.

    Args:
        net: state of the file.
        own_lights: make each signal a light of its own instead of phases; its timing has no meaning.

    Raises:
        DataError: an attribute is not a number.
    """
    chosen: dict[int, Placed] = {}
    for lane, lane_signal in _signals_by_lane(net):
        chosen[lane] = min(lane_signal, chosen.get(lane, lane_signal))
    junctions: dict[tuple[str, str], list[Light]] = {}
    for lane, lane_signal in chosen.items():
        if lane_signal.control == Control.LIGHT:
            key, light = _light(net, lane, lane_signal.signal)
            junctions.setdefault(("signal", light.signal) if own_lights else key, []).append(light)
        else:
            net.builder.stop(lane, lane_signal.control, s=lane_signal.at)
    controllers, sequences = _controllers(net)
    timed = [
        [lights] if own_lights else _phases(lights, controllers, sequences, junction)
        for (_, junction), lights in junctions.items()
    ]
    if timed:
        net.builder.cycle_s = PHASE_S * max(2, *map(len, timed))
    for phases in timed:
        turn_s = net.builder.cycle_s / max(len(phases), 2)
        for i, phase in enumerate(phases):
            names = tuple(dict.fromkeys(light.signal for light in phase))
            group = net.builder.signal(i * turn_s, turn_s - YELLOW_S - ALL_RED_S, names)
            for light in phase:
                net.builder.stop(light.lane, Control.LIGHT, group, chosen[light.lane].at)


def control(signal: Element) -> Control | None:
    """Kind of control of a <signal> (light, stop, yield); None for other signs."""
    kind = signal.get("type", "")
    light = kind == LIGHT or (
        signal.get("dynamic") == "yes"
        and kind not in NOT_FOR_CARS
        and (kind.startswith("10000") or kind in ("", "-1", "none"))
    )
    return Control.LIGHT if light else SIGNS.get(kind)


def _signals_by_lane(net: Network) -> Iterator[tuple[int, Placed]]:
    """All stop lines that signals require, with their lanes."""
    signals = [(road, e) for road in net.roads.values() for e in road.element.iterfind("signals/signal")]
    controls = {e.get("id"): control(e) for _, e in signals}
    arrows = {e.get("id") for _, e in signals if e.get("type", "").startswith("10000") and e.get("type") != LIGHT}
    signals += [(road, e) for road in net.roads.values() for e in road.element.iterfind("signals/signalReference")]
    for road, element in signals:
        own = word(element, "id", road.where)
        if own not in controls:
            net.notes.add("references skipped to signals that do not exist", f"road {shown(road.id)}, {shown(own)}")
        kind = controls.get(own)
        if kind is None:
            continue
        s = min(max(number(element, "s", road.where), 0.0), road.line.length)
        for lane in _valid_lanes(net, road, element, s):
            aside = own in arrows or net.builder.lanes[lane].turn != JunctionTurn.STRAIGHT
            for there, at in _stop_lines(net, lane, s):
                yield there, Placed(RANK[kind], aside, at, kind, own)


def _valid_lanes(net: Network, road: XodrRoad, element: Element, s: float) -> list[int]:
    """Indices of the lanes at `s` for which a signal is valid."""
    ranges = [
        sorted((whole(e, "fromLane", road.where), whole(e, "toLane", road.where))) for e in element.findall("validity")
    ]
    facing = {"+": (True,), "-": (False,)}.get(element.get("orientation", "none"), (True, False))
    found: list[tuple[int, bool]] = []
    for sections in road.sides.values():
        # of sections too short for a lane of their own, those before stand in
        places = (k for k in reversed(range(len(sections))) if sections[k].start <= s)
        for k in places:
            here = [(net.nodes.get((road.id, k, lane.id), NONE), lane) for lane in sections[k].lanes]
            here = [(at, lane) for at, lane in here if at != NONE]
            found += [
                (at, net.forward(lane) in facing)
                for at, lane in here
                if not ranges or any(low <= lane.id <= high for low, high in ranges)
            ]
            if here:
                break
    fitting = [lane for lane, fits in found if fits]
    # a road through a junction has one direction: converters write any orientation there
    return fitting if fitting or not (ranges or road.junction is not None) else [lane for lane, _ in found]


def _stop_lines(net: Network, lane: int, s: float) -> Iterator[tuple[int, float]]:
    """Lanes and positions of the stop lines of a signal at position `s` of `lane`."""

    def last(here: int) -> float:
        length = net.builder.lanes[here].length_m
        return max(length - 1.0, 0.5 * length)

    at = net.strips[lane].at(s)
    ends = _entrances(net, lane)
    if not ends:
        before_junction, way = _to_junction(net, lane)
        if before_junction not in (NONE, lane) and way + net.builder.lanes[lane].length_m - at < MOVED_M:
            ends = [before_junction]
    for end in ends:
        yield end, last(end)
        if net.builder.lanes[end].length_m < SHORT_M:
            yield from ((there, last(there)) for there in net.before[end] if net.strips[there].road.junction is None)
    if not ends:
        yield lane, min(max(at, 0.5 * min(net.builder.lanes[lane].length_m, 1.0)), last(lane))


def _entrances(net: Network, lane: int) -> list[int]:
    """Lanes by which cars enter a junction onto this lane; none for a lane outside junctions."""
    junction = net.strips[lane].road.junction
    if junction is None:
        return []
    inside, seen, out = [lane], {lane}, dict[int, None]()
    for here in inside:
        for before in net.before[here]:
            if net.strips[before].road.junction != junction:
                out[before] = None
            elif before not in seen:
                seen.add(before)
                inside.append(before)
    return list(out)


def _to_junction(net: Network, lane: int) -> tuple[int, float]:
    """Last lane before the next junction, and the distance from the end of `lane` to its end; NONE if too far."""
    way, seen = 0.0, {lane}
    while way < REACH_M:
        follower = next((i for i in net.builder.lanes[lane].next if i not in seen), NONE)
        if follower == NONE:
            break
        if net.strips[follower].road.junction is not None:
            return lane, way
        lane = follower
        seen.add(lane)
        way += net.builder.lanes[lane].length_m
    return NONE, way


def _light(net: Network, lane: int, signal: str) -> tuple[tuple[str, str], Light]:
    """Junction of a light (or its road if there is none), and the light with its approach."""
    road = net.strips[lane].road
    last, _ = _to_junction(net, lane) if road.junction is None else (lane, 0.0)
    key = ("road", road.id) if road.junction is None else ("junction", road.junction)
    if last == NONE:
        last = lane
    elif road.junction is None:
        ahead = (net.strips[i].road.junction for i in net.builder.lanes[last].next)
        key = ("junction", next(own for own in ahead if own is not None))
    strip, (before, end) = net.strips[last], net.builder.lanes[last].points[-2:]
    x, y = end - before
    return key, Light(lane, signal, (strip.road.id, strip.forward), float(np.arctan2(y, x)))


def _controllers(net: Network) -> tuple[dict[str, str], dict[tuple[str, str], int]]:
    """Controller of each signal, and sequence number of each controller in each junction."""
    controllers: dict[str, str] = {}
    for e in net.root.findall("controller"):
        own = word(e, "id", f"{net.name}: controller")
        for ruled in e.findall("control"):
            controllers.setdefault(word(ruled, "signalId", f"{net.name}: controller {shown(own)}"), own)
    sequences = {
        (junction.get("id", ""), e.get("id", "")): whole(e, "sequence", f"{net.name}: junction {junction.get('id')!r}")
        for junction in net.root.findall("junction")
        for e in junction.findall("controller")
        if e.get("sequence") is not None
    }
    return controllers, sequences


def _phases(
    lights: list[Light], controllers: dict[str, str], sequences: dict[tuple[str, str], int], junction: str
) -> list[list[Light]]:
    """Phases of a junction: groups of lights that are green together, in order."""
    found: dict[str, list[Light]] = {}
    for light in lights:
        found.setdefault(controllers.get(light.signal, ""), []).append(light)
    if len(found) > 1 and "" not in found:
        return [found[own] for own in sorted(found, key=lambda own: sequences.get((junction, own), 0))]
    approaches: dict[tuple[str, bool], list[Light]] = {}
    for light in lights:
        approaches.setdefault(light.approach, []).append(light)
    left, phases = list(approaches.values()), list[list[Light]]()
    while left:
        phase = left.pop(0)
        apart = [_apart(phase[0].heading, other[0].heading) for other in left]
        if apart and max(apart) > OPPOSITE_RAD:
            phase = phase + left.pop(int(np.argmax(apart)))
        phases.append(phase)
    return phases


def _apart(a: float, b: float) -> float:
    """Angle between two headings, 0 to pi."""
    return abs((a - b + np.pi) % (2.0 * np.pi) - np.pi)
