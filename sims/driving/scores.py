"""Driving scores by the published formulas, as pure functions, one per version; independent of the reward.

Scores of different versions are not comparable. A route on which the simulator broke down counts as a failure with
score 0 and is never left out.

Sources: CARLA leaderboard 2.0, and 2.1 as two descriptions of it agree; Bench2Drive (Jia et al. 2024); nuPlan
(Caesar et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple

import numpy as np

from robotrl.errors import ConfigError, check_at_least, out_of_range, unknown
from robotrl.fn.stats import Interval, wilson

Version = Literal["leaderboard-2.0", "leaderboard-2.1", "bench2drive"]
COUNTS = ("pedestrians", "vehicles", "static", "red_lights", "stop_signs", "scenario_timeouts", "emergency_yields")
"""Fields of `Route` that count events."""
MULTIPLIED = {
    "pedestrians": 0.50,
    "vehicles": 0.60,
    "static": 0.65,
    "red_lights": 0.70,
    "stop_signs": 0.80,
    "scenario_timeouts": 0.70,
    "emergency_yields": 0.70,
}
"""Leaderboard 2.0: factor on the penalty for each event."""
SLOWEST = 0.70
"""Leaderboard 2.0: factor on the penalty for a checkpoint at zero speed."""
ADDED = {
    "pedestrians": 1.00,
    "vehicles": 0.70,
    "static": 0.60,
    "red_lights": 0.40,
    "stop_signs": 0.25,
    "scenario_timeouts": 0.40,
    "emergency_yields": 0.40,
}
"""Leaderboard 2.1: coefficient c_k of each event in P = 1 / (1 + sum)."""
SLOWEST_ADDED = 0.40


@dataclass(frozen=True)
class Route:
    """Summary of one driven route: events and statistics.

    Raises:
        ConfigError: a value is out of range; the message names it.
    """

    completion: float
    """Fraction of the route's length that was driven, 0 to 1."""
    pedestrians: int = 0
    """Collisions with pedestrians and cyclists on foot."""
    vehicles: int = 0
    """Collisions with vehicles."""
    static: int = 0
    """Collisions with static objects."""
    red_lights: int = 0
    """Red lights run."""
    stop_signs: int = 0
    """Stop signs run."""
    scenario_timeouts: int = 0
    """Scenarios that were not completed in time."""
    emergency_yields: int = 0
    """Emergency vehicles that the ego did not yield to."""
    min_speed: tuple[float, ...] = ()
    """Mean speed before each checkpoint divided by that of the traffic around; 1 or more has no penalty."""
    min_speed_map: tuple[float, ...] = ()
    """The same with all cars on the map for traffic, the rule of earlier scores; see `by_map_speed`."""
    outside_lanes: float = 0.0
    """Fraction of the route driven outside its lanes, 0 to 1."""
    at_fault: int = 0
    """Number of collisions for which the ego was at fault."""
    broken: bool = False
    """True if the simulator or the driver broke down."""

    def __post_init__(self) -> None:
        for name in ("completion", "outside_lanes"):
            if not 0 <= getattr(self, name) <= 1:
                raise out_of_range(f"route.{name}", getattr(self, name), "0 to 1")
        for name in (*COUNTS, "at_fault"):
            check_at_least(f"route.{name}", getattr(self, name), 0)
        for name in ("min_speed", "min_speed_map"):
            for part in getattr(self, name):
                if not 0 <= part < math.inf:
                    raise out_of_range(f"route.{name}", part, "0 or more each")
        if self.at_fault > self.collisions:
            raise out_of_range("route.at_fault", self.at_fault, f"{self.collisions} or less, the number of collisions")

    @property
    def collisions(self) -> int:
        """Number of collisions of all kinds."""
        return self.pedestrians + self.vehicles + self.static

    @property
    def slow(self) -> tuple[float, ...]:
        """Missing fraction of the traffic's speed, for each checkpoint passed more slowly than the traffic."""
        return tuple(1 - part for part in self.min_speed if part < 1)

    @property
    def success(self) -> bool:
        """True if completed without an infraction; slowness does not count (Bench2Drive)."""
        clean = not any(getattr(self, name) for name in COUNTS) and self.outside_lanes == 0
        return clean and self.completion == 1 and not self.broken

    @property
    def strict_success(self) -> bool:
        """True if completed without an infraction and never more slowly than the traffic."""
        return self.success and not self.slow


def by_map_speed(route: Route) -> Route:
    """The route with its speeds over those of all cars on the map, as scores were before; to compare the two rules."""
    return replace(route, min_speed=route.min_speed_map)


class RouteScore(NamedTuple):
    """Score of one route."""

    completion: float
    """Route completion, 0 to 1."""
    penalty: float
    """Infraction penalty, 0 to 1; 1 without infractions."""
    driving: float
    """Driving score: completion times penalty times 100; 0 if the route broke down."""


