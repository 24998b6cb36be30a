"""The grid index of lanes: places near a point, and the lanes of all road users, by hand and against a plain search."""

import math

import numpy as np
import pytest

import tests.kits.xodr_kit as kit
from robotrl.sims.driving import tables
from robotrl.sims.driving.roads import maps
from robotrl.sims.driving.roads.lane_index import (
    BESIDE_M,
    HEADING_M,
    LaneIndex,
    lane_index,
    lanes_near,
    match_agents,
    nearest_lane,
)
from robotrl.sims.driving.roads.lanes import NONE, RoadBuilder
from robotrl.sims.driving.roads.routes import pick_routes


def two_lanes() -> RoadBuilder:
    """Lane 0 along x at y = 0 from 0 to 100, lane 1 at y = 3.5 the other way; lane 2 goes on from lane 0."""
    builder = RoadBuilder("two")
    builder.lane(np.array([[0.0, 0.0], [100.0, 0.0]]), 10.0, 3.0)
    builder.lane(np.array([[100.0, 3.5], [0.0, 3.5]]), 10.0, 3.0)
    builder.lane(np.array([[100.0, 0.0], [150.0, 0.0]]), 10.0, 3.0)
    builder.lane(np.array([[100.0, 0.0], [110.0, 0.0], [110.0, -20.0]]), 10.0, 3.0)
    builder.follow(0, 3, 2)
    return builder


def agents(*rows: tuple[int, float, float, float]) -> np.ndarray:
    out = np.zeros(len(rows), tables.AGENT)
    for row, (kind, x, y, yaw) in zip(out, rows, strict=True):
        row["kind"], row["x"], row["y"], row["cos"], row["sin"] = kind, x, y, math.cos(yaw), math.sin(yaw)
        row["lane"], row["s"], row["d"], row["next"] = 77, 7.0, 7.0, 77
    return out


def matched(index: LaneIndex, *rows: tuple[int, float, float, float], first: int = 0) -> list[tuple[float, ...]]:
    found, row = agents(*rows), np.zeros(1, tables.MAP)
    row["lane"] = first
    match_agents(found, row[0], index)
    return [
        (int(a["lane"]), round(float(a["s"]), 3) + 0.0, round(float(a["d"]), 3) + 0.0, int(a["next"])) for a in found
    ]


def test_a_place_has_distance_along_offset_and_heading():
    index = lane_index(two_lanes())
    first, second = lanes_near(index, (40.3, 1.0), 0.1, 3.0)
    assert first == pytest.approx((0, 40.3, 1.0, 0.1, 1.0))
    # driven the other way, left of the lane's centre is towards smaller y
    assert second == pytest.approx((1, 59.7, 2.5, 0.1 - math.pi, 2.5))
    assert [place.lane for place in lanes_near(index, (40.3, 3.0), 0.1, 4.0)] == [0, 1]
    assert [place.lane for place in lanes_near(index, (40.3, 3.0), None, 4.0)] == [1, 0]
    assert [place.lane for place in lanes_near(index, (40.3, 3.0), math.pi, 4.0)] == [1, 0]
    assert lanes_near(index, (40.3, 3.0), None, 4.0)[0].heading_rad == 0.0


def test_a_point_beyond_the_end_is_as_far_as_the_end():
    index = lane_index(two_lanes())
    (place,) = lanes_near(index, (153.0, 4.0), None, 6.0)
    assert place == pytest.approx((2, 50.0, 4.0, 0.0, 5.0))
    assert lanes_near(index, (153.0, 4.0), None, 4.9) == []
    assert lanes_near(index, (1e6, -1e6), None, 100.0) == []
    far = nearest_lane(index, (-30.0, 403.5))
    assert (far.lane, far.s_m, far.distance_m) == pytest.approx((1, 100.0, math.hypot(30.0, 400.0)))


