"""Scene of a CARLA world as arrays, in our frame: x forward, y left, angles counter-clockwise, meters and radians.

CARLA's frame is left-handed with degrees: its y and its yaw change their sign.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

CAR, CYCLIST, PEDESTRIAN, OBSTACLE = 1, 2, 3, 4
"""Kinds of road users; the same numbers as `robotrl.sims.driving.tables`."""
ROAD_USER = np.dtype(
    [
        ("id", "<i4"),  # of CARLA's actor
        ("kind", "<i4"),
        ("x", "<f8"),  # center of its bounding box
        ("y", "<f8"),
        ("yaw", "<f8"),
        ("vx", "<f8"),  # m/s
        ("vy", "<f8"),
        ("ax", "<f8"),  # m/s^2
        ("ay", "<f8"),
        ("yaw_rate", "<f8"),  # rad/s
        ("length", "<f8"),
        ("width", "<f8"),
    ]
)
"""A road user; row 0 of a scene is the ego."""
LIGHT = np.dtype([("state", "<i4"), ("elapsed_s", "<f4"), ("green_s", "<f4"), ("yellow_s", "<f4"), ("red_s", "<f4")])
"""A traffic light: its state (one of `sims.driving.reported.phases`), the time in it, and the duration of each."""
HIT = np.dtype([("id", "<i4"), ("kind", "<i4")])
"""A collision of the ego: the other actor, -1 for the map, and its kind."""
STATIC_BOX = np.dtype([("x", "<f8"), ("y", "<f8"), ("yaw", "<f8"), ("length", "<f8"), ("width", "<f8")])
"""A parked car that belongs to the map."""


def touches_ego(users: NDArray[Any], margin_m: float) -> bool:
    """True if another road user's box is within a margin of the ego's, by the separating axis theorem.

    Args:
        users: (n,) `ROAD_USER`, the ego first.
        margin_m: distance that counts as contact, m.
    """
    ego, others = users[0], users[1:]
    dx, dy = others["x"] - ego["x"], others["y"] - ego["y"]
    half = 0.5 * np.hypot(others["length"], others["width"]) + 0.5 * np.hypot(ego["length"], ego["width"]) + margin_m
    near = dx * dx + dy * dy < half * half
    if not near.any():
        return False
    others, dx, dy = others[near], dx[near], dy[near]
    turn = others["yaw"] - ego["yaw"]
    c, s = np.abs(np.cos(turn)), np.abs(np.sin(turn))
    own_l, own_w = 0.5 * ego["length"] + margin_m, 0.5 * ego["width"] + margin_m
    length, width = 0.5 * others["length"], 0.5 * others["width"]
    apart = np.zeros(len(others), np.bool_)
    for yaw, along, across in (
        (ego["yaw"], own_l + length * c + width * s, own_w + length * s + width * c),
        (others["yaw"], length + own_l * c + own_w * s, width + own_l * s + own_w * c),
    ):
        cos, sin = np.cos(yaw), np.sin(yaw)
        apart |= np.abs(dx * cos + dy * sin) > along
        apart |= np.abs(dy * cos - dx * sin) > across
    return bool((~apart).any())
