"""Picks random routes through a road network for the ego."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np

from robotrl.errors import ConfigError, check_number
from robotrl.sims.driving.roads.lanes import RoadBuilder

STEPS = 2000
"""Maximum number of lanes visited from one start before the next start is tried."""
START_S = 5.0


def pick_routes(builder: RoadBuilder, count: int, seed: int, length_m: float) -> None:
    """Add `count` different routes, each about `length_m` long, from lane to following lane.

    Starts are drawn without repetition from the lanes outside junctions, then again for further routes from there;
    among several successors one is drawn. No route enters a lane twice, changes lanes or ends in a junction: it
    continues to the next lane outside. The same network, count, seed and length give the same routes.

    Args:
        builder: the network, to which routes are added.
        count: number of routes, 1 or more.
        seed: random seed, 0 or more.
        length_m: length of a route, above 0; longer only if it would end in a junction.

    Raises:
        ConfigError: an argument out of range, or the network has fewer such routes; no route is added.
    """
    check_number("count", count, 1, 2**31)
    check_number("seed", seed, 0, 2**63)
    check_number("length_m", length_m, 1e-3, 1e6, "m")
    draw = np.random.default_rng(seed)
    lengths = [lane.length_m for lane in builder.lanes]
    starts = [i for i, lane in enumerate(builder.lanes) if not lane.junction]
    found: dict[tuple[int, ...], float] = {}
    longest, before = 0.0, -1
    while before < len(found) < count:
        before = len(found)
        for start in draw.permutation(starts):
            lanes, covered = _walk(builder, lengths, int(start), length_m, draw, found)
            longest = max(longest, covered)
            if lanes:
                found[lanes] = covered
            if len(found) == count:
                break
    if len(found) < count:
        raise ConfigError(
            f"map {builder.name!r}: found {len(found)} different routes of {length_m:g} m (the longest way found was"
            f" {longest:.0f} m): expected {count}; ask for fewer or shorter ones"
        )
    for lanes, covered in found.items():
        end = lengths[lanes[-1]] - (covered - length_m)
        builder.route(lanes, _start(lengths[lanes[0]]), max(end, 0.0))


def _start(length: float) -> float:
    return min(START_S, 0.5 * length)


def _walk(
    builder: RoadBuilder,
    lengths: Sequence[float],
    start: int,
    length_m: float,
    draw: np.random.Generator,
    known: Container[tuple[int, ...]],
) -> tuple[tuple[int, ...], float]:
    """Find a new route of at least `length_m` from a lane, by depth-first search in random order.

    Returns:
        The lanes (empty if no such route was found), and the length, m, from the start of the route to the end of its
        last lane, or that of the longest route found.
    """
    way, open_ = [start], [_drawn(builder, start, draw)]
    longest = covered = lengths[start] - _start(lengths[start])
    on_way = {start}
    for _ in range(STEPS):
        longest = max(longest, covered)
        if covered >= length_m and not builder.lanes[way[-1]].junction:
            if tuple(way) not in known:
                return tuple(way), covered
            open_[-1].clear()
        while open_ and not open_[-1]:
            open_.pop()
            last = way.pop()
            on_way.discard(last)
            covered -= lengths[last]
        if not open_:
            break
        lane = open_[-1].pop()
        if lane not in on_way:
            way.append(lane)
            on_way.add(lane)
            open_.append(_drawn(builder, lane, draw))
            covered += lengths[lane]
    return (), longest


def _drawn(builder: RoadBuilder, lane: int, draw: np.random.Generator) -> list[int]:
    return [builder.lanes[lane].next[i] for i in draw.permutation(len(builder.lanes[lane].next))]
