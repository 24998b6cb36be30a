"""The route planner: ways and costs by hand, waypoints that lie on several lanes, and its errors."""

import itertools
import math

import numpy as np
import pytest

import tests.kits.xodr_kit as kit
from robotrl.errors import ConfigError
from robotrl.sims.driving.roads import maps
from robotrl.sims.driving.roads.lanes import RoadBuilder, RouteChoice
from robotrl.sims.driving.roads.planner import RoutePlanner, lane_graph, plan_route, route_length_m

SLOW = kit.tag("speed", sOffset=0, max=5)
"""A limit of its own, by which a section is another lane than the one before."""


def three_lanes(length: float = 300.0) -> RoadBuilder:
    """Lanes 0 to 2 from left to right along x, at y = -1.75, -5.25 and -8.75."""
    return kit.parse(kit.document(kit.straight(length=length, right=[kit.lane(-1), kit.lane(-2), kit.lane(-3)])))


def grid(count: int) -> RoadBuilder:
    """One-way streets 80 m apart, of alternating directions, that meet in points: planning only, without turn lanes."""
    builder = RoadBuilder("grid")
    starts: dict[tuple[int, int], list[int]] = {}
    ends: dict[tuple[int, int], list[int]] = {}
    for i, j in itertools.product(range(count), range(count - 1)):
        for a, b, forth in (((i, j), (i, j + 1), i % 2 == 0), ((j, i), (j + 1, i), i % 2 == 1)):
            first, last = (a, b) if forth else (b, a)
            lane = builder.lane(80.0 * np.array([first, last], float), 10.0)
            starts.setdefault(first, []).append(lane)
            ends.setdefault(last, []).append(lane)
    for crossing, lanes in ends.items():
        for lane in lanes:
            builder.follow(lane, *starts.get(crossing, ()))
    return builder


def test_the_graph_has_a_way_for_each_lane_that_may_be_changed_to():
    sections = [
        kit.section(0, right=[kit.lane(-1, after=-1), kit.lane(-2, after=-2)]),
        kit.section(40, right=[kit.lane(-1, before=-1, inside=SLOW), kit.lane(-2, before=-2)]),
    ]
    builder = kit.parse(kit.document(kit.road(1, 100, kit.piece(0, 0, 0, 0, 100), sections)))
    graph = lane_graph(builder, change_cost_m=25.0)
    assert graph.lengths_m.tolist() == [40, 40, 60, 60]
    assert graph.first.tolist() == [0, 2, 4, 4, 4]
    ways = [(int(t), int(c), float(m)) for t, c, m in zip(graph.to, graph.changes, graph.cost_m, strict=True)]
    assert ways == [(2, 0, 40), (3, -1, 65), (3, 0, 40), (2, 1, 65)]
    assert lane_graph(builder, math.inf).to.tolist() == [2, 3]


def test_a_way_through_a_junction_takes_the_lane_that_turns():
    builder = kit.parse(kit.crossroads())
    choice = plan_route(builder, [(60.0, 1.75), (0.5, 60.0)])
    begin, turn, end = choice.lanes
    assert builder.lanes[turn].junction and choice.change_s == ()
    assert (choice.start_s, choice.end_s) == pytest.approx((15.0, 45.0))
    assert builder.lanes[begin].next.count(turn) == 1 and builder.lanes[turn].next == [end]
    assert route_length_m(builder, choice) == pytest.approx(45 + 13.25 * math.pi / 2 + 45, abs=0.05)


def test_overlapping_lanes_of_a_waypoint_are_told_apart_by_the_whole_way():
    builder = kit.parse(kit.crossroads())
    planner = RoutePlanner(builder)
    # just inside the junction, where three lanes begin at the same place
    for goal in ((0.5, 60.0), (-60.0, 1.75), (-1.75, -60.0)):
        for middle in ((15.0, 1.75), (14.5, 1.75)):
            choice = planner.plan([(60.0, 1.75), middle, goal])
            assert choice == planner.plan([(60.0, 1.75), goal])


def test_a_waypoint_between_opposite_lanes_may_lie_on_either_unless_it_has_a_heading():
    builder = kit.parse(kit.crossroads())
    there, back = plan_route(builder, [(60.0, 0.0), (20.0, 0.0)]), plan_route(builder, [(20.0, 0.0), (60.0, 0.0)])
    assert there.lanes != back.lanes
    yaws = [math.pi, math.pi]
    assert plan_route(builder, [(60.0, 0.0), (20.0, 0.0)], yaws) == there
    with pytest.raises(ConfigError, match=r"waypoints\[1\] is \(20.0, 0.0\): no way leads there from waypoints\[0\]"):
        plan_route(builder, [(60.0, 0.0), (20.0, 0.0)], [0.0, math.pi])


def test_heights_are_ignored():
    builder = three_lanes()
    assert plan_route(builder, [(10, -1.75, 5.0), (90, -1.75, 300.0)]) == plan_route(
        builder, [(10, -1.75), (90, -1.75)]
    )


def test_lane_changes_lie_between_the_waypoints_that_ask_for_them():
    builder = three_lanes()
    assert plan_route(builder, [(10, -1.75), (200, -8.75)]) == RouteChoice(
        (0, 1, 2), 10.0, 200.0, pytest.approx((42.5, 137.5))
    )
    # dense waypoints that jump to the other lane
    points = [(x, -8.75 if x < 100 else -5.25) for x in range(40, 200, 2)]
    choice = plan_route(builder, points)
    assert choice == RouteChoice((2, 1), 40.0, 198.0, pytest.approx((84.0,)))
    builder.route(*choice)
    route = maps.finish(builder).route_points
    assert route["y"][[0, 40, 59, 80]] == pytest.approx([-8.75, -8.75, -7.0, -5.25], abs=0.1)
    # a jump at the beginning: the change begins there
    assert plan_route(builder, [(10, -1.75), (12, -5.25), (90, -5.25)]).change_s == pytest.approx((10.0,))


