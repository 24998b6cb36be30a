"""Makes the lanes of the map from the driving lanes of sections: joined along their road where nothing but the section
changes, without what is too narrow for a car, and linked to their successors and neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import DataError
from robotrl.sims.driving.opendrive.geometry import Floats
from robotrl.sims.driving.opendrive.lanes import (
    SHORTEST_M,
    LanePair,
    LanePiece,
    Network,
    Node,
    Strip,
    heights_at,
    node_text,
)
from robotrl.sims.driving.opendrive.links import Edges
from robotrl.sims.driving.opendrive.roads import DEFAULT_SPEED_MPS
from robotrl.sims.driving.opendrive.turns import turn_of
from robotrl.sims.driving.roads.lanes import NONE, SPACING_M, resampled

JOINT_M = 0.05
"""Largest distance, m, of the end of a lane from the beginning of the one that it is joined with."""
GAP_M = 1.0
"""Gap between a lane's start and its predecessor's end that triggers a warning."""
UNEVEN_M = 0.05
"""Deviation from the mean width beyond which a lane's width is recorded point by point."""
SAGITTA_M = 0.03
"""Deviation of a lane's chords from its centre line beyond which its points are closer than `SPACING_M`."""
GRID_M = 2e-6
"""Distance, m, of positions on a road that count as one."""
NEEDED_M = 0.02
"""Distance, m, of a joint of sections from the line without it beyond which it stays a point of the lane."""
CLOSEST_M = 0.25
MOST_UNFOLDED = 200

Chain = tuple[Node, ...]
"""Driving lanes that make one lane of the map, in driving direction."""
Row = tuple[Node, ...]
"""Lanes of one direction side by side, from left to right."""


class Beside(NamedTuple):
    """Lanes of one direction at both sides of a lane, and whether cars may change to them."""

    left: LanePair | None
    right: LanePair | None


def add_lanes(net: Network, edges: Edges) -> None:
    """Add the lanes of the map with all their relations.

    Raises:
        DataError: a discontinuous plan view.
    """
    edges = _without_narrow(net, edges)
    chains = _chains(net, edges)
    for chain in chains:
        _add_lane(net, chain)
    _link(net, edges, chains)
    for pair in net.pairs:
        left, right = net.nodes.get(pair.left, NONE), net.nodes.get(pair.right, NONE)
        if left != NONE and right != NONE:
            net.builder.beside(left, right, pair.to_right, pair.to_left)


def limit_junctions(net: Network) -> None:
    """Give junction lanes without a speed limit the lowest limit of the lanes that they join."""
    lanes = net.builder.lanes
    for number, strip in enumerate(net.strips):
        if strip.road.junction is not None and not strip.limited:
            around = [i for i in (*net.before[number], *lanes[number].next) if net.strips[i].limited]
            if around:
                lanes[number].speed_mps = min(lanes[i].speed_mps for i in around)


def _without_narrow(net: Network, edges: Edges) -> Edges:
    """Drop lanes too narrow for a car; they stay part of the surface.

    Kept is the only lane of its direction if it leads from a lane to a lane: it widens out of one, or is a slip of the
    file. It is led along the straight way between the two.
    """
    alone = {node for node, piece in net.pieces.items() if piece.narrow}
    alone -= {node for pair in net.pairs for node in (pair.left, pair.right)}
    dropped = {node for node, piece in net.pieces.items() if piece.narrow and node not in alone}
    while True:
        entered = {after for node, following in edges.items() if node not in dropped for after in following}
        leads = {node for node, following in edges.items() if any(after not in dropped for after in following)}
        more = {node for node in alone - dropped if node not in entered or node not in leads}
        if not more:
            break
        dropped |= more
    for node in dropped:
        piece = net.pieces.pop(node)
        if len(piece.s) > 1:
            heights = heights_at(piece.road, piece.s)
            net.builder.pave(piece.points, piece.widths, 0.0 if heights is None else float(heights.mean()))
    net.pairs = [pair for pair in net.pairs if pair.left not in dropped and pair.right not in dropped]
    kept = {
        node: [after for after in following if after not in dropped]
        for node, following in edges.items()
        if node not in dropped
    }
    _straighten(net, kept)
    return kept


