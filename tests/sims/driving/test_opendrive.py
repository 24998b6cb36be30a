"""The OpenDRIVE reader: lanes, links, limits and neighbours, by hand and against CARLA's own parser."""

import itertools
import math
import re

import numpy as np
import pytest

import tests.kits.xodr_kit as kit
from robotrl.sims.driving import tables
from robotrl.sims.driving.opendrive.lanes import NARROW_M
from robotrl.sims.driving.roads import maps
from robotrl.sims.driving.roads.lanes import NONE, Control, JunctionTurn, RoadBuilder
from robotrl.sims.driving.roads.routes import pick_routes
from tests.kits.paths_kit import ROOT

ARC = kit.tag("arc", curvature=0.02)


def test_lanes_lie_beside_the_reference_line_and_run_with_traffic():
    right, left = [kit.lane(-1, 3.0), kit.lane(-2, 4.0)], [kit.lane(1, 2.0, "median"), kit.lane(2, 3.0)]
    text = kit.document(kit.road("a", 100, kit.piece(0, 5, 5, math.pi / 2, 100), kit.section(0, left, right)))
    builder = kit.parse(text)
    ends = {tuple(np.round([*lane.points[0], *lane.points[-1]], 6)): lane for lane in builder.lanes}
    assert set(ends) == {(1.5, 105, 1.5, 5), (6.5, 5, 6.5, 105), (10.0, 5, 10.0, 105)}
    assert ends[(10.0, 5, 10.0, 105)].width_m == pytest.approx(4.0)
    assert all(lane.speed_mps == 13.9 and not lane.junction for lane in builder.lanes)
    assert builder.name == "test" and builder.routes == []


def test_a_lane_in_a_bend_has_the_radius_of_its_centre():
    text = kit.document(
        kit.road(1, 50, kit.piece(0, 0, 0, 0, 50, ARC), kit.section(0, [kit.lane(1, 4.0)], [kit.lane(-1, 4.0)]))
    )
    for lane, radius in zip(kit.parse(text).lanes, (48.0, 52.0), strict=True):
        assert np.abs(np.hypot(lane.points[:, 0], lane.points[:, 1] - 50.0) - radius).max() < 0.004
        assert lane.length_m == pytest.approx(radius, abs=0.01)


def test_offset_and_width_are_cubics_and_may_jump_between_sections():
    offset = kit.cubic("laneOffset", 0, 0, 0.01) + kit.cubic("laneOffset", 50, 2.0, 0, 0.001)
    widths = kit.cubic("width", 0, 3.0) + kit.cubic("width", 20, 3.0, 0, 0.001, 1e-5)
    sections = [
        kit.section(0, right=[kit.lane(-1, widths, after=-1)]),
        kit.section(50, right=[kit.lane(-1, 3.0, before=-1)]),
    ]
    builder, message = kit.told(kit.document(kit.road(1, 100, kit.piece(0, 0, 0, 0, 100), sections, offset=offset)))
    assert "1 lanes begin over 1 m from the end of the lane before (first: after road '1', lane -1: 2.1 m)" in message
    first, second = (lane.points for lane in builder.lanes)
    x = first[:, 0]
    ds = np.maximum(x - 20, 0)
    np.testing.assert_allclose(first[:, 1], 0.01 * x - (3 + 0.001 * ds**2 + 1e-5 * ds**3) / 2, atol=3e-4)
    assert first[-1] == pytest.approx([50.0, 0.5 - (3 + 0.9 + 0.27) / 2])  # the offset before the jump
    np.testing.assert_allclose(second[:, 1], 2 + 0.001 * (second[:, 0] - 50) ** 2 - 1.5, atol=3e-4)
    assert builder.lanes[0].next == [1]


def test_borders_stand_in_for_widths():
    lanes = [kit.lane(-1, kit.cubic("border", 0, -3.0)), kit.lane(-2, kit.cubic("border", 0, -7.0))]
    assert [lane.points[0, 1] for lane in kit.parse(kit.document(kit.straight(right=lanes))).lanes] == [-1.5, -5.0]


@pytest.mark.parametrize(
    "kind", ["driving", "entry", "exit", "onRamp", "offRamp", "bidirectional", "connectingRamp", "slipLane"]
)
def test_cars_drive_on_these_lanes(kind):
    assert len(kit.parse(kit.document(kit.straight(right=[kit.lane(-1, 3.0, kind)]))).lanes) == 1


