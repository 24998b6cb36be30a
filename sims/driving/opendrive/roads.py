"""Parses and validates the roads of an OpenDRIVE file: reference line, lane sections, lanes and links."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar
from xml.etree.ElementTree import Element

import numpy as np

from robotrl.errors import DataError, nearest
from robotrl.sims.driving.opendrive.geometry import Cubics, Line, Piece
from robotrl.sims.driving.opendrive.xml import number, shown, whole, word

LONGEST_M = 1e5
MOST_TURNED_RAD = 100.0
"""Largest total rotation of one piece of a reference line; more is an error."""
SHORTEST_PIECE_M = 1e-6
DEFAULT_SPEED_MPS = 13.9
"""Default speed limit if the file gives none: 50 km/h."""
MPS = {"m/s": 1.0, "km/h": 1.0 / 3.6, "mph": 0.44704}
_SHAPES = {
    "line": (),
    "arc": ("curvature",),
    "spiral": ("curvStart", "curvEnd"),
    "poly3": tuple("abcd"),
    "paramPoly3": ("aU", "bU", "cU", "dU", "aV", "bV", "cV", "dV"),
}


T = TypeVar("T")
Timed = tuple[tuple[float, T], ...]
"""Values with the s from which each applies, in order."""


class LaneRecord(NamedTuple):
    """One <lane> of a section."""

    id: int
    """Lane id: positive to the left of the reference line, counted outwards."""
    kind: str
    widths: Cubics | None
    borders: Cubics | None
    predecessors: tuple[int, ...]
    """Lanes linked at the start of the section in the direction of s, regardless of the traffic direction."""
    successors: tuple[int, ...]
    marks: Timed[Element]
    """<roadMark> elements at the outer edge."""
    speeds: Timed[float | None]
    """Speed limits, m/s; None for no limit."""
    against: bool
    """True if traffic runs against the direction of the lane's side (direction="reversed", since 1.8)."""


class Section(NamedTuple):
    """One side of a <laneSection>, or a part of it."""

    start: float
    end: float
    origin: float
    """s from which the positions of the lanes' records count."""
    lanes: tuple[LaneRecord, ...]
    """Lanes from the road's centre outwards."""


class Joint(NamedTuple):
    """Link at one end of a road."""

    junction: bool
    id: str
    contact: str | None
    """Linked end of the other road, "start" or "end"; None if the file does not say."""


class XodrRoad(NamedTuple):
    """One <road>."""

    id: str
    where: str
    """Name of the road in error messages."""
    junction: str | None
    left_hand: bool
    line: Line
    offset: Cubics
    sides: dict[int, tuple[Section, ...]]
    """Sections with the lanes to the left (key 1) and to the right (key -1)."""
    predecessor: Joint | None
    successor: Joint | None
    speeds: Timed[float | None]
    heights: Cubics | None
    """Height of the reference line; None in a file without."""
    element: Element


def roads(root: Element, name: str) -> dict[str, XodrRoad]:
    """Parse all roads, by id.

    Raises:
        DataError: a required element is missing or unusable, or two roads have the same id.
    """
    found: dict[str, XodrRoad] = {}
    for element in root.findall("road"):
        read = road(element, name)
        if read.id in found:
            raise DataError(
                f"{read.where}: <road> id is {shown(read.id)} for the second time: expected another for each"
            )
        found[read.id] = read
    return found


def road(element: Element, name: str) -> XodrRoad:
    """Parse one road.

    Raises:
        DataError: see `roads`.
    """
    own = word(element, "id", f"{name}: road")
    where = f"{name}: road {shown(own)}"
    junction = element.get("junction", "-1")
    rule = element.get("rule", "RHT")
    if rule not in ("RHT", "LHT"):
        raise DataError(f"{where}: <road> rule is {shown(rule)}: expected 'RHT' or 'LHT'")
    line = reference_line(element, where)
    lanes = element.find("lanes")
    offset = None if lanes is None else cubics(lanes.findall("laneOffset"), "s", where)
    return XodrRoad(
        own,
        where,
        None if junction in ("-1", "") else junction,
        rule == "LHT",
        line,
        offset or Cubics(np.zeros(1), np.zeros((1, 4))),
        {side: sections(lanes, side, line.length, where) for side in (1, -1)},
        joint(element, "predecessor", where),
        joint(element, "successor", where),
        timed(element.findall("type"), "s", where, lambda kind: speed(kind.find("speed"), where)),
        cubics(element.findall("elevationProfile/elevation"), "s", where),
        element,
    )


def reference_line(element: Element, where: str) -> Line:
    """Parse the plan view.

    Raises:
        DataError: see `roads`.
    """
    length = number(element, "length", where, low=0.0, high=LONGEST_M)
    found = sorted((piece(geometry, where) for geometry in element.findall("planView/geometry")), key=lambda p: p.s)
    if not found:
        raise DataError(f"{where}: its <planView> has no <geometry>: expected one or more")
    # modeling tools leave roads of almost no length where they join two: a place and a heading are enough for these
    pieces = [p for p in found if p.length > SHORTEST_PIECE_M] or [found[0]._replace(kind="line", shape=())]
    length = min(length, pieces[-1].s + pieces[-1].length)
    return Line(tuple(pieces), np.array([p.s for p in pieces]), length)


