"""Kinds of OpenDRIVE files that people drive on, each as a small map of our own.

The public files that they stand for are larger, and few of them may be handed on. Each kind has what its name says and
is plain otherwise, so that what goes wrong on it is what it was made for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.maps.cuts import cut, mirrored
from benchmarks.maps.xodr import WIDTH_M, End, Road, Town, cubic, lane, section, signal, tag

LONG_M = 130.0
"""Length of the roads that lead to a junction."""
GAP_M = 14.0
"""Distance of their ends from the junction's middle."""


def _lanes(right: int, left: int = 0) -> list[str]:
    return [lane(own) for own in (*range(left, 0, -1), *range(-1, -right - 1, -1))]


def _street(right: int = 1, left: int = 1, **rest: Any) -> str:
    town = Town()
    town.add(Road(1, 0.0, 0.0, 0.0, 400.0, [section(0, _lanes(right, left))], **rest))
    return town.text()


def _arms(town: Town, lanes: int = 1, count: int = 4, gap: float = GAP_M, inside: Sequence[str] = ("",) * 4) -> None:
    """Roads 1 to `count` from the east counter-clockwise; each leads to the junction at its end."""
    for k in range(count):
        angle = k * math.pi / 2
        r = gap + LONG_M
        x, y = r * math.cos(angle), r * math.sin(angle)
        town.add(Road(k + 1, x, y, angle + math.pi, LONG_M, [section(0, _lanes(lanes, lanes))], inside=inside[k]))


def _ways(town: Town, lanes: int = 1, count: int = 4) -> None:
    """All ways through junction 9; with two lanes left turns are from the inner one, right ones from the outer."""
    for a in range(count):
        for b in range(count):
            turn = (b - a) % 4
            if a == b:
                continue
            taken = range(1, lanes + 1) if turn == 2 else [lanes if turn == 1 else 1]
            for k in taken:
                town.connect(9, End(a + 1, "end"), -k, End(b + 1, "end"), k, 11.0 if turn == 2 else 6.0)


def _crossing(lanes: int = 1, count: int = 4, kinds: Sequence[str] = ("",) * 4, at: float = LONG_M - 1.0) -> Town:
    town = Town()
    signs = [tag("signals", signal(f"s{k}", at, kind)) if kind else "" for k, kind in enumerate(kinds)]
    _arms(town, lanes, count, GAP_M + WIDTH_M * (lanes - 1), signs)
    _ways(town, lanes, count)
    return town


def straight() -> str:
    """A street with a lane each way."""
    return _street()


def bend() -> str:
    """A street that bends."""
    return _street(curvature=1 / 90)


def multilane() -> str:
    """Three lanes of one direction, two of the other."""
    return _street(3, 2)


def crossroads() -> str:
    """Four roads without signs or lights."""
    return _crossing().text()


def stop_signs() -> str:
    """A main road and stop signs on the other one."""
    return _crossing(kinds=("", "206", "", "206")).text()


def t_junction() -> str:
    """Three roads, a yield sign on the stem."""
    return _crossing(count=3, kinds=("", "205", "")).text()


def lights() -> str:
    """Lights on all four roads."""
    return _crossing(kinds=("1000001",) * 4).text()


def wide_lights() -> str:
    """Two lanes each way at lights."""
    return _crossing(2, kinds=("1000001",) * 4).text()


def short_sections() -> str:
    """Lights on all four roads, the last 40 m before them in sections of 1 m."""
    places = [LONG_M - 40.0 + k for k in range(40)]
    return cut(lights(), lambda length: places if length == LONG_M else [])


def _ring(priority: bool) -> Town:
    """A ring of radius 22 m with four arms; ring roads 11 to 14, junctions 21 to 24."""
    town, radius, part = Town(), 22.0, math.radians(44.0)
    for k in range(4):
        angle = k * math.pi / 2
        start = angle + part / 2
        x, y = radius * math.cos(start), radius * math.sin(start)
        long = radius * (math.pi / 2 - part)
        ring = Road(11 + k, x, y, start + math.pi / 2, long, [section(0, [lane(-1)])], 1 / radius, 7.0)
        town.add(ring)
        far = radius + 14.0 + LONG_M
        x, y = far * math.cos(angle), far * math.sin(angle)
        town.add(Road(k + 1, x, y, angle + math.pi, LONG_M, [section(0, _lanes(1, 1))]))
    for k in range(4):
        before, after, junction = 11 + (k - 1) % 4, 11 + k, 21 + k
        stays = town.connect(junction, End(before, "end"), -1, End(after, "start"), -1, 7.0)
        enters = town.connect(junction, End(k + 1, "end"), -1, End(after, "start"), -1, 7.0)
        town.connect(junction, End(before, "end"), -1, End(k + 1, "end"), 1, 7.0)
        if priority:
            town.junction_part(junction, tag("priority", high=stays, low=enters))
    return town


def roundabout() -> str:
    """A roundabout whose file says who goes first."""
    return _ring(priority=True).text()


def bare_roundabout() -> str:
    """A roundabout whose file says nothing about who goes first."""
    return _ring(priority=False).text()


