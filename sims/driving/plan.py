"""Action formats of the driving sim: steering and acceleration, or a trajectory followed by a tracker."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from robotrl.errors import check_count, unknown
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.geometry import pedal, pursuit
from robotrl.sims.driving.world import WorldState
from robotrl.spec import Spec

ActionKind = Literal["controls", "trajectory"]
KINDS = ("controls", "trajectory")
SPACING_S = 0.5
"""Time between two points of a trajectory."""
LOOK_S = 1.0
"""Look-ahead time of the tracker along the trajectory."""
FASTEST_MPS, ASIDE_MPS2, ASIDE_M = 20.0, 5.0, 10.0
"""Bounds of a point at time t: FASTEST_MPS * t ahead, and min(ASIDE_MPS2 * t^2 / 2, ASIDE_M) to either side."""
MOST_POINTS, LONGEST_HOLD = 16, 50


class Actions(NamedTuple):
    """Action settings: format and duration."""

    kind: ActionKind
    hold: int
    """Number of control steps of 0.1 s per action."""
    points: int
    """Number of points of a trajectory."""

    @property
    def spec(self) -> Spec:
        """Action spec: steer is relative to the largest wheel angle (left positive), accel to full throttle or brake.

        A trajectory has points x ahead and y to the left, in the ego's frame at the time of the action.
        """
        if self.kind == "controls":
            return Spec((2,), ("steer", "accel"), ("1", "1"), (-1.0, -1.0), (1.0, 1.0))
        times = [SPACING_S * (k + 1) for k in range(self.points)]
        names = tuple(f"{axis}_{t:.1f}s" for t in times for axis in "xy")
        aside = [min(0.5 * ASIDE_MPS2 * t * t, ASIDE_M) for t in times]
        low = tuple(bound for y in aside for bound in (0.0, -y))
        high = tuple(bound for t, y in zip(times, aside, strict=True) for bound in (FASTEST_MPS * t, y))
        return Spec((len(names),), names, ("m",) * len(names), low, high)


def actions_of(kind: str, hold: int | None, points: int) -> Actions:
    """Validate the action options.

    Args:
        kind: "controls" or "trajectory".
        hold: control steps per action; None: 1 for controls, 5 for a trajectory.
        points: number of points of a trajectory.

    Raises:
        ConfigError: unknown kind, or a number out of range.
    """
    if kind not in KINDS:
        raise unknown("actions", str(kind), KINDS)
    if hold is None:
        hold = 1 if kind == "controls" else 5
    check_count("hold", hold, 1, LONGEST_HOLD, "control steps")
    check_count("points", points, 2, MOST_POINTS)
    return Actions("trajectory" if kind == "trajectory" else "controls", int(hold), int(points))


@kernel
def knot(trajectory: Any, k: int, axis: int) -> float:
    """Coordinate of point k of a trajectory; 0 for the start point."""
    return float(trajectory[2 * (k - 1) + axis]) if k > 0 else 0.0


@kernel
def tangent(trajectory: Any, k: int, axis: int) -> float:
    """Derivative with respect to the point index at point k: that of the parabola through it and its neighbours."""
    n = len(trajectory) // 2
    if k == 0:
        first, second = knot(trajectory, 1, axis), knot(trajectory, 2, axis)
        return 2.0 * first - 0.5 * second
    if k == n:
        before, last = knot(trajectory, n - 1, axis), knot(trajectory, n, axis)
        return 1.5 * last - 2.0 * before + 0.5 * knot(trajectory, n - 2, axis)
    return 0.5 * (knot(trajectory, k + 1, axis) - knot(trajectory, k - 1, axis))


@kernel
def point_at(trajectory: Any, t: float) -> tuple[float, float]:
    """Point of a trajectory (2 n,) at time `t`, s: cubic interpolation, extrapolated straight on after the last point.

    Tangents are those of parabolas (Catmull and Rom 1974); with straight segments an arc would be cut short.
    """
    n = len(trajectory) // 2
    u = t / SPACING_S
    if u >= n:
        x, y = knot(trajectory, n, 0), knot(trajectory, n, 1)
        return x + (u - n) * tangent(trajectory, n, 0), y + (u - n) * tangent(trajectory, n, 1)
    k = int(u)
    u -= k
    # Hermite basis
    here, there = (1.0 + 2.0 * u) * (1.0 - u) * (1.0 - u), u * u * (3.0 - 2.0 * u)
    out, into = u * (1.0 - u) * (1.0 - u), u * u * (u - 1.0)
    x = here * knot(trajectory, k, 0) + there * knot(trajectory, k + 1, 0)
    x += out * tangent(trajectory, k, 0) + into * tangent(trajectory, k + 1, 0)
    y = here * knot(trajectory, k, 1) + there * knot(trajectory, k + 1, 1)
    y += out * tangent(trajectory, k, 1) + into * tangent(trajectory, k + 1, 1)
    return x, y


@kernel
def follow(
    world: WorldState, e: int, trajectory: Any, x: float, y: float, cos: float, sin: float, t: float, throttle: float
) -> tuple[float, float]:
    """Steering and acceleration actions of the tracker: pure pursuit, and the acceleration to arrive on time.

    Args:
        world: all envs.
        e: env.
        trajectory: (2 n,) x and y of the points, m.
        x: x of the ego when the trajectory was given, m.
        y: y of the ego then, m.
        cos: cosine of the ego's heading then.
        sin: sine of the ego's heading then.
        t: time since then, s.
        throttle: acceleration, m/s^2, for an acceleration action of 1.
    """
    ego = world.egos[e]
    ahead, left = point_at(trajectory, t + LOOK_S)
    dx, dy = x + ahead * cos - left * sin - ego.x, y + ahead * sin + left * cos - ego.y
    f, aside = dx * ego.cos + dy * ego.sin, dy * ego.cos - dx * ego.sin
    accel = 2.0 * (max(f, 0.0) - ego.v * LOOK_S) / (LOOK_S * LOOK_S)
    return pursuit(f, aside), pedal(accel, throttle)
