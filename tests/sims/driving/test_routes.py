"""Routes picked from a road network."""

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.kits.xodr_kit as kit
from robotrl.errors import ConfigError
from robotrl.sims.driving.opendrive import reader
from robotrl.sims.driving.roads import maps
from robotrl.sims.driving.roads.lanes import RoadBuilder
from robotrl.sims.driving.roads.planner import route_length_m
from robotrl.sims.driving.roads.routes import pick_routes, split_rows, warn_if_shared


def town(size: int = 4, block: float = 40.0) -> RoadBuilder:
    """One-way streets around blocks: from each corner a lane east (around) and a lane north (around)."""
    builder = RoadBuilder("town")
    ways = {}
    for x in range(size):
        for y in range(size):
            for dx, dy in ((1, 0), (0, 1)):
                points = [(x * block, y * block), ((x + dx) * block, (y + dy) * block)]
                ways[x, y, dx, dy] = builder.lane(points, 10.0, junction=(x + y) % 5 == 4)
    for (x, y, dx, dy), lane in ways.items():
        for turn in ((1, 0), (0, 1)):
            builder.follow(lane, ways[(x + dx) % size, (y + dy) % size, *turn])
    return builder


def chosen(builder: RoadBuilder, count: int, seed: int, length_m: float):
    builder.routes = []
    pick_routes(builder, count, seed, length_m)
    return builder.routes


def test_routes_follow_the_lanes_for_the_length_asked_for():
    builder = town()
    routes = chosen(builder, 50, 3, 230.0)
    assert len({route.lanes for route in routes}) == 50
    for route in routes:
        for before, after in itertools.pairwise(route.lanes):
            assert after in builder.lanes[before].next
        assert len(set(route.lanes)) == len(route.lanes)
        lengths = [builder.lanes[i].length_m for i in route.lanes]
        covered = sum(lengths) - route.start_s - (lengths[-1] - route.end_s)
        ends_late = builder.lanes[route.lanes[-2]].junction
        assert covered == pytest.approx(230.0) or (covered > 230.0 and ends_late)
        assert not builder.lanes[route.lanes[0]].junction and not builder.lanes[route.lanes[-1]].junction
        assert 0 <= route.start_s <= lengths[0] and 0 <= route.end_s <= lengths[-1]


def test_the_seed_alone_decides():
    builder = town()
    assert chosen(builder, 20, 7, 200.0) == chosen(town(), 20, 7, 200.0)
    assert chosen(builder, 20, 7, 200.0) != chosen(builder, 20, 8, 200.0)


def test_starts_are_spread_before_any_is_taken_again():
    builder = town()
    streets = [i for i, lane in enumerate(builder.lanes) if not lane.junction]
    assert len({route.lanes[0] for route in chosen(builder, len(streets), 0, 100.0)}) == len(streets)


def test_routes_are_added_to_those_that_are_there():
    builder = town()
    builder.route([0])
    pick_routes(builder, 3, 0, 100.0)
    assert len(builder.routes) == 4 and builder.routes[0].lanes == (0,)


def test_dead_ends_are_left_again():
    # a comb: each tooth is a dead end, the back goes on
    builder = RoadBuilder("comb")
    back = [builder.lane([(20 * i, 0), (20 * i + 20, 0)], 10.0) for i in range(30)]
    for i, (lane, after) in enumerate(itertools.pairwise(back)):
        builder.follow(lane, builder.lane([(20 * i + 20, 0), (20 * i + 20, 15)], 10.0), after)
    routes = chosen(builder, 5, 0, 400.0)
    assert all(len(route.lanes) >= 20 for route in routes)


def test_short_lanes_make_routes_too():
    builder = RoadBuilder("short")
    lanes = [builder.lane([(3 * i, 0), (3 * i + 3, 0)], 10.0) for i in range(10)]
    for lane, after in itertools.pairwise(lanes):
        builder.follow(lane, after)
    (route,) = chosen(builder, 1, 0, 25.0)
    assert route.start_s == 1.5 and route.end_s <= 3.0


def test_a_route_ends_behind_the_junction():
    builder = reader.parse(kit.crossroads(), "x")
    for route in chosen(builder, 12, 0, 60.0):
        assert len(route.lanes) == 3 and route.end_s == 0.0


def lengths_of(builder: RoadBuilder) -> list[float]:
    return [route_length_m(builder, route) for route in builder.routes]


def test_a_crossroads_has_the_routes_that_it_has():
    """Four arms of 60 m, junction between: 12 ways over it of more than 100 m; and 4 out of it that end after 55 m."""
    builder = reader.parse(kit.crossroads(), "x")
    routes = chosen(builder, 64, 0, 100.0)
    assert len({route.lanes for route in routes}) == 16
    lengths = lengths_of(builder)
    assert [n for n in lengths if n < 100.0] == pytest.approx([55.0] * 4)
    # over it: as long as asked for, or to the beginning of the arm behind
    assert all(length == pytest.approx(100.0) for length in lengths[:12])
    # the same, in another order, with fewer asked for: the longer ones first
    assert len(chosen(builder, 12, 0, 100.0)) == 12 and min(lengths_of(builder)) >= 100.0


