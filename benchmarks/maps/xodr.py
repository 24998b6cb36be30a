"""Writes OpenDRIVE files: roads that are lines or arcs, junctions whose roads lead from lane to lane, signals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

WIDTH_M = 3.5
Cubic = tuple[float, float, float, float]


def tag(name: str, /, *inside: str, **attributes: object) -> str:
    """Text of an element; attributes of None are left out, and a trailing "_" of their names."""
    written = "".join(f' {key.rstrip("_")}="{value}"' for key, value in attributes.items() if value is not None)
    return f"<{name}{written}>{''.join(inside)}</{name}>"


def cubic(name: str, at: float, a: float, b: float = 0.0, c: float = 0.0, d: float = 0.0) -> str:
    """Text of a record of a cubic: width, border or laneOffset."""
    return tag(name, **{"s" if name in ("laneOffset", "elevation") else "sOffset": at}, a=a, b=b, c=c, d=d)


def lane(
    own: int,
    width: float | str = WIDTH_M,
    kind: str = "driving",
    before: bool = True,
    after: bool = True,
    inside: str = "",
) -> str:
    """Text of a lane with lanes of its own id `before` and `after` it; `width` in m, or the text of its records."""
    link = (tag("predecessor", id=own) if before else "") + (tag("successor", id=own) if after else "")
    widths = width if isinstance(width, str) else cubic("width", 0.0, width)
    return tag("lane", tag("link", link), widths, inside, id=own, type=kind, level="false")


def section(s: float, lanes: Iterable[str]) -> str:
    """Text of a lane section from `s` m on; lanes with their texts in any order."""
    sides = {1: "", -1: ""}
    for text in lanes:
        sides[-1 if text.startswith('<lane id="-') else 1] += text
    left, right = (tag(name, inside) if inside else "" for name, inside in (("left", sides[1]), ("right", sides[-1])))
    return tag("laneSection", left, tag("center", tag("lane", id=0, type="none")), right, s=s)


class End(NamedTuple):
    """End of a road."""

    road: int
    contact: str
    """start or end."""


@dataclass
class Road:
    """A road on a line or an arc; see `tests/kits/xodr_kit.py` for files with other shapes."""

    own: int
    x: float
    y: float
    hdg: float
    length: float
    sections: Sequence[str]
    curvature: float = 0.0
    speed_mps: float = 11.0
    inside: str = ""
    """Signals, objects and the like."""
    heights: Sequence[str] = ()
    """Texts of elevation records."""
    links: dict[str, str] = field(default_factory=dict)
    """Texts of its predecessor and successor."""

    def pose(self, contact: str) -> tuple[float, float, float]:
        """x, y and heading along s at its start or end."""
        if contact == "start":
            return self.x, self.y, self.hdg
        turned = self.curvature * self.length
        chord = self.length * float(np.sinc(turned / 2 / math.pi))
        middle = self.hdg + turned / 2
        return self.x + chord * math.cos(middle), self.y + chord * math.sin(middle), self.hdg + turned

    def text(self) -> str:
        """The <road>."""
        shape = tag("arc", curvature=self.curvature) if self.curvature else "<line/>"
        return road_text(
            self.own,
            self.length,
            tag("geometry", shape, s=0, x=self.x, y=self.y, hdg=self.hdg, length=self.length),
            "".join(self.sections),
            "".join(self.links.values()),
            self.speed_mps,
            self.inside,
            elevation="".join(self.heights),
        )


def road_text(
    own: int,
    length: float,
    plan: str,
    sections: str,
    links: str,
    speed_mps: float,
    inside: str = "",
    offset: str = "",
    junction: int = -1,
    elevation: str = "",
) -> str:
    """Text of a <road> from the texts of its parts."""
    return tag(
        "road",
        tag("link", links),
        tag("type", tag("speed", max=speed_mps, unit="m/s"), s=0, type="town"),
        tag("planView", plan),
        tag("elevationProfile", elevation or cubic("elevation", 0.0, 0.0)),
        tag("lanes", offset, sections),
        inside,
        name="",
        length=length,
        id=own,
        junction=junction,
    )


def joint(name: str, kind: str, own: int, contact: str | None = None) -> str:
    """Text of a <predecessor> or <successor>."""
    return tag(name, elementType=kind, elementId=own, contactPoint=contact)


class Town:
    """Roads and junctions of a file."""

    def __init__(self) -> None:
        self.roads: dict[int, Road] = {}
        self._ways: list[str] = []
        self._connections: dict[int, list[str]] = {}
        self._more = ""

    def add(self, road: Road) -> Road:
        """Add a road."""
        self.roads[road.own] = road
        return road

    def link(self, one: End, other: End) -> None:
        """Let two roads follow each other."""
        for here, there in ((one, other), (other, one)):
            side = "predecessor" if here.contact == "start" else "successor"
            self.roads[here.road].links[side] = joint(side, "road", there.road, there.contact)

    def connect(
        self, junction: int, source: End, lane_from: int, target: End, lane_to: int, speed_mps: float = 8.0
    ) -> int:
        """Add a road through a junction from a lane to a lane, both 3.5 m wide like those within; returns its id."""
        for end in (source, target):
            side = "predecessor" if end.contact == "start" else "successor"
            self.roads[end.road].links[side] = joint(side, "junction", junction)
        x, y, hdg = self._middle(source, lane_from, leaves=True)
        x1, y1, hdg1 = self._middle(target, lane_to, leaves=False)
        u, v = _turned(x1 - x, y1 - y, -hdg)
        turn = math.remainder(hdg1 - hdg, math.tau)
        reach = math.hypot(u, v) * (1.0 + 0.12 * turn * turn)
        factors = [
            (0.0, begin, 3.0 * end - 2.0 * begin - last, begin + last - 2.0 * end)
            for end, begin, last in ((u, reach, reach * math.cos(turn)), (v, 0.0, reach * math.sin(turn)))
        ]
        p = np.linspace(0.0, 1.0, 2001)
        length = float(np.hypot(*(np.diff(_value(f, p)) for f in factors)).sum())
        shape = {
            f"{k}{axis}": value
            for axis, row in zip("UV", factors, strict=True)
            for k, value in zip("abcd", row, strict=True)
        }
        own = 1000 * junction + len(self._connections.setdefault(junction, []))
        plan = tag("geometry", tag("paramPoly3", pRange="normalized", **shape), s=0, x=x, y=y, hdg=hdg, length=length)
        link = tag("link", tag("predecessor", id=lane_from) + tag("successor", id=lane_to))
        inside = section(0, [tag("lane", link, cubic("width", 0, WIDTH_M), id=-1, type="driving", level="false")])
        ends = joint("predecessor", "road", *source) + joint("successor", "road", *target)
        offset = cubic("laneOffset", 0, WIDTH_M / 2)
        self._ways.append(road_text(own, length, plan, inside, ends, speed_mps, offset=offset, junction=junction))
        self._connections[junction].append(
            tag(
                "connection",
                tag("laneLink", from_=lane_from, to=-1),
                id=len(self._connections[junction]),
                incomingRoad=source.road,
                connectingRoad=own,
                contactPoint="start",
            )
        )
        return own

    def junction_part(self, junction: int, text: str) -> None:
        """Add an element to a junction, such as a <priority>."""
        self._connections.setdefault(junction, []).append(text)

    def more(self, text: str) -> None:
        """Add an element to the file."""
        self._more += text

    def text(self) -> str:
        """The file."""
        junctions = [tag("junction", *inside, id=own, name="") for own, inside in self._connections.items()]
        roads = [road.text() for road in self.roads.values()]
        header = tag("header", revMajor=1, revMinor=6, name="", north=0, south=0, east=0, west=0)
        return '<?xml version="1.0"?>' + tag("OpenDRIVE", header, *roads, *self._ways, *junctions, self._more)

    def _middle(self, end: End, own: int, leaves: bool) -> tuple[float, float, float]:
        """Middle of a lane at an end of its road, and its heading in driving direction."""
        x, y, hdg = self.roads[end.road].pose(end.contact)
        t = math.copysign((abs(own) - 0.5) * WIDTH_M, own)
        forward = (end.contact == "end") == leaves
        return x - t * math.sin(hdg), y + t * math.cos(hdg), hdg if forward else hdg + math.pi


def _turned(x: float, y: float, angle: float) -> tuple[float, float]:
    cos, sin = math.cos(angle), math.sin(angle)
    return x * cos - y * sin, x * sin + y * cos


def _value(factors: Cubic, p: np.ndarray) -> np.ndarray:
    a, b, c, d = factors
    return a + p * (b + p * (c + p * d))


def signal(own: str, s: float, kind: str, orientation: str = "+") -> str:
    """Text of a signal: 1000001 for a light, 206 for a stop sign, 205 for a yield sign."""
    dynamic = "yes" if kind == "1000001" else "no"
    return tag("signal", id=own, s=s, t=-5, orientation=orientation, type=kind, dynamic=dynamic)
