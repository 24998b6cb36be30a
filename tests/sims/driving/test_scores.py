"""Scores of driven routes: examples worked by hand, and properties that every version has."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robotrl.errors import ConfigError
from robotrl.sims.driving.scores import (
    COUNTS,
    SCORES,
    ClosedLoop,
    Route,
    bench2drive,
    by_map_speed,
    leaderboard_2_0,
    leaderboard_2_1,
    nuplan_closed_loop,
    summary,
)

CLEAN = Route(1.0)
VERSIONS = pytest.mark.parametrize("version", SCORES)
routes = st.builds(
    Route,
    st.floats(0, 1),
    **{name: st.integers(0, 5) for name in COUNTS},
    min_speed=st.lists(st.floats(0, 3), max_size=4).map(tuple),
    outside_lanes=st.floats(0, 1),
)


@VERSIONS
def test_a_clean_route_has_full_marks(version):
    assert SCORES[version](CLEAN) == (1.0, 1.0, 100.0)


@pytest.mark.parametrize(
    ("name", "multiplied", "added"),
    [
        ("pedestrians", 0.5, 1.0),
        ("vehicles", 0.6, 0.7),
        ("static", 0.65, 0.6),
        ("red_lights", 0.7, 0.4),
        ("stop_signs", 0.8, 0.25),
        ("scenario_timeouts", 0.7, 0.4),
        ("emergency_yields", 0.7, 0.4),
    ],
)
def test_each_event_costs_what_is_published(name, multiplied, added):
    for count in (1, 2):
        route = replace(CLEAN, **{name: count})
        assert leaderboard_2_0(route).penalty == pytest.approx(multiplied**count)
        assert bench2drive(route).penalty == pytest.approx(multiplied**count)
        assert leaderboard_2_1(route).penalty == pytest.approx(1 / (1 + added * count))


@pytest.mark.parametrize(
    ("speeds", "penalty"),
    [
        ((0.8922, 0.7946), 0.908033),
        ((0.9339, 0.1975), 0.744194),
        ((0.6871, 0.6652), 0.815118),
        ((0.4258,), 0.82774),
        ((0.2138,), 0.76414),
    ],
)
def test_slowness_in_2_0_is_that_of_published_results(speeds, penalty):
    """Penalties that the leaderboard wrote for routes whose only infractions were the speeds beside them."""
    assert leaderboard_2_0(replace(CLEAN, min_speed=speeds)).penalty == pytest.approx(penalty, abs=1e-6)


def test_slowness_in_the_other_versions():
    slow = replace(CLEAN, min_speed=(0.25, 1.7, 0.5))
    assert leaderboard_2_1(slow).penalty == pytest.approx(1 / (1 + 0.4 * (0.75 + 0.5)))
    assert bench2drive(slow).penalty == 1.0
    assert leaderboard_2_0(replace(CLEAN, min_speed=(1.0, 2.5))).penalty == 1.0


def test_the_rule_of_before_stays_computable():
    """Speeds over those around cost nothing; over those of all cars on the map they are a quarter."""
    route = replace(CLEAN, min_speed=(1.0, 1.1), min_speed_map=(0.25, 0.5))
    assert leaderboard_2_0(route).penalty == 1.0
    assert leaderboard_2_0(by_map_speed(route)).penalty == pytest.approx((1 - 0.3 * 0.75) * (1 - 0.3 * 0.5))
    assert by_map_speed(CLEAN) == CLEAN


def test_several_events_together():
    route = Route(0.8, vehicles=1, red_lights=2, outside_lanes=0.25)
    assert leaderboard_2_0(route).driving == pytest.approx(80 * 0.6 * 0.49 * 0.75)
    assert leaderboard_2_1(route).driving == pytest.approx(80 * 0.75 / (1 + 0.7 + 0.8))


def test_the_mean_score_is_no_product_of_means():
    both = [Route(1.0, pedestrians=1), Route(0.5)]
    found = summary(both, "leaderboard-2.0")
    assert found.driving.value == pytest.approx((50 + 50) / 2)
    assert (found.completion, found.penalty) == (0.75, 0.75)
    assert found.driving.value != pytest.approx(100 * found.completion * found.penalty)


@VERSIONS
def test_what_broke_down_counts_as_a_failure(version):
    found = summary([CLEAN, replace(CLEAN, broken=True)], version)
    assert (found.driving.value, found.success.value, found.broken) == (50.0, 0.5, 1)


def test_success_and_strict_success():
    slow, outside, short = (
        replace(CLEAN, min_speed=(0.9,)),
        replace(CLEAN, outside_lanes=0.01),
        replace(CLEAN, completion=0.99),
    )
    assert [route.success for route in (CLEAN, slow, outside, short)] == [True, True, False, False]
    assert [route.strict_success for route in (CLEAN, slow, outside, short)] == [True, False, False, False]
    found = summary([CLEAN, slow, outside, short], "bench2drive")
    assert (found.success.value, found.strict_success.value, found.success.episodes) == (0.5, 0.25, 4)
    assert found.success.low < 0.5 < found.success.high
    assert found.efficiency == pytest.approx(0.9)


def test_collisions_are_split_by_fault():
    found = summary([Route(0.5, vehicles=2, at_fault=1), Route(1.0, static=1, at_fault=1)], "leaderboard-2.1")
    assert (found.collisions, found.at_fault) == (3, 2)


def test_the_interval_of_the_mean_holds_it_and_narrows():
    mixed = [CLEAN, Route(0.2), Route(0.6, vehicles=1), CLEAN]
    few, many = summary(mixed, "leaderboard-2.0"), summary(mixed * 25, "leaderboard-2.0")
    assert few.driving.low < few.driving.value < few.driving.high
    assert many.driving.high - many.driving.low < 0.3 * (few.driving.high - few.driving.low)
    assert summary([CLEAN] * 3, "leaderboard-2.0").driving[:3] == (100.0, 100.0, 100.0)


@VERSIONS
@given(route=routes, name=st.sampled_from(COUNTS))
def test_scores_are_bounded_and_fall_with_every_event(version, route, name):
    score = SCORES[version](route)
    worse = SCORES[version](replace(route, **{name: getattr(route, name) + 1}))
    assert 0 <= score.penalty <= 1 and 0 <= score.driving <= 100
    assert worse.penalty < score.penalty or score.penalty == 0
    assert worse.driving <= score.driving


def test_many_events_cost_less_in_2_1_and_a_single_collision_more():
    one, many = replace(CLEAN, vehicles=1), replace(CLEAN, vehicles=5)
    assert leaderboard_2_1(one).penalty < leaderboard_2_0(one).penalty
    assert leaderboard_2_1(many).penalty > leaderboard_2_0(many).penalty


BEST = ClosedLoop(1, 1, 1, 1, 1, 1, 1, 1)


@pytest.mark.parametrize(
    ("changes", "score"),
    [
        ({}, 1.0),
        ({"time_to_collision": 0}, 11 / 16),
        ({"progress": 0.6, "comfort": 0}, (5 + 3 + 4) / 16),
        ({"no_at_fault_collision": 0.5, "speed_limit": 0.5}, 0.5 * 14 / 16),
        ({"drivable_area": 0}, 0.0),
        ({"making_progress": 0}, 0.0),
    ],
)
def test_nuplan_by_hand(changes, score):
    assert nuplan_closed_loop(replace(BEST, **changes)) == pytest.approx(score)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Route(1.2), r"route\.completion is 1\.2: expected 0 to 1"),
        (lambda: Route(float("nan")), r"route\.completion is nan: expected 0 to 1"),
        (lambda: Route(1.0, vehicles=-1), r"route\.vehicles is -1: expected 0 or more"),
        (lambda: Route(1.0, at_fault=1), r"route\.at_fault is 1: expected 0 or less, the number of collisions"),
        (lambda: Route(1.0, min_speed=(-0.1,)), r"route\.min_speed is -0\.1: expected 0 or more each"),
        (lambda: Route(1.0, min_speed_map=(-0.1,)), r"route\.min_speed_map is -0\.1: expected 0 or more each"),
        (lambda: replace(BEST, comfort=2), r"closed_loop\.comfort is 2: expected 0 to 1"),
        (lambda: summary([], "bench2drive"), "routes is empty"),
        (lambda: summary([CLEAN], "leaderboard-2.2"), r"version 'leaderboard-2\.2' is unknown: did you mean"),
    ],
)
def test_what_makes_no_sense_is_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()