def _straighten(net: Network, edges: Edges) -> None:
    """Move both ends of narrow lanes to the lanes that they join."""
    before = _reversed(edges)
    for node, piece in net.pieces.items():
        if not piece.narrow or len(piece.s) < 2:
            continue
        ends = []
        for neighbors, at_end in ((before.get(node, []), False), (edges.get(node, []), True)):
            own = _end(piece, at_end)
            wide = [net.pieces[other] for other in neighbors if not net.pieces[other].narrow]
            ends.append(_end(wide[0], not at_end) - own if wide else np.zeros(2))
        if not piece.forward:
            ends.reverse()
        u = ((piece.s - piece.s[0]) / (piece.s[-1] - piece.s[0]))[:, None]
        share = u * u * (3.0 - 2.0 * u)
        net.pieces[node] = piece._replace(points=piece.points + ends[0] * (1.0 - share) + ends[1] * share)


def _end(piece: LanePiece, at_end: bool) -> Floats:
    """First or last point in driving direction."""
    return piece.points[-1 if at_end == piece.forward else 0]


def _reversed(edges: Edges) -> Edges:
    before: Edges = {}
    for node, following in edges.items():
        for after in following:
            before.setdefault(after, []).append(node)
    return before


def _chains(net: Network, edges: Edges) -> list[Chain]:
    """Lanes to be made, in the order of the file: rows of lanes are joined with the row that they go on in."""
    before = _reversed(edges)
    beside = _beside(net)
    rows = {row[0]: row for row in _rows(net, beside)}
    goes_on: dict[Node, Node] = {}
    for first, row in rows.items():
        after = edges.get(first, [])
        following = rows.get(after[0]) if len(after) == 1 else None
        if following is not None and _same(net, beside, edges, before, row, following):
            goes_on[first] = following[0]
    found: dict[Node, Chain] = {}
    for first in rows.keys() - set(goes_on.values()):
        firsts = [first]
        while firsts[-1] in goes_on:
            firsts.append(goes_on[firsts[-1]])
        for chain in zip(*(rows[node] for node in firsts), strict=True):
            found |= dict.fromkeys(chain, chain)
    return list(dict.fromkeys(found[node] for node in net.pieces))


def _beside(net: Network) -> dict[Node, Beside]:
    lefts = {pair.right: pair for pair in net.pairs}
    rights = {pair.left: pair for pair in net.pairs}
    return {node: Beside(lefts.get(node), rights.get(node)) for node in net.pieces}


def _rows(net: Network, beside: dict[Node, Beside]) -> Iterator[Row]:
    for node in net.pieces:
        if beside[node].left is None:
            row = [node]
            while (pair := beside[row[-1]].right) is not None:
                row.append(pair.right)
            yield tuple(row)


def _same(net: Network, beside: dict[Node, Beside], edges: Edges, before: Edges, row: Row, following: Row) -> bool:
    """True if a row of lanes goes on in the next section of its road with nothing changed."""
    road, k, _ = row[0]
    onwards = k + (1 if net.pieces[row[0]].forward else -1)
    if len(row) != len(following) or following[0][:2] != (road, onwards):
        return False
    for here, there in zip(row, following, strict=True):
        a, b = net.pieces[here], net.pieces[there]
        if edges.get(here) != [there] or before.get(there) != [here] or a.limit != b.limit:
            return False
        if np.linalg.norm(_end(a, True) - _end(b, False)) > JOINT_M:
            return False
        left, right = beside[here].right, beside[there].right
        if left is not None and right is not None and left[2:] != right[2:]:
            return False
    return True


def _add_lane(net: Network, chain: Chain) -> None:
    """Add the lane of a chain, unless it is too short for one."""
    pieces = [net.pieces[node] for node in chain]
    first = pieces[0]
    road, forward = first.road, first.forward
    in_order = pieces if forward else pieces[::-1]
    s = np.concatenate([piece.s for piece in in_order])
    points = np.concatenate([piece.points for piece in in_order])
    tangents = np.concatenate([piece.tangents for piece in in_order])
    widths = np.concatenate([piece.widths for piece in in_order])
    joints = np.cumsum([len(piece.s) for piece in in_order])[:-1]
    kept = _needed(s, points, widths, joints, net.grids[road.id])
    s, points, tangents, widths = s[kept], points[kept], tangents[kept], widths[kept]
    long = float(s[-1] - s[0])
    if long < SHORTEST_M:
        net.nodes |= dict.fromkeys(chain, NONE)
        return
    kept = unfolded(points, tangents)
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(points[kept], axis=0), axis=1))])
    if not 1e-2 < along[-1] < 3.0 * long + 100.0:
        raise DataError(
            f"{road.where}: <lane> {chain[0][2]} is {along[-1]:.6g} m long where its section is {long:.6g} m: expected"
            " <geometry>, <laneOffset> and <width> without jumps"
        )
    mean = float(np.trapezoid(widths, s) / long)
    varies = bool(np.abs(widths - mean).max() > UNEVEN_M)
    order = slice(None) if forward else slice(None, None, -1)
    turn, bend = turn_of(net, road, forward)
    heights = heights_at(road, s[kept])
    number = net.builder.lane(
        points[kept][order],
        first.limit or DEFAULT_SPEED_MPS,
        mean,
        road.junction is not None,
        turn,
        _spacing(points[kept], along),
        widths[kept][order] if varies else None,
        None if heights is None else heights[order],
        bend,
    )
    net.nodes |= dict.fromkeys(chain, number)
    net.strips.append(Strip(road, forward, first.limit is not None, s[kept], along))


