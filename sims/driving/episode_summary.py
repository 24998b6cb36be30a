"""Summarizes an ended episode for the driving scores."""

from __future__ import annotations

from robotrl.sims.driving import tables
from robotrl.sims.driving.scores import Route
from robotrl.sims.driving.world import WorldState

QUARTERS = 4
"""Number of minimum-speed checkpoints: one at the end of each quarter of the route."""


def drive_of(world: WorldState, e: int, events: int, completion: float) -> Route:
    """Summary of the episode of env `e`, which has just ended with `events`.

    The traffic's speed is the mean over the cars that the ego meets (`right_of_way.meets`), for each quarter, bounded
    as in `judge.tally`; a quarter that was not completed has no checkpoint.
    """
    judge, ego = world.judges[e], world.egos[e]
    passed = [q for q in range(QUARTERS) if completion >= (q + 1) / QUARTERS and judge["quarter_steps"][q] > 0]

    def ratios(name: str) -> tuple[float, ...]:
        return tuple(
            float(judge["ego_speed"][q]) / float(judge[name][q]) if judge[name][q] > 1e-3 else 1.0 for q in passed
        )

    def has(event: int) -> int:
        return int(bool(events & event))

    driven = max(float(ego["best"]), 1e-3)
    collisions = has(tables.VEHICLE) + has(tables.PERSON) + has(tables.STATIC)
    return Route(
        completion=min(max(float(completion), 0.0), 1.0),
        pedestrians=has(tables.PERSON),
        vehicles=has(tables.VEHICLE),
        static=has(tables.STATIC),
        red_lights=has(tables.RED_LIGHT),
        stop_signs=has(tables.STOP_SIGN),
        min_speed=ratios("traffic_speed"),
        min_speed_map=ratios("map_speed"),
        outside_lanes=min(float(judge["outside_m"]) / driven, 1.0),
        at_fault=int(judge["at_fault"]) if collisions else 0,
    )
