"""Writes OpenDRIVE files for the tests, and reads them."""

import math
import warnings
from collections.abc import Sequence

import numpy as np
import pytest

from robotrl.sims.driving.opendrive import reader
from robotrl.sims.driving.opendrive.geometry import Line, Piece, poses
from robotrl.sims.driving.roads.lanes import RoadBuilder

WIDTH = 3.5


def tag(name: str, /, *inside: str, **attributes: object) -> str:
    written = "".join(f' {key}="{value}"' for key, value in attributes.items() if value is not None)
    return f"<{name}{written}>{''.join(inside)}</{name}>" if any(inside) else f"<{name}{written}/>"


def piece(s, x, y, hdg, length, shape="<line/>") -> str:
    return tag("geometry", shape, s=s, x=x, y=y, hdg=hdg, length=length)


def cubic(name: str, at: float, a: float, b=0.0, c=0.0, d=0.0) -> str:
    return tag(name, **{"s" if name == "laneOffset" else "sOffset": at}, a=a, b=b, c=c, d=d)


def lane(
    own: int,
    width: float | str = WIDTH,
    kind: str = "driving",
    before: int | None = None,
    after: int | None = None,
    inside: str = "",
) -> str:
    links = "".join(tag(n, id=i) for n, i in (("predecessor", before), ("successor", after)) if i is not None)
    widths = width if isinstance(width, str) else cubic("width", 0.0, width)
    return tag("lane", tag("link", links), widths, inside, id=own, type=kind, level="false")


def section(s: float, left: Sequence[str] = (), right: Sequence[str] = (), **attributes: str) -> str:
    sides = [tag(name, *lanes) for name, lanes in (("left", left), ("right", right)) if lanes]
    return tag("laneSection", *sides, tag("center", tag("lane", id=0, type="none")), s=s, **attributes)


def joint(name: str, kind: str, own: object, contact: str | None = None) -> str:
    return tag(name, elementType=kind, elementId=own, contactPoint=contact)


def road(
    own: object,
    length: float,
    plan: Sequence[str] | str,
    sections: Sequence[str] | str,
    link: str = "",
    offset: str = "",
    inside: str = "",
    junction: object = -1,
    rule: str | None = None,
) -> str:
    return tag(
        "road",
        tag("link", link),
        tag("planView", *([plan] if isinstance(plan, str) else plan)),
        tag("lanes", offset, *([sections] if isinstance(sections, str) else sections)),
        inside,
        name="",
        length=length,
        id=own,
        junction=junction,
        rule=rule,
    )


def document(*parts: str) -> str:
    header = tag("header", revMajor=1, revMinor=6, name="", north=0, south=0, east=0, west=0)
    return '<?xml version="1.0"?>' + tag("OpenDRIVE", header, *parts)


def straight(own: object = 1, length: float = 100.0, right: Sequence[str] = (), **rest: str) -> str:
    """A road along x from the origin; one lane to the right."""
    return road(own, length, piece(0, 0, 0, 0, length), section(0, right=right or [lane(-1)]), **rest)


def signal(
    own: object, s: float, orientation: str = "+", kind: str = "1000001", inside: str = "", name="signal"
) -> str:
    dynamic = None if name != "signal" else "yes" if kind == "1000001" else "no"
    return tag(name, inside, id=own, s=s, t=-5, orientation=orientation, type=kind, dynamic=dynamic)


ARM, GAP = 60.0, 15.0
"""Of the crossroads: length of each road, and distance from the middle at which it ends."""


def crossroads(inside: dict[int, str] | None = None, more: str = "", ways_inside: str = "", arms: int = 4) -> str:
    """Roads 0 to 3 from the east counter-clockwise, one lane each way, all turns; odd ones run outwards.

    Args:
        inside: what stands within a road, by its number.
        more: within the junction, number 9.
        ways_inside: within each road of the junction, 10 a + b from road a to road b.
        arms: roads; without the last for a T.
    """
    parts, connections = [], []
    for a in range(arms):
        angle, outwards = a * math.pi / 2, a % 2 == 1
        r, hdg = (GAP, angle) if outwards else (GAP + ARM, angle + math.pi)
        plan = piece(0, r * math.cos(angle), r * math.sin(angle), hdg, ARM)
        link = joint("predecessor" if outwards else "successor", "junction", 9)
        kind = tag("type", tag("speed", max=30, unit="km/h"), s=0, type="town")
        lanes = section(0, [lane(1)], [lane(-1)])
        parts.append(road(a, ARM, plan, lanes, link, inside=kind + (inside or {}).get(a, "")))
    for a in range(arms):
        for b in range(arms):
            if a == b:
                continue
            x, y = _corner(a * math.pi / 2, a * math.pi / 2 + math.pi)
            hdg = a * math.pi / 2 + math.pi
            radius = {1: WIDTH / 2 - GAP, 2: 0.0, 3: GAP + WIDTH / 2}[(b - a) % 4]
            shape = tag("arc", curvature=1 / radius) if radius else "<line/>"
            length = abs(radius) * math.pi / 2 if radius else 2 * GAP
            own = 100 + 10 * a + b
            source, target = (1 if a % 2 else -1), (-1 if b % 2 else 1)
            link = joint("predecessor", "road", a, "start" if a % 2 else "end")
            link += joint("successor", "road", b, "start" if b % 2 else "end")
            lanes = section(0, right=[lane(-1, before=source, after=target)])
            offset = cubic("laneOffset", 0, WIDTH / 2)
            parts.append(
                road(own, length, piece(0, x, y, hdg, length, shape), lanes, link, offset, ways_inside, junction=9)
            )
            connections.append(
                tag(
                    "connection",
                    tag("laneLink", **{"from": source, "to": -1}),
                    id=len(connections),
                    incomingRoad=a,
                    connectingRoad=own,
                    contactPoint="start",
                )
            )
    return document(*parts, tag("junction", *connections, more, name="", id=9))