def _needed(s: Floats, points: Floats, widths: Floats, joints: NDArray[np.intp], grid: Floats) -> NDArray[np.intp]:
    """Indices of the points without doubles at joints, and without joints that the line has no need of.

    A lane is the same then, however many sections it was in. `joints` are the first points of all pieces but one,
    `grid` the positions at which the road is sampled anyway.
    """
    single = np.delete(np.arange(len(s)), joints)
    ends = np.unique(np.searchsorted(single, joints) - 1)
    kept = np.ones(len(single), bool)
    for end in ends:
        near = grid[min(np.searchsorted(grid, s[single[end]] - GRID_M), len(grid) - 1)]
        if 0 < end < len(single) - 1 and abs(near - s[single[end]]) > GRID_M:
            a, b, c = single[end - 1 - np.argmax(kept[end - 1 :: -1])], single[end], single[end + 1]
            u = (s[b] - s[a]) / (s[c] - s[a])
            off = np.linalg.norm(points[a] + u * (points[c] - points[a]) - points[b])
            uneven = abs(widths[a] + u * (widths[c] - widths[a]) - widths[b])
            kept[end] = max(off, uneven) > NEEDED_M
    return single[kept]


def _spacing(points: Floats, along: Floats) -> float:
    """Distance of points at which the lane's chords stay within `SAGITTA_M` of these points: less in tight bends."""
    spacing = SPACING_M
    while spacing > CLOSEST_M:
        coarse = resampled(points, spacing)
        at = np.linspace(0.0, along[-1], len(coarse))
        chord = np.stack([np.interp(along, at, coarse[:, k]) for k in range(2)], axis=1)
        if np.linalg.norm(chord - points, axis=1).max() <= SAGITTA_M:
            break
        spacing /= 2.0
    return spacing


def unfolded(points: Floats, tangents: Floats) -> NDArray[np.intp]:
    """Indices of the points to keep so that a lane offset to the inside of a tight bend does not run backwards.

    Args:
        points: (n, 2) points of the lane.
        tangents: (n, 2) directions of the reference line.
    """
    kept = np.arange(len(points))
    for _ in range(MOST_UNFOLDED):
        steps = np.diff(points[kept], axis=0)
        back = np.flatnonzero((steps * (tangents[kept[:-1]] + tangents[kept[1:]])).sum(axis=1) < 0.0)
        drop = np.unique(np.concatenate([back, back + 1]))
        drop = drop[(drop > 0) & (drop < len(kept) - 1)]
        if not len(drop):
            break
        kept = np.delete(kept, drop)
    return kept


def _link(net: Network, edges: Edges, chains: list[Chain]) -> None:
    """Link lanes to their successors, through lanes too short for one, and note where they do not meet."""
    lanes = net.builder.lanes
    lasts = {chain[0]: chain[-1] for chain in chains}
    net.before = [[] for _ in lanes]
    for chain in chains:
        number = net.nodes[chain[0]]
        if number == NONE:
            continue
        for follower in _followers(net, edges, lasts, chain[-1]):
            net.builder.follow(number, follower)
            gap = float(np.linalg.norm(lanes[number].points[-1] - lanes[follower].points[0]))
            if gap > GAP_M:
                what = f"lanes begin over {GAP_M:g} m from the end of the lane before"
                net.notes.add(what, f"after {node_text(chain[-1])}: {gap:.1f} m")
    for number, lane in enumerate(lanes):
        for follower in lane.next:
            net.before[follower].append(number)


def _followers(net: Network, edges: Edges, lasts: dict[Node, Node], node: Node) -> Iterator[int]:
    """Indices of the following lanes, bridging those too short for a lane."""
    ahead, seen = list(edges.get(node, ())), set[Node]()
    for there in ahead:
        if there not in seen:
            seen.add(there)
            number = net.nodes[there]
            if number == NONE:
                ahead += edges.get(lasts[there], ())
            else:
                yield number
