"""Draws routes for the ego through a road network, and divides them among the splits of starts."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, check_number
from robotrl.sims.driving.roads.lanes import RoadBuilder
from robotrl.spec import Split

STEPS = 2000
"""Maximum number of lanes visited from one start before the next start is tried."""
START_S = 5.0
SHORTEST_M = 11.0
"""Length below which a way is no route: `maps.finish` needs 10 m, and cuts up to 1 m off the end."""
SHORT_SHARE = 0.5
"""Length of the shortest route that ends where the map does, as a share of the longest route."""
SHARES: tuple[tuple[Split, float], ...] = (("train", 0.625), ("val", 0.125), ("test", 0.25))
"""Parts of a map's drawn routes that each split drives, in order."""


class Way(NamedTuple):
    """Way along lanes."""

    lanes: tuple[int, ...]
    start_s: float
    """Position on the first lane at which it begins, m."""
    length_m: float
    """Length from there to the end of the last lane, m."""


def pick_routes(builder: RoadBuilder, count: int, seed: int, length_m: float) -> None:
    """Add up to `count` different routes, each about `length_m` long, from lane to following lane.

    Starts are drawn without repetition from the lanes outside junctions, then again for further routes from there;
    among several successors one is drawn. No route changes lanes or ends in a junction: it continues to the next lane
    outside. Where the network has fewer routes that enter no lane twice, these are added in turn, until there are
    enough:

    1. routes that begin further along a lane, `length_m` apart;
    2. routes that enter lanes again;
    3. routes that are shorter because all ways end before, of half the longest route's length or more.

    Only where there is no such route, routes begin and end in junctions. The same network, count, seed and length
    give the same routes.

    Args:
        builder: the network, to which routes are added.
        count: largest number of routes, 1 or more.
        seed: random seed, 0 or more.
        length_m: length of a route, above 0; longer only if it would end in a junction.

    Raises:
        ConfigError: an argument out of range, or no way is as long as `length_m` or 10 m; no route is added.
    """
    check_number("count", count, 1, 2**31)
    check_number("seed", seed, 0, 2**63)
    check_number("length_m", length_m, 1e-3, 1e6, "m")
    draw = np.random.default_rng(seed)
    network = _Network(builder, inside=False)
    found = _routes(network, count, length_m, draw)
    if not found:
        network = _Network(builder, inside=True)
        found = _routes(network, count, length_m, draw)
    if not found:
        longest = max(network.ahead, default=0.0)
        raise ConfigError(
            f"map {builder.name!r}: its longest way along lanes is {longest:.1f} m: expected"
            f" {min(length_m, SHORTEST_M):g} m or more (option route_length_m asks for {length_m:g} m)"
        )
    for way in found:
        end = network.lengths[way.lanes[-1]] - max(way.length_m - length_m, 0.0)
        builder.route(way.lanes, way.start_s, max(end, 0.0))


def split_rows(count: int) -> dict[Split, tuple[int, int]]:
    """First of `count` drawn routes of each split, and the end; fewer than three are shared by all splits."""
    if count < len(SHARES):
        return {name: (0, count) for name, _ in SHARES}
    edges = [0]
    for k, (_, share) in enumerate(SHARES):
        left = len(SHARES) - 1 - k
        edges.append(min(max(edges[-1] + 1, round(edges[-1] + share * count)), count - left))
    edges[-1] = count
    return {name: (edges[k], edges[k + 1]) for k, (name, _) in enumerate(SHARES)}


def warn_if_shared(name: str, count: int) -> None:
    """Warn if a map has too few routes for splits of their own."""
    if count < len(SHARES):
        warnings.warn(
            f"map {name!r} has {count} route{'s' if count > 1 else ''}, fewer than one for each split: train, val and"
            " test drive the same ones, so that val and test say nothing of routes that were not trained on",
            stacklevel=2,
        )


class _Network:
    """Lengths and continuations of a builder's lanes; `inside` lets routes begin and end in junctions."""

    def __init__(self, builder: RoadBuilder, inside: bool) -> None:
        self.builder = builder
        self.lengths = [lane.length_m for lane in builder.lanes]
        self.outside = [inside or not lane.junction for lane in builder.lanes]
        self.starts = [i for i, outside in enumerate(self.outside) if outside]
        self.ahead = self._ahead()
        """Length of the longest way from the beginning of each lane to where a route may end; infinite in loops."""

    def _ahead(self) -> list[float]:
        following = [lane.next for lane in self.builder.lanes]
        ahead = [0.0] * len(following)
        # lanes are done when all of their successors are; those that never are lead into loops
        before: list[list[int]] = [[] for _ in following]
        left = [len(after) for after in following]
        for lane, after in enumerate(following):
            for n in after:
                before[n].append(lane)
        ended = [lane for lane, count in enumerate(left) if not count]
        done = [False] * len(following)
        while ended:
            lane = ended.pop()
            done[lane] = True
            further = max((ahead[n] for n in following[lane]), default=0.0)
            ahead[lane] = further + self.lengths[lane] if further or self.outside[lane] else 0.0
            for n in before[lane]:
                left[n] -= 1
                if not left[n]:
                    ended.append(n)
        return [value if over else math.inf for value, over in zip(ahead, done, strict=True)]

    def drawn(self, lane: int, draw: np.random.Generator) -> list[int]:
        """Successors of a lane in random order."""
        following = self.builder.lanes[lane].next
        return [following[i] for i in draw.permutation(len(following))]

    def start_s(self, lane: int) -> float:
        """Position at which routes from a lane begin, m."""
        return min(START_S, 0.5 * self.lengths[lane])

    def begin(self, lane: int) -> float:
        """The same, or nearer to the lane's beginning where the way ahead is hardly a route."""
        return min(self.start_s(lane), max(self.ahead[lane] - SHORTEST_M, 0.0))

    def further(self, lane: int, length_m: float) -> list[tuple[int, float]]:
        """The lane with each position further along it at which a route may begin, `length_m` apart."""
        begins: NDArray[np.float64] = np.arange(self.start_s(lane) + length_m, self.lengths[lane], length_m)
        return [(lane, begin) for begin in begins.tolist()]


