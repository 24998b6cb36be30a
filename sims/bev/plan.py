"""What an action of the driving world is: pedals and wheel, or a trajectory that a tracker follows."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from robotrl.errors import check_count, unknown
from robotrl.sims.bev.backends.jit import kernel
from robotrl.sims.bev.geometry import pedal, pursuit
from robotrl.sims.bev.world import WorldState
from robotrl.spec import Spec

ActionKind = Literal["controls", "trajectory"]
KINDS = ("controls", "trajectory")
SPACING_S = 0.5
"""Between two points of a trajectory."""
LOOK_S = 1.0
"""The tracker steers and accelerates towards where the trajectory is so much later."""
FASTEST_MPS, ASIDE_MPS2, ASIDE_M = 20.0, 5.0, 10.0
"""Bounds of a point t seconds on: FASTEST_MPS t ahead, and aside the lesser of ASIDE_MPS2 t^2 / 2 and ASIDE_M."""
MOST_POINTS, LONGEST_HOLD = 16, 50


class Actions(NamedTuple):
    """How actions are read."""

    kind: ActionKind
    hold: int
    """Control steps of 0.1 s that an action lasts."""
    points: int
    """Of a trajectory."""

    @property
    def spec(self) -> Spec:
        """Steer is a share of the wheels' largest angle, positive to the left; accel a share of full throttle or brake.

        A trajectory is x ahead and y to the left, in the ego's frame when the action is given.
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
    """Check how actions are to be read.

    Args:
        kind: "controls" or "trajectory".
        hold: control steps that an action lasts; None: 1 for controls, 5 for a trajectory.
        points: of a trajectory.

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
    """Coordinate of point k of a trajectory, 0 where it begins."""
    return float(trajectory[2 * (k - 1) + axis]) if k > 0 else 0.0


@kernel
def tangent(trajectory: Any, k: int, axis: int) -> float:
    """Derivative by the number of the point, at point k: of the parabola through it and its neighbours."""
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
    """Where a trajectory (2 n,) is `t` s after it was given: cubics through its points, straight on after the last.

    The tangents are those of parabolas (Catmull and Rom 1974): on an arc, chords would lie inside of it.
    """
    n = len(trajectory) // 2
    u = t / SPACING_S
    if u >= n:
        x, y = knot(trajectory, n, 0), knot(trajectory, n, 1)
        return x + (u - n) * tangent(trajectory, n, 0), y + (u - n) * tangent(trajectory, n, 1)
    k = int(u)
    u -= k
    # Hermite's basis
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
    """Steering and acceleration actions of the tracker: pure pursuit, and the acceleration that arrives in time.

    Args:
        world: all envs.
        e: env.
        trajectory: (2 n,) of x and y in m.
        x: of the ego when the trajectory was given; its frame.
        y: likewise.
        cos: of its heading then.
        sin: likewise.
        t: s since then.
        throttle: m/s^2 at an acceleration action of 1.
    """
    ego = world.egos[e]
    ahead, left = point_at(trajectory, t + LOOK_S)
    dx, dy = x + ahead * cos - left * sin - ego.x, y + ahead * sin + left * cos - ego.y
    f, aside = dx * ego.cos + dy * ego.sin, dy * ego.cos - dx * ego.sin
    accel = 2.0 * (max(f, 0.0) - ego.v * LOOK_S) / (LOOK_S * LOOK_S)
    return pursuit(f, aside), pedal(accel, throttle)
