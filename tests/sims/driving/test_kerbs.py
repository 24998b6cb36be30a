"""Places where people wait at a crosswalk: beside the lanes, or on an island."""

from __future__ import annotations

import numpy as np
import pytest

from robotrl.sims.bev import procedural
from robotrl.sims.driving.roads import maps
from robotrl.sims.driving.roads.kerbs import from_kerb_to_kerb
from robotrl.sims.driving.roads.lanes import Crosswalk, RoadBuilder


def road(*middles: float, width: float = 3.5) -> RoadBuilder:
    """Lanes along x, by the y of their middles."""
    builder = RoadBuilder("road")
    for y in middles:
        builder.lane(np.array([[0.0, y], [200.0, y]]), 10.0, width)
    builder.route([0])
    return builder


def ends(builder: RoadBuilder, low: float, high: float, height: float = 0.0) -> tuple[float, float]:
    """y of the places to wait at a crosswalk at x = 100, drawn from `low` to `high`."""
    builder.crosswalk((100.0, low), (100.0, high), 3.0, height)
    heights = [np.zeros(len(lane.points)) for lane in builder.lanes]
    (walk,) = from_kerb_to_kerb(builder, heights)
    assert walk.start[0] == walk.end[0] == 100.0 and walk.width_m == 3.0
    return walk.start[1], walk.end[1]


def test_ends_on_a_lane_are_moved_to_its_edge() -> None:
    """Two lanes from -3.5 to 3.5 m: half a metre beyond, to the step of 0.1 m."""
    assert ends(road(-1.75, 1.75), -3.4, 3.4) == pytest.approx((-4.0, 4.0), abs=0.11)
    assert ends(road(-1.75, 1.75), -3.4, 5.0) == pytest.approx((-4.0, 5.0), abs=0.11)
    assert ends(road(-1.75, 1.75), 3.4, -3.4) == pytest.approx((4.0, -4.0), abs=0.11)


@pytest.mark.parametrize("edge", [3.5, 3.6, 5.0])
def test_ends_beside_the_lanes_stay(edge: float) -> None:
    assert ends(road(-1.75, 1.75), -edge, edge) == (-edge, edge)


def test_an_island_between_carriageways_is_a_place_to_wait() -> None:
    """Carriageways from 2 to 5.5 m on either side of an island; the strip is drawn on one of them."""
    assert ends(road(-3.75, 3.75), 2.1, 5.4) == pytest.approx((1.5, 6.0), abs=0.11)
    # a gap of half a metre is none: the end moves across the other carriageway
    assert ends(road(-2.0, 2.0), 0.3, 3.7) == pytest.approx((-4.25, 4.25), abs=0.11)


def test_an_end_without_any_place_to_wait_stays() -> None:
    builder = road(*np.arange(-40.0, 40.0, 3.5))
    assert ends(builder, -3.0, 3.0) == (-3.0, 3.0)


def test_a_lane_on_another_level_is_no_obstacle() -> None:
    assert ends(road(-1.75, 1.75), -3.4, 3.4, height=6.0) == (-3.4, 3.4)


def test_cars_give_way_on_every_lane_that_people_cross_then() -> None:
    """The stripes end between two lanes of a carriageway; people wait beyond the second, which is crossed, too."""
    builder = road(-1.75, 1.75)
    builder.crosswalk((100.0, -5.0), (100.0, -0.1), 3.0)
    finished = maps.finish(builder)
    assert finished.lanes["crossings"].tolist() == [1, 1]
    assert finished.walks["y1"][0] == pytest.approx(4.0, abs=0.11)


@pytest.mark.parametrize("family", ["straight", "signal", "crossing"])
def test_crosswalks_of_the_procedural_roads_stay(family: str) -> None:
    found: list[Crosswalk] = []
    for seed in range(20):
        builder = procedural.layout(family, seed)
        found += builder.crosswalks
        assert from_kerb_to_kerb(builder, [np.zeros(len(x.points)) for x in builder.lanes]) == builder.crosswalks
    assert found
