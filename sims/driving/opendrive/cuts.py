"""Divides the lane sections of a road where something about its lanes changes that cars care about.

A file may be cut into sections anywhere, and may as well state a new speed limit in the middle of one. Here sections
are cut wherever a limit or the permission to change lanes changes, or a lane becomes too narrow for a car, so that all
of this holds for a whole section. Sections between which none of it changes are joined again, see `joining`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from robotrl.sims.driving.opendrive.lanes import DRIVING, NARROW_M, lateral, limit_at, may_change
from robotrl.sims.driving.opendrive.roads import LaneRecord, Section, XodrRoad

APART_M = 1e-3
"""Least distance between two cuts."""
LOOK_M = 0.5
"""Distance at which widths are looked at."""
HALVINGS = 40


def divided(road: XodrRoad) -> XodrRoad:
    """The road with its sections cut where a limit, the permission to change lanes, or room for a car changes.

    Raises:
        DataError: a driving lane has neither width nor border.
    """
    sides = {
        side: tuple(part for section in sections for part in _parts(road, section))
        for side, sections in road.sides.items()
    }
    return road._replace(sides=sides)


def _parts(road: XodrRoad, section: Section) -> Iterator[Section]:
    cuts = [section.start]
    for s in sorted([*_changes(road, section), *_narrows(road, section)]):
        if s - cuts[-1] > APART_M and section.end - s > APART_M:
            cuts.append(s)
    for start, end in pairwise([*cuts, section.end]):
        lanes = (_between(lane, start > section.start, end < section.end) for lane in section.lanes)
        yield section._replace(start=start, end=end, lanes=tuple(lanes))


def _between(lane: LaneRecord, cut_before: bool, cut_after: bool) -> LaneRecord:
    """A lane of a part: at a cut it goes on into itself."""
    return lane._replace(
        predecessors=(lane.id,) if cut_before else lane.predecessors,
        successors=(lane.id,) if cut_after else lane.successors,
    )


def _changes(road: XodrRoad, section: Section) -> Iterator[float]:
    """All s inside a section at which a limit or the permission to change lanes changes."""
    starts = {s for s, _ in road.speeds}
    starts |= {section.origin + at for lane in section.lanes for at, _ in (*lane.speeds, *lane.marks)}
    edges = [section.start, *sorted(s for s in starts if section.start < s < section.end), section.end]
    stated = [_stated(road, section, 0.5 * (low + high)) for low, high in pairwise(edges)]
    for at, (before, after) in zip(edges[1:-1], pairwise(stated), strict=True):
        if before != after:
            yield at


def _stated(road: XodrRoad, section: Section, s: float) -> tuple[list[float | None], list[tuple[bool, bool]]]:
    """Limits of the driving lanes at a place, and the lane changes that are allowed between them."""
    limits = [limit_at(road, section, lane, s) for lane in section.lanes if lane.kind in DRIVING]
    return limits, [
        may_change(inner, s - section.origin)
        for inner, outer in pairwise(section.lanes)
        if inner.kind in DRIVING and outer.kind in DRIVING
    ]


def _narrows(road: XodrRoad, section: Section) -> Iterator[float]:
    """All s inside a section at which a driving lane becomes wide enough for a car, or too narrow."""
    if section.end - section.start <= APART_M:
        return
    look = np.linspace(section.start, section.end, int(np.ceil((section.end - section.start) / LOOK_M)) + 1)
    for number, (_, _, widths) in enumerate(lateral(road, section, look)):
        for k in np.flatnonzero(np.diff(widths >= NARROW_M)):
            low, high = look[k], look[k + 1]
            for _ in range(HALVINGS):
                middle = 0.5 * (low + high)
                there = list(lateral(road, section, np.array([middle])))[number][2][0]
                low, high = (middle, high) if (there >= NARROW_M) == (widths[k] >= NARROW_M) else (low, middle)
            yield float(high)