@pytest.mark.parametrize("kind", ["shoulder", "sidewalk", "parking", "biking", "border", "none", "restricted", "tram"])
def test_other_lanes_take_up_room_only(kind):
    lanes = [kit.lane(-1, 2.0, kind), kit.lane(-2, 3.0)]
    assert [lane.points[0, 1] for lane in kit.parse(kit.document(kit.straight(right=lanes))).lanes] == [-3.5]


def test_a_lane_that_widens_begins_where_a_car_has_room_and_one_without_room_is_none():
    grows = kit.cubic("width", 0, 0, 0.1)
    thin = kit.cubic("width", 0, 0, 0.01)
    sections = [
        kit.section(0, right=[kit.lane(-1, after=-1)]),
        kit.section(30, right=[kit.lane(-1, before=-1, after=-1), kit.lane(-2, grows, after=-2), kit.lane(-3, thin)]),
        kit.section(65, right=[kit.lane(-1, before=-1), kit.lane(-2, before=-2)]),
    ]
    builder = kit.parse(kit.document(kit.road(1, 100, kit.piece(0, 0, 0, 0, 100), sections)))
    # 2 m wide at 50 m: the lane beside it is another from there on, since one may change from it
    assert [lane.next for lane in builder.lanes] == [[1], [], []]
    assert [(lane.left, lane.right) for lane in builder.lanes] == [(-1, -1), (-1, 2), (1, -1)]
    assert [lane.length_m for lane in builder.lanes] == pytest.approx([50, 50, 50], abs=0.1)
    assert builder.lanes[2].points[0] == pytest.approx([50, -4.5])
    assert builder.lanes[2].points[-1] == pytest.approx([100, -5.25])
    assert builder.lanes[2].width_m == pytest.approx((15 * 2.75 + 35 * 3.5) / 50)
    # what is too narrow for a car stays road: 1 m wide at 40 m, beside the 3.5 m of the other lane
    builder.route((1,))
    world = maps.finish(builder)
    column = int((40.25 - world.origin[0]) / maps.CELL_M)
    assert (world.tile[:, column] & tables.DRIVABLE > 0).sum() * maps.CELL_M == pytest.approx(4.6, abs=0.5)


def test_the_only_lane_of_a_road_that_widens_is_led_to_the_lanes_that_it_joins():
    """A lane of no width at its beginning lies on the edge of the road before; a car comes from its middle."""
    grows = kit.cubic("width", 0, 0, 0.1) + kit.cubic("width", 35, 3.5)
    first = kit.straight(1, right=[kit.lane(-1, after=-1)], link=kit.joint("successor", "road", 2, "start"))
    link = kit.joint("predecessor", "road", 1, "end")
    lanes = kit.section(0, right=[kit.lane(-1, grows, before=-1)])
    second = kit.road(2, 80, kit.piece(0, 100, 0, 0, 80), lanes, link)
    for text in (
        kit.document(first, second),
        kit.document(first, second).replace('id="2" junction="-1"', 'id="2" junction="5"'),
    ):
        builder = kit.parse(text.replace("</OpenDRIVE>", '<junction id="5"/></OpenDRIVE>'))
        before, after = builder.lanes
        assert before.next == [1] and after.length_m == pytest.approx(80, abs=0.5)
        assert np.linalg.norm(before.points[-1] - after.points[0]) < 1e-6
        assert np.abs(np.diff(after.points, axis=0)[:, 1]).max() < 0.15
        assert after.points[30, 1] == pytest.approx(-1.5, abs=0.05)


def test_a_lane_that_narrows_without_a_follower_ends_where_a_car_has_no_room():
    ends = kit.cubic("width", 0, 3.5) + kit.cubic("width", 40, 3.5, -0.05)
    text = kit.document(kit.straight(right=[kit.lane(-1), kit.lane(-2, ends)]))
    first, second, after = kit.parse(text).lanes
    assert (first.next, second.next, after.next) == ([2], [], [])
    assert [lane.length_m for lane in (first, second, after)] == pytest.approx([70, 70, 30], abs=0.1)
    assert (first.right, second.left, after.right) == (1, 0, NONE)


