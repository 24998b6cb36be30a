"""Errors of the ego's localization: pose and speed that its observations of the map are made with.

Road users and parked cars are seen by the ego's own sensors, so their places relative to it stay true. An error follows
from the start, the time and the quantity alone: normal numbers every `pose_noise_s`, joined by cosine and sine weights,
which keep the variance the same at every time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.geometry import uniform
from robotrl.sims.driving.rewards import Rules
from robotrl.sims.driving.world import Maps, WorldState

ERRORS = 5 << 24
"""First stream of random numbers of the errors."""
ALONG, ASIDE, HEADING, SPEED = 0, 1, 2, 3


@kernel
def normal(seed: int, stream: int) -> float:
    """Normal random number of a stream, by Box and Muller (1958)."""
    u, v = uniform(seed, 2 * stream), uniform(seed, 2 * stream + 1)
    return math.sqrt(-2.0 * math.log(1.0 - u)) * math.cos(2.0 * math.pi * v)


@kernel
def error(seed: int, quantity: int, time: float, knot_s: float) -> float:
    """Error of a quantity at a time, s, with standard deviation 1; independent at times `knot_s` or more apart."""
    at = time / knot_s
    k = int(at)
    turn = 0.5 * math.pi * (at - k)
    here = normal(seed, ERRORS + 4 * k + quantity)
    return here * math.cos(turn) + normal(seed, ERRORS + 4 * (k + 1) + quantity) * math.sin(turn)


@kernel
def localize(maps: Maps, world: WorldState, rules: Rules, e: int) -> None:
    """Write where env `e`'s ego takes itself to be: pose, route and lane coordinates, speed."""
    ego, episode, seen = world.egos[e], world.episodes[e], world.localized[e]
    seed, time, knot = episode.seed, episode.steps * rules.dt, rules.pose_noise_s
    along = rules.pose_noise_m * error(seed, ALONG, time, knot)
    aside = rules.pose_noise_m * error(seed, ASIDE, time, knot)
    turned = rules.heading_noise_rad * error(seed, HEADING, time, knot)
    onward = along * math.cos(ego.psi) - aside * math.sin(ego.psi)
    left = along * math.sin(ego.psi) + aside * math.cos(ego.psi)
    route = maps.routes[episode.route]
    seen.x = ego.x + along * ego.cos - aside * ego.sin
    seen.y = ego.y + along * ego.sin + aside * ego.cos
    seen.yaw = ego.yaw + turned
    seen.cos, seen.sin = math.cos(seen.yaw), math.sin(seen.yaw)
    seen.v = max(ego.v + rules.speed_noise_mps * error(seed, SPEED, time, knot), 0.0)
    # in CUDA math.floor returns a float
    seen.index = min(max(ego.index + np.int64(math.floor(onward + 0.5)), 0), route.count - 1)
    seen.progress = min(max(ego.progress + onward, 0.0), route.length)
    seen.d, seen.psi = ego.d + left, ego.psi + turned
    seen.lane_d = ego.lane_d + left


@kernel
def localized(world: WorldState, e: int) -> Any:
    """Ego as it takes itself to be; the ego itself without errors of localization."""
    if len(world.localized) > 0:
        return world.localized[e]
    return world.egos[e]