def test_positions_of_changes_are_checked():
    builder = three_lanes()
    with pytest.raises(ConfigError, match=r"2 lane changes and 1 positions change_s: expected one for each, or none"):
        builder.route((0, 1, 2), 5.0, 250.0, (50.0,))


def test_a_lane_change_costs_way_and_is_not_for_short_lanes():
    far = kit.section(0, right=[kit.lane(-1, after=-1), kit.lane(-2, after=-2)])
    for long, expected in ((30.0, 2), (4.0, 0)):
        sections = [far, kit.section(long, right=[kit.lane(-1, before=-1, inside=SLOW), kit.lane(-2, before=-2)])]
        builder = kit.parse(kit.document(kit.road(1, 200, kit.piece(0, 0, 0, 0, 200), sections)))
        graph = lane_graph(builder)
        assert int((graph.changes != 0).sum()) == expected
    # no change where the line is solid
    solid = kit.tag("roadMark", sOffset=0, type="solid")
    builder = kit.parse(kit.document(kit.straight(right=[kit.lane(-1, inside=solid), kit.lane(-2)])))
    with pytest.raises(ConfigError, match="no way leads there"):
        plan_route(builder, [(5, -1.75), (90, -5.25)])


def test_on_a_ring_the_way_may_pass_its_beginning():
    plan = kit.piece(0, 0, 0, 0, 40 * math.pi, kit.tag("arc", curvature=0.05))
    link = kit.joint("predecessor", "road", 1, "end") + kit.joint("successor", "road", 1, "start")
    ring = kit.road(1, 40 * math.pi, plan, kit.section(0, right=[kit.lane(-1, before=-1, after=-1)]), link)
    builder = kit.parse(kit.document(ring))
    whole = builder.lanes[0].length_m
    points = [builder.lanes[0].points[i] for i in (100, 20, 60)]
    choice = plan_route(builder, points)
    assert choice.lanes == (0, 0)
    step = whole / (len(builder.lanes[0].points) - 1)
    assert route_length_m(builder, choice) == pytest.approx(whole - 40 * step, abs=0.01)


def test_ways_on_a_grid_are_the_shortest():
    builder = grid(7)
    planner = RoutePlanner(builder)
    lengths = np.full((len(builder.lanes),) * 2, np.inf)
    for i, lane in enumerate(builder.lanes):
        lengths[i, lane.next] = lane.length_m
    for k in range(len(lengths)):  # Floyd and Warshall
        lengths = np.minimum(lengths, lengths[:, k, None] + lengths[None, k])
    draw = np.random.default_rng(0)
    for _ in range(60):
        a, b = (int(i) for i in draw.integers(0, len(builder.lanes), 2))
        points = [builder.lanes[a].points[30], builder.lanes[b].points[50]]
        expected = 20.0 if a == b else float(lengths[a, b]) + 20.0
        if math.isinf(expected):
            with pytest.raises(ConfigError, match="no way leads there"):
                planner.plan(points)
        else:
            assert route_length_m(builder, planner.plan(points)) == pytest.approx(expected)


def test_work_is_in_proportion_to_the_way():
    """A short way in a large map looks at few lanes."""
    builder = grid(30)
    planner = RoutePlanner(builder)
    calls = 0

    class Counted(list):
        def __getitem__(self, key):
            nonlocal calls
            calls += 1
            return super().__getitem__(key)

    planner._ways = Counted(planner._ways)
    assert len(planner.plan([(1160, 1120), (1200, 1160)]).lanes) < 8
    assert calls < 120 and len(builder.lanes) > 1700


@pytest.mark.parametrize(
    ("waypoints", "yaws", "message"),
    [
        (
            [(10, -1.75), (90, 30)],
            None,
            r"waypoints\[1\] is \(90.0, 30.0\), 31.8 m from the nearest lane of map 'test'",
        ),
        ([(90, -1.75), (10, -1.75)], None, r"waypoints\[1\] is \(10.0, -1.8\): no way leads there from waypoints\[0\]"),
        ([(10, -1.75), (18, -1.75)], None, r"waypoints make a route of 8.0 m on map 'test': expected 10 m or more"),
        ([(10, -1.75)], None, r"waypoints have shape \(1, 2\): expected two or more rows of 2 or 3 finite numbers"),
        ([10, -1.75], None, r"waypoints have shape \(2,\)"),
        ([(10, math.nan), (20, 0)], None, r"waypoints have shape \(2, 2\)"),
        ([(10, -1.75), (90, -1.75)], [0.0], r"yaws have shape \(1,\): expected 2 finite numbers"),
    ],
)
def test_errors_name_the_waypoint(waypoints, yaws, message):
    with pytest.raises(ConfigError, match=message):
        plan_route(three_lanes(), waypoints, yaws)


def test_the_tolerance_is_checked():
    with pytest.raises(ConfigError, match="tolerance_m"):
        plan_route(three_lanes(), [(10, 0), (90, 0)], tolerance_m=0.0)
    plan_route(three_lanes(), [(10, 30), (90, 0)], tolerance_m=40.0)