@pytest.mark.parametrize("side", [1, -1])
def test_the_drawn_surface_follows_a_lane_that_widens(side):
    lanes = [kit.lane(side, kit.cubic("width", 0, 2.0, 0.04))]
    sections = kit.section(0, lanes) if side > 0 else kit.section(0, right=lanes)
    builder = kit.parse(kit.document(kit.road(1, 100, kit.piece(0, 0, 0, 0, 100), sections)))
    (only,) = builder.lanes
    assert only.width_m == pytest.approx(4.0) and only.widths_m is not None
    # 2 m at x = 0, 6 m at x = 100, in the lane's own direction
    np.testing.assert_allclose(only.widths_m, 2.0 + 0.04 * only.points[:, 0], atol=1e-3)
    builder.route((0,))
    world = maps.finish(builder)
    drawn = (world.tile & tables.DRIVABLE > 0).sum(axis=0) * maps.CELL_M
    x = world.origin[0] + (np.arange(len(drawn)) + 0.5) * maps.CELL_M
    along = (x > 1) & (x < 99)
    # cells that are touched count whole
    assert (np.abs(drawn - (2.0 + 0.04 * x) - 0.5)[along] < 0.6).all()
    assert kit.parse(kit.document(kit.straight())).lanes[0].widths_m is None


def test_points_of_tight_bends_are_closer():
    for radius, spacing in ((20.0, 1.0), (3.0, 0.5)):
        shapes: kit.Shapes = [(("line", ()), 20.0), (("arc", (1 / (radius + 1.75),)), 1.5 * (radius + 1.75))]
        line, text = kit.chained(shapes, 0.0, 0.0, 0.0)
        builder = kit.parse(kit.document(kit.road(1, line.length, text, kit.section(0, [kit.lane(1)]))))
        points = builder.lanes[0].points
        steps = np.linalg.norm(np.diff(points, axis=0), axis=1)
        assert spacing * 0.9 < steps.min() and steps.max() <= spacing + 1e-9
        middles = (points[1:] + points[:-1]) / 2
        off = np.hypot(middles[:, 0] - 20.0, middles[:, 1] - radius - 1.75) - radius
        assert np.abs(off[middles[:, 0] > 21]).max() < 0.03


def test_a_section_for_one_side_leaves_the_other_side_whole():
    sections = [
        kit.section(0, [kit.lane(1)], [kit.lane(-1, after=-1)]),
        kit.section(40, right=[kit.lane(-1, before=-1, after=-1), kit.lane(-2, after=-2)], singleSide="true"),
    ]
    builder = kit.parse(kit.document(kit.road(1, 100, kit.piece(0, 0, 0, 0, 100), sections)))
    assert sorted(round(lane.length_m) for lane in builder.lanes) == [40, 60, 60, 100]


def test_links_lead_through_sections_too_short_to_be_lanes():
    other = kit.cubic("width", 0, 3.0)
    sections = [
        kit.section(0, [kit.lane(1, after=1)], [kit.lane(-1, after=-1)]),
        kit.section(50, [kit.lane(1, before=1, after=1), kit.lane(2)], [kit.lane(-1, before=-1, after=-1)]),
        kit.section(50.01, [kit.lane(1, other, before=1)], [kit.lane(-1, before=-1)]),
    ]
    builder = kit.parse(kit.document(kit.road(1, 100, kit.piece(0, 0, 0, 0, 100), sections)))
    # to the right nothing changes, so there is one lane
    assert [lane.next for lane in builder.lanes] == [[], [0], []]


def test_a_lane_inside_a_bend_tighter_than_its_distance_runs_forward_all_the_same():
    shapes: kit.Shapes = [(("line", ()), 20.0), (("arc", (-1 / 3,)), 1.5 * math.pi), (("line", ()), 20.0)]
    line, text = kit.chained(shapes, 0.0, 0.0, 0.0)
    lanes = [kit.lane(-1), kit.lane(-2)]
    signs = kit.signals(kit.signal("s", line.length - 10, "+", "206"))
    builder = kit.parse(kit.document(kit.road(1, line.length, text, kit.section(0, right=lanes), inside=signs)))
    for lane, t in zip(builder.lanes, (1.75, 5.25), strict=True):
        assert lane.points[0] == pytest.approx([0, -t]) and lane.points[-1] == pytest.approx([23 - t, -23])
        steps = np.diff(lane.points, axis=0)
        assert (np.diff(lane.points[:, 0]) > -0.1).all() and (np.diff(lane.points[:, 1]) < 0.1).all()
        assert ((steps[1:] * steps[:-1]).sum(1) >= 0).all()
        assert lane.length_m - lane.stop_s == pytest.approx(10, abs=0.2)
    assert builder.lanes[1].length_m < 37