def opening_lane() -> str:
    """A second lane that widens out of nothing."""
    opens = cubic("width", 0.0, 0.0, 0.0, 3 * WIDTH_M / 900, -2 * WIDTH_M / 27000)
    sections = [
        section(0, _lanes(1, 1)),
        section(150, [*_lanes(1, 1), lane(-2, opens, before=False)]),
        section(180, _lanes(2, 1)),
    ]
    town = Town()
    town.add(Road(1, 0.0, 0.0, 0.0, 400.0, sections))
    return town.text()


def ending_lane() -> str:
    """A second lane that narrows away."""
    ends = cubic("width", 0.0, WIDTH_M, 0.0, -3 * WIDTH_M / 1600, 2 * WIDTH_M / 64000)
    sections = [
        section(0, _lanes(2, 1)),
        section(180, [*_lanes(1, 1), lane(-2, ends, after=False)]),
        section(220, _lanes(1, 1)),
    ]
    town = Town()
    town.add(Road(1, 0.0, 0.0, 0.0, 400.0, sections))
    return town.text()


def limits() -> str:
    """Speed limits that change along a street, one of them for 15 m."""
    own = "".join(tag("speed", sOffset=s, max=v, unit="km/h") for s, v in ((0, 70), (150, 30), (165, 50), (250, 20)))
    town = Town()
    lanes = [lane(1, inside=own), lane(-1, inside=own)]
    town.add(Road(1, 0.0, 0.0, 0.0, 400.0, [section(0, lanes)]))
    return town.text()


def tiny_road() -> str:
    """Roads of almost no length between those of a street."""
    town, x = Town(), 0.0
    for own, long in enumerate((150.0, 2e-7, 0.0, 150.0, 0.01, 120.0)):
        town.add(Road(own, x, 0.0, 0.0, long, [section(0, _lanes(1, 1))]))
        x += long
        if own:
            town.link(End(own - 1, "end"), End(own, "start"))
    return town.text()


def dangling() -> str:
    """A street cut out of a larger map: links to roads and junctions that are not there."""
    town = Town()
    road = town.add(Road(1, 0.0, 0.0, 0.0, 400.0, [section(0, _lanes(1, 1))]))
    road.links["predecessor"] = tag("predecessor", elementType="junction", elementId=77)
    road.links["successor"] = tag("successor", elementType="road", elementId=99, contactPoint="start")
    return town.text()


def unsigned_borders() -> str:
    """Borders as distances, without a sign."""
    lanes = [lane(1, cubic("border", 0, 3.5)), lane(-1, cubic("border", 0, 3.5)), lane(-2, cubic("border", 0, 7.0))]
    town = Town()
    town.add(Road(1, 0.0, 0.0, 0.0, 400.0, [section(0, lanes)]))
    return town.text()


def bridge() -> str:
    """Two streets that cross on two heights."""
    up = [cubic("elevation", 0, 8.0)]
    town = Town()
    town.add(Road(1, -200.0, 0.0, 0.0, 400.0, [section(0, _lanes(1, 1))]))
    town.add(Road(2, 0.0, -200.0, math.pi / 2, 400.0, [section(0, _lanes(1, 1))], heights=up))
    return town.text()


def motorway_beside_street() -> str:
    """A motorway of three lanes beside a street with a limit of 30 km/h."""
    town = Town()
    town.add(Road(1, 0.0, 0.0, 0.0, 900.0, [section(0, _lanes(3))], speed_mps=33.0))
    town.add(Road(2, 0.0, -25.0, 0.0, 900.0, [section(0, _lanes(1, 1))], speed_mps=8.3))
    return town.text()


def left_hand() -> str:
    """A crossing with lights and left-hand traffic."""
    return mirrored(lights())


def crosswalks() -> str:
    """A street with two crosswalks."""
    walks = [
        tag("object", type="crosswalk", id=f"z{s}", s=s, t=0, zOffset=0, hdg=0, length=4, width=9) for s in (150, 260)
    ]
    return _street(inside=tag("objects", *walks))


def wide_straight() -> str:
    """Three lanes of one direction through a junction on one road, with a light."""
    town, x = Town(), 0.0
    for own, long in ((1, 200.0), (2, 20.0), (3, 200.0)):
        inside = tag("signals", signal("s", 199.0, "1000001")) if own == 1 else ""
        town.add(Road(own, x, 0.0, 0.0, long, [section(0, _lanes(3))], inside=inside))
        x += long
    town.link(End(1, "end"), End(2, "start"))
    town.link(End(2, "end"), End(3, "start"))
    town.more(tag("junction", id=9, name=""))
    return town.text().replace('id="2" junction="-1"', 'id="2" junction="9"')


KINDS: dict[str, Callable[[], str]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        straight,
        bend,
        multilane,
        crossroads,
        stop_signs,
        t_junction,
        lights,
        wide_lights,
        short_sections,
        roundabout,
        bare_roundabout,
        opening_lane,
        ending_lane,
        limits,
        tiny_road,
        dangling,
        unsigned_borders,
        bridge,
        motorway_beside_street,
        left_hand,
        crosswalks,
        wide_straight,
    )
}
"""Functions that give the text of a file of each kind."""