def test_a_finished_map_has_the_same_index():
    builder = kit.parse(kit.crossroads())
    pick_routes(builder, 1, 0, 50.0)
    before, after = lane_index(builder), lane_index(maps.finish(builder))
    for name in before.pieces.dtype.names:
        np.testing.assert_allclose(before.pieces[name], after.pieces[name], atol=1e-3)
    for name in ("first", "straight", "rows", "columns", "x0", "y0", "reach"):
        np.testing.assert_allclose(getattr(before, name), getattr(after, name), atol=1e-3)


def test_road_users_get_lane_position_offset_and_the_straightest_successor():
    index = lane_index(two_lanes())
    car, cyclist, person, obstacle = tables.CAR, tables.CYCLIST, tables.PEDESTRIAN, tables.OBSTACLE
    assert matched(
        index,
        (car, 40.25, 0.5, 0.2),
        (cyclist, 40.25, 3.0, math.pi - 0.2),
        (obstacle, 120.0, -1.0, 0.0),
        (person, 40.25, 0.5, 0.0),
        (0, 40.25, 0.5, 0.0),
        (car, 40.25, 0.5, 0.5 * math.pi),
        (car, 40.25, -2.4, 0.0),
        (car, 40.25, -2.6, 0.0),
        (car, 40.25, 0.0, math.radians(59)),
        (car, 40.25, 0.0, math.radians(61)),
        (car, math.nan, 0.0, 0.0),
        (car, -1e9, 0.0, 0.0),
        first=100,
    ) == [
        (100, 40.25, 0.5, 102),
        (101, 59.75, 0.5, -1),
        (102, 20.0, -1.0, -1),
        *[(-1, 0.0, 0.0, -1)] * 3,
        (100, 40.25, -2.4, 102),
        (-1, 0.0, 0.0, -1),
        (100, 40.25, 0.0, 102),
        *[(-1, 0.0, 0.0, -1)] * 3,
    ]


def test_in_a_junction_the_heading_decides_between_lanes_that_cross_or_part():
    builder = kit.parse(kit.crossroads())
    index = lane_index(builder)
    for number, lane in enumerate(builder.lanes):
        if lane.junction:
            middle = len(lane.points) // 2
            (x, y), step = lane.points[middle], lane.points[middle + 1] - lane.points[middle - 1]
            yaw = math.atan2(step[1], step[0])
            ((found, _, d, after),) = matched(index, (tables.CAR, x, y, yaw))
            assert (found, after) == (number, lane.next[0]) and abs(d) < 0.02


def test_the_kernel_finds_the_same_as_a_plain_search():
    builder = kit.parse(kit.crossroads())
    index = lane_index(builder)
    draw = np.random.default_rng(3)
    rows = [
        (tables.CAR, *draw.uniform(-80, 80, 2) * [1.0, draw.uniform(0, 1)], draw.uniform(-4, 4)) for _ in range(400)
    ]
    on_lanes = 0
    for (_, x, y, yaw), (lane, s, d, _) in zip(rows, matched(index, *rows), strict=True):
        best = (math.inf, NONE, 0.0, 0.0)
        for number, record in enumerate(builder.lanes):
            a, step = record.points[:-1], np.diff(record.points, axis=0)
            size = np.linalg.norm(step, axis=1)
            unit = step / size[:, None]
            u = np.clip((([x, y] - a) * unit).sum(1), 0, size)
            off = [x, y] - a - u[:, None] * unit
            turned = np.cos(np.arctan2(unit[:, 1], unit[:, 0]) - yaw)
            far = np.linalg.norm(off, axis=1)
            cost = far**2 + 2 * HEADING_M**2 * (1 - turned)
            cost[(turned < 0.5) | (far > record.width_m / 2 + BESIDE_M)] = math.inf
            k = int(cost.argmin())
            if cost[k] < best[0] - 1e-5:
                left = unit[k, 0] * (y - a[k, 1]) - unit[k, 1] * (x - a[k, 0])
                best = (cost[k], number, k * size[0] + u[k], left)
        assert lane == best[1] and (lane == NONE or (s, d) == pytest.approx(best[2:], abs=0.01))
        on_lanes += lane != NONE
    assert 40 < on_lanes < 400