# links


def two_roads(first_end: str, second_end: str, told_by: str) -> str:
    """Two straight roads that meet at (100, 0), each running towards or away from there."""
    parts = []
    for own, other, end, contact, x, outwards in (
        (1, 2, first_end, second_end, 0.0, math.pi),
        (2, 1, second_end, first_end, 200.0, 0.0),
    ):
        hdg = outwards if end == "start" else outwards + math.pi
        plan = kit.piece(0, 100.0 if end == "start" else x, 0, hdg, 100)
        side = "predecessor" if end == "start" else "successor"
        link, lanes = "", (kit.lane(1), kit.lane(-1))
        if told_by in ("both", str(own)):
            link = kit.joint(side, "road", other, contact)
            turn = -1 if end == contact else 1
            key = "before" if end == "start" else "after"
            lanes = tuple(kit.lane(i, **{key: turn * i}) for i in (1, -1))
        parts.append(kit.road(own, 100, plan, kit.section(0, lanes[:1], lanes[1:]), link))
    return kit.document(*parts)


@pytest.mark.parametrize("told_by", ["both", "1", "2"])
@pytest.mark.parametrize("ends", list(itertools.product(("start", "end"), repeat=2)))
def test_roads_that_meet_lead_into_each_other_whichever_way_they_run(ends, told_by):
    builder = kit.parse(two_roads(*ends, told_by))
    pairs = [(lane, builder.lanes[n]) for lane in builder.lanes for n in lane.next]
    assert len(pairs) == 2
    for lane, follower in pairs:
        assert lane.points[-1] == pytest.approx(follower.points[0], abs=1e-6)
        assert lane.points[0, 1] == pytest.approx(follower.points[-1, 1], abs=1e-6)
        # traffic keeps to the right
        assert (lane.points[0, 1] < 0) == (lane.points[-1, 0] > lane.points[0, 0])


def test_a_junction_has_its_lanes_their_turns_and_the_limits_of_what_they_join():
    builder = kit.parse(kit.crossroads())
    inside = [lane for lane in builder.lanes if lane.junction]
    assert len(inside) == 12 and len(builder.lanes) == 20
    assert (
        sorted(lane.turn for lane in inside)
        == [JunctionTurn.STRAIGHT] * 4 + [JunctionTurn.RIGHT] * 4 + [JunctionTurn.LEFT] * 4
    )
    for lane in inside:
        a, b = lane.points[1] - lane.points[0], lane.points[-1] - lane.points[-2]
        turned = math.atan2(a[0] * b[1] - a[1] * b[0], a @ b)
        assert {JunctionTurn.STRAIGHT: 0, JunctionTurn.LEFT: 1.53, JunctionTurn.RIGHT: -1.5}[
            lane.turn
        ] == pytest.approx(turned, abs=0.1)
        assert len(lane.next) == 1
        assert np.linalg.norm(builder.lanes[lane.next[0]].points[0] - lane.points[-1]) < 1e-6
    assert sorted(len(lane.next) for lane in builder.lanes if not lane.junction) == [0] * 4 + [3] * 4
    assert all(lane.speed_mps == pytest.approx(30 / 3.6) for lane in builder.lanes)


def test_the_connections_of_a_junction_or_the_links_of_its_roads_suffice():
    whole = [lane.next for lane in kit.parse(kit.crossroads()).lanes]
    without = re.sub(r"<connection .*?</connection>", "", kit.crossroads())
    assert [sorted(lane.next) for lane in kit.parse(without).lanes] == [sorted(n) for n in whole]


