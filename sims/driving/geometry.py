"""Plane geometry of the driving sim: angles, oriented boxes, kinematic bicycle model.

x forward, y left, angles counter-clockwise.
"""

from __future__ import annotations

import math

import numpy as np

from robotrl.sims.driving.backends.jit import kernel

REAR_M = 1.418
"""Distance from the car's centre to its rear axle, fitted to CARLA's cars (Chen et al. 2021, World on Rails)."""
FRONT_M = -0.091
"""Distance from centre to effective front axle, same fit; negative: the fitted body pivots behind its centre."""
STEER_GAIN = 0.368
"""Wheel angle, rad, for a steering action of 1, same fit."""
BRAKE_MPS2 = 4.95
"""Deceleration for an acceleration action of -1, same fit."""


@kernel
def wrap(angle: float) -> float:
    """Map an angle to -pi to pi."""
    return angle - 2.0 * math.pi * math.floor(angle / (2.0 * math.pi) + 0.5)


@kernel
def bicycle(
    x: float, y: float, yaw: float, speed: float, steer: float, accel: float, dt: float
) -> tuple[float, float, float, float]:
    """Advance the kinematic bicycle model by one step, forward only.

    The slip angle is beta = atan(l_r / (l_f + l_r) tan(delta)), the yaw rate v sin(beta) / l_r; the speed is integrated
    by the trapezoidal rule, so that the stopping distance is exact.

    Args:
        x: centre, m.
        y: centre, m.
        yaw: rad.
        speed: m/s, 0 or more.
        steer: -1 to 1, positive to the left.
        accel: m/s^2.
        dt: s.

    Returns:
        x, y, yaw and speed after the step.
    """
    beta = math.atan(REAR_M / (FRONT_M + REAR_M) * math.tan(STEER_GAIN * steer))
    after = max(speed + accel * dt, 0.0)
    # a car that stops within the step travels v^2 / 2a
    way = 0.5 * (speed + after) * dt if after > 0.0 or accel >= 0.0 else 0.5 * speed * speed / -accel
    turned = way * math.sin(beta) / REAR_M
    # along the chord of the arc, which is exact for constant steering
    course = yaw + beta + 0.5 * turned
    half = 0.5 * turned
    chord = way if abs(half) < 1e-4 else way * math.sin(half) / half
    return x + chord * math.cos(course), y + chord * math.sin(course), wrap(yaw + turned), after


@kernel
def pursuit(f: float, left: float) -> float:
    """Pure pursuit: steering action for an arc through the point `f` m ahead and `left` m to the left.

    Pure pursuit (Coulter 1992) for the car's centre, which moves at the slip angle beta: the point at distance d is at
    the angle beta + curvature * d / 2, with sin(beta) = l_r * curvature; solved in the small-angle approximation.
    """
    d = max(math.hypot(f, left), 1.0)
    curvature = left / (d * (REAR_M + 0.5 * d))
    beta = math.asin(min(max(curvature * REAR_M, -0.9), 0.9))
    return min(max(math.atan(math.tan(beta) * (FRONT_M + REAR_M) / REAR_M) / STEER_GAIN, -1.0), 1.0)


@kernel
def pedal(accel: float, throttle: float) -> float:
    """Acceleration action for an acceleration in m/s^2."""
    return min(max(accel / throttle if accel >= 0.0 else accel / BRAKE_MPS2, -1.0), 1.0)


@kernel
def boxes_overlap(
    dx: float,
    dy: float,
    cos_a: float,
    sin_a: float,
    half_length_a: float,
    half_width_a: float,
    cos_b: float,
    sin_b: float,
    half_length_b: float,
    half_width_b: float,
) -> bool:
    """True if two oriented boxes overlap, by the separating axis theorem with four axes.

    Args:
        dx: centre of b minus centre of a, m.
        dy: centre of b minus centre of a, m.
        cos_a: cosine of the heading of box a.
        sin_a: sine of the heading of box a.
        half_length_a: m.
        half_width_a: m.
        cos_b: cosine of the heading of box b.
        sin_b: sine of the heading of box b.
        half_length_b: m.
        half_width_b: m.
    """
    c = abs(cos_a * cos_b + sin_a * sin_b)
    s = abs(cos_a * sin_b - sin_a * cos_b)
    if abs(dx * cos_a + dy * sin_a) > half_length_a + half_length_b * c + half_width_b * s:
        return False
    if abs(dy * cos_a - dx * sin_a) > half_width_a + half_length_b * s + half_width_b * c:
        return False
    if abs(dx * cos_b + dy * sin_b) > half_length_b + half_length_a * c + half_width_a * s:
        return False
    return abs(dy * cos_b - dx * sin_b) <= half_width_b + half_length_a * s + half_width_a * c


@kernel
def uniform(seed: int, stream: int) -> float:
    """Counter-based random number in [0, 1) from a seed and a stream number.

    Uses the finalizer of SplitMix64 (Steele, Lea and Flood 2014).
    """
    z = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(stream + 1) * np.uint64(0xD1342543DE82EF95)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return float(z >> np.uint64(11)) * 2.0**-53