def piece(element: Element, where: str) -> Piece:
    """Parse one <geometry>.

    Raises:
        DataError: see `roads`.
    """
    s = number(element, "s", where, low=0.0, high=LONGEST_M)
    x, y, hdg = (number(element, key, where) for key in ("x", "y", "hdg"))
    length = number(element, "length", where, low=0.0, high=LONGEST_M)
    where = f"{where}: <geometry> at s = {s:g}"
    kinds = [child for child in element if child.tag not in ("userData", "include", "dataQuality")]
    if len(kinds) != 1 or kinds[0].tag not in _SHAPES:
        tags = ", ".join(child.tag for child in kinds) or "nothing"
        close = nearest(tags, _SHAPES)
        hint = f"did you mean {close!r}? " if close else ""
        raise DataError(f"{where} holds {tags}: {hint}expected one of {', '.join(_SHAPES)}")
    kind = kinds[0].tag
    shape = tuple(number(kinds[0], key, where) for key in _SHAPES[kind])
    if kind in ("arc", "spiral") and length * max(abs(k) for k in shape) > MOST_TURNED_RAD:
        raise DataError(
            f"{where}: <{kind}> of {length:g} m has curvature {max(shape, key=abs):g}: expected a turn of"
            f" {MOST_TURNED_RAD:g} rad at most"
        )
    if kind == "paramPoly3":
        kind = kinds[0].get("pRange", "normalized")
        if kind not in ("arcLength", "normalized"):
            raise DataError(f"{where}: <paramPoly3> pRange is {shown(kind)}: expected 'arcLength' or 'normalized'")
    return Piece(s, x, y, hdg, length, kind, shape)


def cubics(elements: list[Element], key: str, where: str) -> Cubics | None:
    """Parse the polynomials of these elements, each applying from its `key` on; None without elements.

    Raises:
        DataError: see `roads`.
    """
    if not elements:
        return None
    rows = [[number(e, key, where), *(number(e, k, where, default=0.0) for k in "abcd")] for e in elements]
    table = np.array(sorted(rows, key=lambda row: row[0]))
    return Cubics(table[:, 0], table[:, 1:])


def timed(elements: Iterable[Element], key: str, where: str, value: Callable[[Element], T]) -> Timed[T]:
    """Parse values with the position from which each applies.

    Raises:
        DataError: see `roads`.
    """
    return tuple(sorted(((number(e, key, where, default=0.0), value(e)) for e in elements), key=lambda row: row[0]))


def in_force(values: Timed[T], s: float) -> T | None:
    """Value that applies at `s`: the last one that begins at or before it."""
    return next((value for start, value in reversed(values) if start <= s), None)


def speed(element: Element | None, where: str) -> float | None:
    """Parse a <speed> to m/s; None if it gives no limit.

    Raises:
        DataError: see `roads`.
    """
    if element is None or element.get("max") in (None, "no limit", "undefined"):
        return None
    unit = element.get("unit", "m/s")
    if unit not in MPS:
        raise DataError(f"{where}: <speed> unit is {shown(unit)}: expected one of {', '.join(MPS)}")
    return number(element, "max", where, low=0.0, high=1000.0) * MPS[unit] or None


def sections(lanes: Element | None, side: int, length: float, where: str) -> tuple[Section, ...]:
    """Parse the lane sections of one side; sections marked singleSide do not affect the other side.

    Raises:
        DataError: see `roads`.
    """
    if lanes is None:
        return ()
    tag = "left" if side == 1 else "right"
    rows = [
        (min(number(e, "s", where, low=0.0), length), e)
        for e in lanes.findall("laneSection")
        if e.get("singleSide") != "true" or e.find(tag) is not None
    ]
    rows.sort(key=lambda row: row[0])
    ends = [start for start, _ in rows[1:]] + [length]
    return tuple(
        Section(start, end, start, section_lanes(e, tag, side, f"{where}: <laneSection> at s = {start:g}"))
        for (start, e), end in zip(rows, ends, strict=True)
    )


def section_lanes(element: Element, tag: str, side: int, where: str) -> tuple[LaneRecord, ...]:
    """Parse the lanes of one side, from the road's centre outwards.

    Raises:
        DataError: see `roads`.
    """
    read = [lane(e, where) for e in element.findall(f"{tag}/lane")]
    read.sort(key=lambda record: abs(record.id))
    for record, before in zip(read, [None, *read], strict=False):
        if record.id * side <= 0 or (before is not None and before.id == record.id):
            raise DataError(
                f"{where}: <lane> id is {record.id} in <{tag}>: expected 1, 2, ... on the left, -1, -2, ... on"
                " the right, each once"
            )
    return tuple(read)


def lane(element: Element, where: str) -> LaneRecord:
    """Parse one lane.

    Raises:
        DataError: see `roads`.
    """
    own = whole(element, "id", where)
    where = f"{where}: lane {own}"
    return LaneRecord(
        own,
        element.get("type", "none"),
        cubics(element.findall("width"), "sOffset", where),
        cubics(element.findall("border"), "sOffset", where),
        tuple(whole(e, "id", where) for e in element.findall("link/predecessor")),
        tuple(whole(e, "id", where) for e in element.findall("link/successor")),
        timed(element.findall("roadMark"), "sOffset", where, lambda mark: mark),
        timed(element.findall("speed"), "sOffset", where, lambda limit: speed(limit, where)),
        element.get("direction") == "reversed",
    )


def joint(element: Element, tag: str, where: str) -> Joint | None:
    """Parse the <predecessor> or <successor> of a road.

    Raises:
        DataError: see `roads`.
    """
    found = element.find(f"link/{tag}")
    if found is None:
        return None
    kind, contact = found.get("elementType", "road"), found.get("contactPoint")
    if kind not in ("road", "junction"):
        raise DataError(f"{where}: <{tag}> elementType is {shown(kind)}: expected 'road' or 'junction'")
    if contact not in (None, "", "start", "end"):
        raise DataError(f"{where}: <{tag}> contactPoint is {shown(contact)}: expected 'start' or 'end'")
    return Joint(kind == "junction", word(found, "elementId", where), contact or None)