def test_routes_are_shorter_where_nothing_is_longer():
    builder = reader.parse(kit.crossroads(), "x")
    routes = chosen(builder, 64, 0, 500.0)
    # all ways over the junction, to the ends of the arms; the ways out of it alone are less than half as long
    assert len(routes) == 12 and all(len(route.lanes) == 3 for route in routes)
    assert min(lengths_of(builder)) > 55 + 60 + 15 and max(lengths_of(builder)) == 55 + 60 + 30


def test_a_loop_is_closed_more_than_once():
    """A ring of two half circles; 157 m around."""
    builder = RoadBuilder("ring")
    angles = np.linspace(0, np.pi, 40)
    halves = [
        builder.lane(25 * np.stack([np.cos(angles + turn), np.sin(angles + turn)], axis=1), 10.0)
        for turn in (0.0, np.pi)
    ]
    for before, after in (halves, halves[::-1]):
        builder.follow(before, after)
    routes = chosen(builder, 64, 0, 400.0)
    assert sorted(route.lanes for route in routes) == [(0, 1) * 3, (1, 0) * 3]
    assert lengths_of(builder) == pytest.approx([400.0] * 2)
    driven = maps.finish(builder)
    assert (driven.routes["length"] >= 398).all()


def test_one_lane_that_follows_itself_is_driven_round_and_round():
    builder = RoadBuilder("circle")
    angles = np.linspace(0, 2 * np.pi, 80)
    lane = builder.lane(10 * np.stack([np.cos(angles), np.sin(angles)], axis=1), 10.0)
    builder.follow(lane, lane)
    (route,) = chosen(builder, 64, 0, 200.0)
    assert route.lanes == (lane,) * 4  # 57.8 m to its end, then three times 62.8 m


def test_a_long_road_has_routes_one_after_another():
    builder = RoadBuilder("road")
    builder.lane([(0, 0), (1000, 0)], 20.0)
    routes = chosen(builder, 64, 0, 200.0)
    assert sorted(route.start_s for route in routes) == [5.0, 205.0, 405.0, 605.0]
    assert lengths_of(builder) == pytest.approx([200.0] * 4)


def test_a_map_that_is_a_junction_alone_is_driven_within_it():
    builder = RoadBuilder("junction")
    builder.lane([(0, 0), (30, 0)], 10.0, junction=True)
    (route,) = chosen(builder, 64, 0, 200.0)
    assert route.lanes == (0,) and lengths_of(builder)[0] == pytest.approx(25.0)


@pytest.mark.parametrize("length", [11.5, 14.0, 40.0])
def test_the_shortest_road_is_driven(length):
    builder = RoadBuilder("lane")
    builder.lane([(0, 0), (length, 0)], 10.0)
    chosen(builder, 64, 0, 200.0)
    assert maps.finish(builder).routes["length"][0] >= 10.0


def test_a_map_without_a_way_is_refused_by_the_option_s_name():
    builder = RoadBuilder("stub")
    builder.lane([(0, 0), (8, 0)], 10.0)
    message = r"'stub': its longest way along lanes is 8\.0 m: expected 11 m or more \(option route_length_m"
    with pytest.raises(ConfigError, match=message):
        pick_routes(builder, 64, 0, 200.0)
    assert not builder.routes


@given(st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_any_network_with_a_way_is_driven(seed):
    """Random graphs of streets, loops and dead ends: routes are real ways, different, and as long as they may be."""
    draw = np.random.default_rng(seed)
    builder = RoadBuilder("net")
    count = int(draw.integers(2, 12))
    for _ in range(count):
        builder.lane([(0, 0), (float(draw.uniform(12, 90)), 0)], 10.0, junction=bool(draw.random() < 0.3))
    for lane in range(count):
        builder.follow(lane, *(int(n) for n in draw.integers(0, count, draw.integers(0, 3))))
    asked = float(draw.choice([30.0, 200.0]))
    routes = chosen(builder, 20, 0, asked)
    assert 1 <= len(routes) <= 20 and len({(route.lanes, route.start_s) for route in routes}) == len(routes)
    lengths = lengths_of(builder)
    for route, length in zip(routes, lengths, strict=True):
        for before, after in itertools.pairwise(route.lanes):
            assert after in builder.lanes[before].next
        last = builder.lanes[route.lanes[-1]].length_m
        full = length >= asked - 1e-6
        assert full or (length >= 0.5 * min(max(lengths), asked) - 1e-6 and route.end_s == pytest.approx(last))
        assert not full or length == pytest.approx(asked) or route.end_s == 0.0
    again = RoadBuilder("net")
    again.lanes = builder.lanes
    assert chosen(again, 20, 0, asked) == routes


def test_too_few_routes_for_the_splits_are_shared_and_said():
    assert split_rows(1) == {"train": (0, 1), "val": (0, 1), "test": (0, 1)}
    assert split_rows(2) == {"train": (0, 2), "val": (0, 2), "test": (0, 2)}
    with pytest.warns(UserWarning, match="map 'x' has 2 routes, fewer than one for each split: train, val and test"):
        warn_if_shared("x", 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_shared("x", 3)


@pytest.mark.parametrize(
    ("asked", "field"),
    [((0, 0, 10.0), "count"), ((1, -1, 10.0), "seed"), ((1, 0, 0.0), "length_m"), ((1, 0, float("nan")), "length_m")],
)
def test_arguments_out_of_range_are_named(asked, field):
    with pytest.raises(ConfigError, match=f"{field} is"):
        pick_routes(town(), *asked)
