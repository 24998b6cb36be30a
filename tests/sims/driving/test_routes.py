"""Routes picked from a road network."""

import itertools

import pytest

import tests.kits.xodr_kit as kit
from robotrl.errors import ConfigError
from robotrl.sims.driving.opendrive import reader
from robotrl.sims.driving.roads.lanes import RoadBuilder
from robotrl.sims.driving.roads.routes import pick_routes


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


def test_too_many_or_too_long_routes_are_refused_with_what_there_is():
    builder = reader.parse(kit.crossroads(), "x")
    builder.route([1])
    with pytest.raises(ConfigError, match=r"'x': found 12 different routes of 100 m .*: expected 13; ask for fewer or"):
        pick_routes(builder, 13, 0, 100.0)
    with pytest.raises(ConfigError, match=r"found 0 different routes of 500 m \(the longest way found was 14\d m\)"):
        pick_routes(builder, 1, 0, 500.0)
    assert len(builder.routes) == 1


@pytest.mark.parametrize(
    ("asked", "field"),
    [((0, 0, 10.0), "count"), ((1, -1, 10.0), "seed"), ((1, 0, 0.0), "length_m"), ((1, 0, float("nan")), "length_m")],
)
def test_arguments_out_of_range_are_named(asked, field):
    with pytest.raises(ConfigError, match=f"{field} is"):
        pick_routes(town(), *asked)
