"""Motion of vehicles and overlaps of boxes, as functions of arrays.

The frame is CARLA's: x forward, y to the right, angles grow clockwise seen from above.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

TOP_SPEED_MPS, ENGINE_MPSS, BRAKE_MPSS, HAND_BRAKE_MPSS, ROLL_MPSS = 50.0, 5.0, 9.0, 6.0, 0.2
MAX_STEER_RAD = np.radians(35.0)
"""Angle of the front wheels at full steering."""


def next_speed(
    speed: Floats, throttle: Floats, brake: Floats, hand_brake: Flags, reverse: Flags, dt_s: float
) -> Floats:
    """Speeds after a step.

    Args:
        speed: (N,) along the heading, m/s; below 0 backwards.
        throttle: (N,) 0 to 1.
        brake: (N,) 0 to 1.
        hand_brake: (N,).
        reverse: (N,) True where the throttle pushes backwards.
        dt_s: length of the step.
    """
    direction = np.where(reverse, -1.0, 1.0)
    push = direction * throttle * ENGINE_MPSS * np.clip(1.0 - direction * speed / TOP_SPEED_MPS, 0.0, 1.0)
    moved = speed + push * dt_s
    slowing = (brake * BRAKE_MPSS + hand_brake * HAND_BRAKE_MPSS + ROLL_MPSS * (throttle == 0.0)) * dt_s
    return np.sign(moved) * np.maximum(np.abs(moved) - slowing, 0.0)


class Motion(NamedTuple):
    """Poses after a step."""

    xy: Floats
    """(N, 2), m."""
    yaw_rad: Floats
    yaw_rate: Floats
    """(N,), rad/s."""


def bicycle(xy: Floats, yaw_rad: Floats, speed: Floats, steer: Floats, wheelbase: Floats, dt_s: float) -> Motion:
    """Kinematic bicycle about the center of the vehicle, one step at the middle heading.

    Args:
        xy: (N, 2) positions, m.
        yaw_rad: (N,) headings.
        speed: (N,) m/s.
        steer: (N,) -1 to 1, positive to the right.
        wheelbase: (N,) m.
        dt_s: length of the step.
    """
    yaw_rate = speed * np.tan(steer * MAX_STEER_RAD) / wheelbase
    middle = yaw_rad + 0.5 * dt_s * yaw_rate
    way = (speed * dt_s)[:, None]
    return Motion(xy + way * np.stack([np.cos(middle), np.sin(middle)], 1), yaw_rad + dt_s * yaw_rate, yaw_rate)


def overlapping(center: Floats, yaw_rad: Floats, extent: Floats) -> NDArray[np.intp]:
    """Pairs of boxes that overlap, lower index first, in order.

    Args:
        center: (N, 3) m.
        yaw_rad: (N,) headings; the boxes stand upright.
        extent: (N, 3) half sizes, m.

    Returns:
        (P, 2) indices.
    """
    radius = np.hypot(extent[:, 0], extent[:, 1])
    x, y, z = center.T
    near = (x[:, None] - x) ** 2 + (y[:, None] - y) ** 2 < (radius[:, None] + radius) ** 2
    near &= np.abs(z[:, None] - z) < extent[:, None, 2] + extent[:, 2]
    first, second = np.nonzero(np.triu(near, 1))
    if not len(first):
        return np.zeros((0, 2), np.intp)
    apart = np.zeros(len(first), bool)
    ends = (first, second)
    between = center[second, :2] - center[first, :2]
    axes = [np.stack([np.cos(yaw_rad[i]), np.sin(yaw_rad[i])], 1) for i in ends]
    for along in (*axes, *(axis[:, ::-1] * (-1.0, 1.0) for axis in axes)):
        reach = sum(_reach(axis, extent[i], along) for axis, i in zip(axes, ends, strict=True))
        apart |= np.abs((between * along).sum(1)) >= reach
    return np.stack(ends, 1)[~apart]


def _reach(axis: Floats, extent: Floats, along: Floats) -> Floats:
    """(P,) half widths of rectangles with forward vectors `axis`, seen along a direction."""
    forward = np.abs((axis * along).sum(1))
    sideways = np.abs(axis[:, 0] * along[:, 1] - axis[:, 1] * along[:, 0])
    return extent[:, 0] * forward + extent[:, 1] * sideways


def within(xy: Floats, center: Floats, yaw_rad: Floats, extent: Floats) -> Flags:
    """(N, M) which of N points lie in which of M upright boxes.

    Args:
        xy: (N, 2) m.
        center: (M, 2) m.
        yaw_rad: (M,).
        extent: (M, 2) half sizes, m.
    """
    apart = xy[:, None] - center
    cos, sin = np.cos(yaw_rad), np.sin(yaw_rad)
    along = np.abs(apart[..., 0] * cos + apart[..., 1] * sin)
    across = np.abs(apart[..., 1] * cos - apart[..., 0] * sin)
    return (along <= extent[:, 0]) & (across <= extent[:, 1])