def leaderboard_2_0(route: Route) -> RouteScore:
    """CARLA leaderboard 2.0: every event multiplies the penalty.

    P = prod_k c_k^(n_k) * prod_j (1 - 0.3 (1 - v_j)) * (1 - o), with v_j the speed at checkpoint j relative to the
    traffic, and o the fraction driven outside the route's lanes.
    """
    return _score(route, _multiplied(route) * math.prod(1 - (1 - SLOWEST) * missing for missing in route.slow))


def leaderboard_2_1(route: Route) -> RouteScore:
    """CARLA leaderboard 2.1: events add up, P = (1 - o) / (1 + sum_k c_k n_k + 0.4 sum_j (1 - v_j))."""
    total = sum(value * getattr(route, name) for name, value in ADDED.items())
    total += SLOWEST_ADDED * sum(route.slow)
    return _score(route, (1 - route.outside_lanes) / (1 + total))


def bench2drive(route: Route) -> RouteScore:
    """Bench2Drive: coefficients of leaderboard 2.0 without slowness, which is reported as efficiency instead."""
    return _score(route, _multiplied(route))


SCORES: dict[Version, Callable[[Route], RouteScore]] = {
    "leaderboard-2.0": leaderboard_2_0,
    "leaderboard-2.1": leaderboard_2_1,
    "bench2drive": bench2drive,
}


def _multiplied(route: Route) -> float:
    events = math.prod(value ** getattr(route, name) for name, value in MULTIPLIED.items())
    return events * (1 - route.outside_lanes)


def _score(route: Route, penalty: float) -> RouteScore:
    return RouteScore(route.completion, penalty, 0.0 if route.broken else 100 * route.completion * penalty)


class Summary(NamedTuple):
    """Scores of many routes, with 95 % confidence intervals."""

    version: Version
    driving: Interval
    """Mean driving score of the routes, 0 to 100; not the product of mean completion and mean penalty."""
    completion: float
    penalty: float
    success: Interval
    """Success rate; see `Route.success`."""
    strict_success: Interval
    efficiency: float | None
    """Mean speed at checkpoints relative to the traffic, as in Bench2Drive; None without checkpoints."""
    collisions: int
    at_fault: int
    broken: int
    """Number of routes that count 0 because something broke down."""


def summary(routes: Sequence[Route], version: Version) -> Summary:
    """Summarize the scores of many routes; none is left out.

    Raises:
        ConfigError: no routes, or an unknown version.
    """
    if version not in SCORES:
        raise unknown("version", str(version), SCORES)
    if not routes:
        raise ConfigError("routes is empty: expected at least one")
    scores = [SCORES[version](route) for route in routes]
    count = len(routes)
    mean = float(np.mean([score.driving for score in scores]))
    draws = np.random.default_rng(0).integers(count, size=(2000, count))
    means = np.array([score.driving for score in scores])[draws].mean(axis=1)
    low, high = (float(x) for x in np.quantile(means, (0.025, 0.975)))
    checkpoints = [part for route in routes for part in route.min_speed]
    return Summary(
        version,
        Interval(mean, low, high, count),
        float(np.mean([score.completion for score in scores])),
        float(np.mean([score.penalty for score in scores])),
        wilson(sum(route.success for route in routes), count),
        wilson(sum(route.strict_success for route in routes), count),
        float(np.mean(checkpoints)) if checkpoints else None,
        sum(route.collisions for route in routes),
        sum(route.at_fault for route in routes),
        sum(route.broken for route in routes),
    )


@dataclass(frozen=True)
class ClosedLoop:
    """Components of nuPlan's closed-loop score, each from 0 (bad) to 1.

    Raises:
        ConfigError: a value is out of range; the message names it.
    """

    no_at_fault_collision: float
    """1 without an at-fault collision; 0.5 for one with a static object; 0 for one with a road user."""
    drivable_area: float
    """1 if the ego never left the drivable area, else 0."""
    driving_direction: float
    """Driving against the traffic's direction: 1 for none, 0.5 for up to 6 m, 0 for more."""
    making_progress: float
    """1 if progress is at least a fifth of the expert's, else 0."""
    time_to_collision: float
    """1 if the time to collision never fell below 0.95 s, else 0."""
    progress: float
    """Progress along the expert's route relative to the expert's."""
    speed_limit: float
    """1 minus the mean excess over the speed limit relative to the largest excess that counts."""
    comfort: float
    """1 if all limits on acceleration, jerk and yaw were kept, else 0."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value <= 1:
                raise out_of_range(f"closed_loop.{field.name}", value, "0 to 1")


def nuplan_closed_loop(drive: ClosedLoop) -> float:
    """Closed-loop score of nuPlan, 0 to 1: the product of four multipliers and a weighted mean of the rest.

    (5 time to collision + 5 progress + 4 speed limit + 2 comfort) / 16, times the first four fields.
    """
    ruin = drive.no_at_fault_collision * drive.drivable_area * drive.driving_direction * drive.making_progress
    rest = 5 * drive.time_to_collision + 5 * drive.progress + 4 * drive.speed_limit + 2 * drive.comfort
    return ruin * rest / 16