def test_a_direct_junction_joins_roads_without_roads_of_its_own():
    link = kit.tag("laneLink", **{"from": -1, "to": -1})
    connection = kit.tag("connection", link, id=0, incomingRoad=1, linkedRoad=2, contactPoint="start")
    text = kit.document(
        kit.straight(1, link=kit.joint("successor", "junction", 5)),
        kit.road(2, 50, kit.piece(0, 100, 0, 0, 50), kit.section(0, right=[kit.lane(-1)])),
        kit.tag("junction", connection, id=5, type="direct"),
    )
    builder = kit.parse(text)
    assert [lane.next for lane in builder.lanes] == [[1], []] and not any(lane.junction for lane in builder.lanes)


def test_a_ring_leads_into_itself():
    plan = kit.piece(0, 0, 0, 0, 40 * math.pi, kit.tag("arc", curvature=0.05))
    link = kit.joint("predecessor", "road", 1, "end") + kit.joint("successor", "road", 1, "start")
    ring = kit.road(1, 40 * math.pi, plan, kit.section(0, right=[kit.lane(-1, before=-1, after=-1)]), link)
    assert kit.parse(kit.document(ring)).lanes[0].next == [0]


# neighbours


def mark(at: float = 0.0, kind: str | None = "solid", change: str | None = None) -> str:
    return kit.tag("roadMark", sOffset=at, type=kind, laneChange=change)


def neighbors(marks: str, left_side: bool = False) -> list[tuple[bool, bool, bool, bool]]:
    """May change outwards, inwards; left and right line solid, of two lanes; in each part of the road, along s."""
    if left_side:
        sections = kit.section(0, [kit.lane(1, inside=marks), kit.lane(2)])
        text = kit.document(kit.road(1, 100, kit.piece(0, 0, 0, 0, 100), sections))
    else:
        text = kit.document(kit.straight(right=[kit.lane(-1, inside=marks), kit.lane(-2)]))
    lanes, found = kit.parse(text).lanes, []
    for inner, outer in zip(lanes[::2], lanes[1::2], strict=True):
        assert inner.left == NONE and outer.right == NONE
        assert (inner.right == NONE or lanes[inner.right] is outer) and (
            outer.left == NONE or lanes[outer.left] is inner
        )
        assert lanes[inner.beside_right] is outer and lanes[outer.beside_left] is inner
        found.append((inner.right != NONE, outer.left != NONE, inner.right_solid, outer.left_solid))
    return found


@pytest.mark.parametrize("left_side", [False, True])
@pytest.mark.parametrize(
    ("marks", "outwards", "inwards"),
    [
        ("", True, True),
        (mark(kind="broken"), True, True),
        (mark(kind="none"), True, True),
        (mark(kind="botts dots"), True, True),
        (mark(kind="solid"), False, False),
        (mark(kind="solid solid"), False, False),
        (mark(kind="curb"), False, False),
        (mark(kind="solid broken"), False, True),
        (mark(kind="broken solid"), True, False),
        (mark(kind="solid", change="both"), True, True),
        (mark(kind="broken", change="none"), False, False),
    ],
)
def test_lanes_may_be_changed_as_the_mark_says(marks, outwards, inwards, left_side):
    assert neighbors(marks, left_side) == [(outwards, inwards, not outwards, not inwards)]


@pytest.mark.parametrize(
    ("marks", "changes"),
    [
        (mark(0, "broken") + mark(70, "solid"), [True, False]),
        (mark(60, "solid") + mark(80, "broken"), [True, False, True]),
        (mark(0, "broken") + mark(30, "none"), [True]),
    ],
)
def test_lanes_are_cut_where_the_permission_to_change_them_changes(marks, changes):
    assert neighbors(marks) == [(may, may, not may, not may) for may in changes]


def test_increase_means_towards_greater_lane_ids():
    assert neighbors(mark(change="increase"))[0][:2] == (False, True)
    assert neighbors(mark(change="decrease"))[0][:2] == (True, False)
    assert neighbors(mark(change="increase"), left_side=True)[0][:2] == (True, False)
    assert neighbors(mark(change="decrease"), left_side=True)[0][:2] == (False, True)


def test_lanes_of_opposite_directions_or_with_something_between_are_no_neighbours():
    lanes = [kit.lane(-1), kit.lane(-2, 0.5, "border"), kit.lane(-3)]
    text = kit.document(kit.road(1, 100, kit.piece(0, 0, 0, 0, 100), kit.section(0, [kit.lane(1)], lanes)))
    assert all((lane.left, lane.right) == (NONE, NONE) for lane in kit.parse(text).lanes)