def _corner(arm: float, hdg: float) -> tuple[float, float]:
    """The middle of the lane to the right of the heading, where the arm begins."""
    return (
        GAP * math.cos(arm) + WIDTH / 2 * math.sin(hdg),
        GAP * math.sin(arm) - WIDTH / 2 * math.cos(hdg),
    )


def signals(*inside: str) -> str:
    return tag("signals", *inside)


def valid(low: int, high: int) -> str:
    return tag("validity", fromLane=low, toLane=high)


def crosswalk(*inside: str, **more: object) -> str:
    return tag("objects", tag("object", *inside, type="crosswalk", id="z", s=40, t=-1, zOffset=0, **more))


def walk(builder: RoadBuilder) -> tuple[list[float], float]:
    (found,) = builder.crosswalks
    return [*found.start, *found.end], found.width_m


Shapes = list[tuple[tuple[str, tuple[float, ...]], float]]
NAMES = {
    "line": (),
    "arc": ("curvature",),
    "spiral": ("curvStart", "curvEnd"),
    "poly3": tuple("abcd"),
    "paramPoly3": ("aU", "bU", "cU", "dU", "aV", "bV", "cV", "dV"),
}


def chained(shapes: Shapes, x: float, y: float, hdg: float) -> tuple[Line, list[str]]:
    """Pieces of which each begins where the one before ends, and how a file has them."""
    pieces: list[Piece] = []
    text, s, pose = [], 0.0, np.array([x, y, hdg])
    for (kind, shape), length in shapes:
        of = "paramPoly3" if kind in ("arcLength", "normalized") else kind
        range_ = {"pRange": kind} if of == "paramPoly3" else {}
        text.append(piece(s, *pose, length, tag(of, **dict(zip(NAMES[of], shape, strict=True)), **range_)))
        pieces.append(Piece(s, *pose, length, kind, shape))
        pose = poses(Line((pieces[-1],), np.array([s]), s + length), np.array([s + length]))[0]
        s += length
    return Line(tuple(pieces), np.array([p.s for p in pieces]), s), text


def parse(text: str) -> RoadBuilder:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return reader.parse(text, "test")


def told(text: str) -> tuple[RoadBuilder, str]:
    """The map and its one warning."""
    with pytest.warns(UserWarning) as caught:
        builder = reader.parse(text, "test")
    assert len(caught) == 1
    return builder, str(caught[0].message)


def carla_map(text: str):
    """CARLA's own map of a file, without a server."""
    reason = "could not import 'carla': CARLA's client library exists for Python to 3.12 on x86-64 Linux"
    carla = pytest.importorskip("carla", reason=reason)
    return carla.Map("x", text)


def cornu_and_more() -> str:
    """A file with every kind of piece, offsets, widening and shoulders."""
    u, v = (0.0, 20.0, 15.0, -5.0), (0.0, 0.0, 12.0, -4.0)
    p = np.linspace(0, 1, 100001)
    x, y = (sum(k * p**i for i, k in enumerate(shape)) for shape in (u, v))
    along = float(np.hypot(np.diff(x), np.diff(y)).sum())
    circle = (0.0, 1.0, 0.0, -1 / 5400, 0.0, 0.0, 1 / 60, 0.0)
    chains: list[tuple[Shapes, tuple[float, float, float]]] = [
        ([(("spiral", (0.0, 0.03)), 40.0), (("arc", (0.03,)), 40.0), (("line", ()), 60.0)], (200.0, 10.0, 0.3)),
        ([(("spiral", (0.05, -0.05)), 50.0), (("spiral", (-0.05, 0.0)), 20.0)], (0.0, 300.0, -2.0)),
        (
            [(("normalized", (*u, *v)), along), (("arcLength", circle), 12.0)],
            (-300, 0, 1),
        ),
        ([(("poly3", (0.0, 0.0, 0.01, -1e-4)), 45.0), (("arc", (-0.1,)), 20.0)], (300.0, -300.0, 2.5)),
    ]
    roads = []
    for own, (shapes, start) in enumerate(chains, 1):
        line, text = chained(shapes, *start)
        first, second = 0.3 * line.length, 0.7 * line.length
        grows = cubic("width", 0, 0, WIDTH / (second - first))
        sections = [
            section(0, [lane(1, after=1)], [lane(-1, after=-1)]),
            section(
                first,
                [lane(1, before=1, after=1), lane(2, grows, after=2)],
                [lane(-1, before=-1, after=-1), lane(-2, 1.5, "shoulder"), lane(-3, 2.5)],
            ),
            section(second, [lane(1, before=1), lane(2, before=2)], [lane(-1, before=-1)]),
        ]
        offset = cubic("laneOffset", 0, 0.5, 0.01, -0.0002)
        roads.append(road(own, line.length, text, sections, offset=offset))
    return document(*roads)