Known = dict[tuple[tuple[int, ...], float], Way]
Accepts = Callable[[list[int], float], bool]
"""Decides about a way of lanes with the length covered, m."""


def _routes(network: _Network, count: int, length_m: float, draw: np.random.Generator) -> list[Way]:
    """Different routes in the order of `pick_routes`, `count` or fewer."""
    lengths, ahead = network.lengths, network.ahead
    known: Known = {}

    def passes(starts: Sequence[tuple[int, float]], find: Callable[[int, float], Way | None]) -> None:
        """Ask each start in turn for another route, until none has one."""
        before = -1
        while before < len(known) < count:
            before = len(known)
            for i in draw.permutation(len(starts)):
                way = find(*starts[i])
                if way is not None:
                    known[way.lanes, way.start_s] = way
                if len(known) == count:
                    return

    def is_full(way: list[int], covered: float) -> bool:
        return covered >= length_m and network.outside[way[-1]]

    def becomes_full(way: list[int], covered: float) -> bool:
        return covered + ahead[way[-1]] - lengths[way[-1]] >= length_m

    def simple(start: int, begin: float) -> Way | None:
        return _simple(network, start, begin, is_full, draw, known)

    def again(start: int, begin: float) -> Way | None:
        return _walk(network, start, begin, becomes_full, is_full, draw, known)

    passes([(i, network.start_s(i)) for i in network.starts], simple)
    passes([at for i in network.starts for at in network.further(i, length_m)], simple)
    passes([(i, network.start_s(i)) for i in network.starts], again)
    ending = [i for i in network.starts if ahead[i] < math.inf]
    longest = length_m if known else max((ahead[i] - network.begin(i) for i in ending), default=0.0)
    least = max(SHORT_SHARE * longest, min(length_m, SHORTEST_M))

    def is_end(way: list[int], covered: float) -> bool:
        return least <= covered < length_m and network.outside[way[-1]] and ahead[way[-1]] <= lengths[way[-1]]

    def becomes_end(way: list[int], covered: float) -> bool:
        return covered + ahead[way[-1]] - lengths[way[-1]] >= least

    def short(start: int, begin: float) -> Way | None:
        return _walk(network, start, begin, becomes_end, is_end, draw, known)

    passes([(i, network.begin(i)) for i in ending], short)
    return list(known.values())


def _simple(
    network: _Network, start: int, begin: float, ends: Accepts, draw: np.random.Generator, known: Known
) -> Way | None:
    """A new way from a lane that enters no lane twice, by depth-first search in random order."""
    lengths = network.lengths
    way, open_ = [start], [network.drawn(start, draw)]
    covered = lengths[start] - begin
    on_way = {start}
    for _ in range(STEPS):
        if ends(way, covered):
            if (tuple(way), begin) not in known:
                return Way(tuple(way), begin, covered)
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
            open_.append(network.drawn(lane, draw))
            covered += lengths[lane]
    return None


def _walk(
    network: _Network,
    start: int,
    begin: float,
    leads_on: Accepts,
    ends: Accepts,
    draw: np.random.Generator,
    known: Known,
) -> Way | None:
    """A new way from a lane that may enter lanes again.

    `leads_on` cuts off ways that cannot become one, so that the search hardly turns back.
    """
    lengths = network.lengths
    way, covered = [start], lengths[start] - begin
    if not leads_on(way, covered):
        return None
    open_ = [network.drawn(start, draw)]
    for _ in range(STEPS + len(known)):
        if ends(way, covered):
            if (tuple(way), begin) not in known:
                return Way(tuple(way), begin, covered)
            open_[-1].clear()
        while open_ and not open_[-1]:
            open_.pop()
            covered -= lengths[way.pop()]
        if not open_:
            break
        lane = open_[-1].pop()
        way.append(lane)
        covered += lengths[lane]
        if leads_on(way, covered):
            open_.append(network.drawn(lane, draw))
        else:
            covered -= lengths[way.pop()]
    return None