# limits


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ({"max": 20, "unit": "m/s"}, 20.0),
        ({"max": 20}, 20.0),
        ({"max": 72, "unit": "km/h"}, 20.0),
        ({"max": 25, "unit": "mph"}, 11.176),
        ({"max": "no limit"}, 13.9),
        ({"max": "undefined", "unit": "km/h"}, 13.9),
        ({"max": 0}, 13.9),
    ],
)
def test_limits_of_roads_have_units(limit, expected):
    kind = kit.tag("type", kit.tag("speed", **limit), s=0, type="town")
    assert kit.parse(kit.document(kit.straight(inside=kind))).lanes[0].speed_mps == pytest.approx(expected)


def test_lanes_are_cut_where_a_limit_changes_and_that_of_the_lane_goes_before():
    kinds = [kit.tag("type", kit.tag("speed", max=v), s=s, type="town") for s, v in ((0, 10), (40, 15), (80, 15))]
    own = kit.tag("speed", sOffset=0, max=36, unit="km/h")
    later = kit.tag("speed", sOffset=60, max=5)
    lanes = [kit.lane(-1), kit.lane(-2, inside=own), kit.lane(-3, inside=later)]
    builder = kit.parse(kit.document(kit.straight(right=lanes, inside="".join(kinds))))
    limits = [lane.speed_mps for lane in builder.lanes]
    assert limits == pytest.approx([10, 10, 10, 15, 10, 15, 15, 10, 5])
    assert [lane.length_m for lane in builder.lanes[::3]] == pytest.approx([40, 20, 40])
    assert [lane.next for lane in builder.lanes[:6]] == [[3], [4], [5], [6], [7], [8]]


# left-hand traffic


def test_left_hand_traffic_is_mirrored():
    widths = [kit.lane(-1, 3.0), kit.lane(-2, 4.0)]
    inside = kit.signals(kit.signal("s", 80, "-", "206")) + kit.crosswalk(hdg=0, length=4, width=10)
    plan = kit.piece(0, 0, 0, 0, 100, kit.tag("arc", curvature=0.01))
    text = kit.document(kit.road(1, 100, plan, kit.section(0, [kit.lane(1, 3.0)], widths), inside=inside, rule="LHT"))
    builder = kit.parse(text)
    left, *right = builder.lanes
    # in the file: the left lane runs along s, the right ones against s
    assert left.points[0] == pytest.approx([0, -1.5]) and left.points[-1, 1] < -40
    assert right[0].points[-1] == pytest.approx([0, 1.5], abs=1e-6)
    assert right[1].points[-1] == pytest.approx([0, 5.0], abs=1e-6)
    assert (right[0].right, right[1].left) == (2, 1)  # mirrored, the inner lane is the left one again
    assert [lane.control for lane in builder.lanes] == [Control.NONE, Control.STOP, Control.STOP]
    assert builder.lanes[1].stop_s == pytest.approx(20 * right[0].length_m / 100, abs=0.05)
    assert kit.walk(builder)[0][1] < 0


def test_a_mirrored_junction_has_the_same_turns():
    right, left = (
        kit.parse(text) for text in (kit.crossroads(), kit.crossroads().replace("<road", '<road rule="LHT"'))
    )
    assert len(right.lanes) == len(left.lanes)
    # the same roads driven the other way, seen in a mirror
    for a, b in zip(right.lanes, left.lanes, strict=True):
        np.testing.assert_allclose(a.points, (b.points * [1, -1])[::-1], atol=0.02)
        assert a.turn == b.turn
        if a.junction:
            first, last = b.points[1] - b.points[0], b.points[-1] - b.points[-2]
            turned = math.atan2(first[0] * last[1] - first[1] * last[0], first @ last)
            assert {JunctionTurn.STRAIGHT: 0, JunctionTurn.LEFT: 1.53, JunctionTurn.RIGHT: -1.5}[
                b.turn
            ] == pytest.approx(turned, abs=0.1)
    assert [len(lane.next) for lane in left.lanes].count(3) == 4


# as a world


def test_a_map_read_from_a_file_can_be_driven_on():
    builder = kit.parse(
        kit.crossroads({a: kit.signals(kit.signal(f"s{a}", 57 if a % 2 == 0 else 3, "+-"[a % 2])) for a in range(4)})
    )
    pick_routes(builder, 8, 0, 100.0)
    world = maps.finish(builder)
    assert len(world.routes) == 8 and len(world.lanes) == 20
    assert (world.routes["length"] > 90).all()
    assert len(world.conflicts) > 0
    assert set(np.unique(world.route_points["control"])) == {int(Control.NONE), int(Control.LIGHT)}


# CARLA's own parser


def nearest(builder: RoadBuilder, transform) -> tuple[int, float, float]:
    """The lane beside a place of CARLA's, among those that run its way; distance in m, difference in heading in rad."""
    at, yaw = np.array([transform.location.x, -transform.location.y]), -math.radians(transform.rotation.yaw)
    best = (NONE, math.inf, 0.0)
    for i, lane in enumerate(builder.lanes):
        a, b = lane.points[:-1], lane.points[1:]
        u = np.clip(((at - a) * (b - a)).sum(1) / ((b - a) ** 2).sum(1), 0, 1)
        far = np.linalg.norm(a + u[:, None] * (b - a) - at, axis=1)
        k = int(np.argmin(far))
        off = abs((math.atan2(*(b[k] - a[k])[::-1]) - yaw + math.pi) % (2 * math.pi) - math.pi)
        if far[k] < best[1] - 1e-3 and off < 0.5:
            best = (i, float(far[k]), off)
    return best


def test_lane_centres_are_those_of_carlas_parser():
    text = kit.cornu_and_more()
    builder, theirs = kit.parse(text), kit.carla_map(text)
    waypoints = [w for w in theirs.generate_waypoints(1.0) if w.lane_width >= NARROW_M]
    assert len(waypoints) == pytest.approx(sum(lane.length_m for lane in builder.lanes), rel=0.1)
    seen = set()
    for w in waypoints:
        lane, far, turned = nearest(builder, w.transform)
        # theirs is the heading of the reference line, ours that of a chord of a lane that may widen
        assert far < 0.03 and turned < 0.12, (w.road_id, w.lane_id, w.s, far, turned)
        seen.add(lane)
    assert seen == set(range(len(builder.lanes)))


def test_what_follows_what_is_as_in_carlas_parser():
    for text in (kit.crossroads(), two_roads("end", "end", "both"), two_roads("start", "end", "both")):
        builder, theirs = kit.parse(text), kit.carla_map(text)
        # a lane by a place in its middle, where no other lane runs the same way
        numbers: dict[tuple[int, int, int], int] = {}
        groups: dict[tuple[int, int, int], list] = {}
        for w in theirs.generate_waypoints(0.5):
            groups.setdefault((w.road_id, w.section_id, w.lane_id), []).append(w)
        for key, found in groups.items():
            numbers[key], far, _ = nearest(builder, found[len(found) // 2].transform)
            assert far < 0.03
        assert sorted(numbers.values()) == list(range(len(builder.lanes)))
        ours = {(i, n) for i, lane in enumerate(builder.lanes) for n in lane.next}
        listed = set()
        for key, found in groups.items():
            last = max(found, key=lambda w: w.s if key[2] < 0 else -w.s)
            for w in last.next(1.0):
                after = numbers[w.road_id, w.section_id, w.lane_id]
                if after != numbers[key]:
                    listed.add((numbers[key], after))
        assert ours == listed


def test_who_lies_beside_whom_is_as_in_carlas_parser():
    text = kit.cornu_and_more()
    builder, theirs = kit.parse(text), kit.carla_map(text)
    for w in theirs.generate_waypoints(7.0):
        if w.lane_width < NARROW_M:
            continue
        lane, _, _ = nearest(builder, w.transform)
        for beside, own in (
            (w.get_left_lane(), builder.lanes[lane].left),
            (w.get_right_lane(), builder.lanes[lane].right),
        ):
            same = beside is not None and str(beside.lane_type) == "Driving" and beside.lane_id * w.lane_id > 0
            assert (own != NONE) == (same and beside.lane_width >= NARROW_M)


def test_the_example_of_the_page_prints_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "bev-opendrive.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(block, {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"(?:^|  )# (.*)$", block, re.MULTILINE)
