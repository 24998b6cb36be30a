"""The rest of late plans: numbers worked by hand, and the tracker's own interpolation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robotrl.fn.planner.late_plan import carried_on, points_at, straight_on
from robotrl.sims.driving.plan import SPACING_S, point_at

AHEAD = [[5.0, 0.0], [10.0, 0.0], [15.0, 0.0], [20.0, 0.0]]
"""10 m/s along x, points 0.5 s apart."""
HERE = [0.0, 0.0, 0.0]


def left(points: list[list[float]], elapsed: float, then: list[float], now: list[float]) -> list[list[float]]:
    rows = (torch.tensor([x], dtype=torch.float64) for x in (points, then, now))
    plans, before, after = rows
    return carried_on(plans, torch.tensor([elapsed], dtype=torch.float64), before, after)[0].tolist()


@pytest.mark.parametrize(
    ("points", "elapsed", "then", "now", "expected"),
    [
        # where it was to be after 0.2 s: the same plan again
        (AHEAD, 0.4, HERE, [2.0, 0.0, 0.0], AHEAD),
        # it did not move: 0.2 s of the way are missing
        (AHEAD, 0.4, HERE, HERE, [[7.0, 0], [12.0, 0], [17.0, 0], [22.0, 0]]),
        # it moved too far, to the side, and looks to the left: ahead is y, left is -x
        (AHEAD, 1.0, HERE, [5.0, 1.0, math.pi / 2], [[-1, -5], [-1, -10], [-1, -15], [-1, -20]]),
        # it looked to the left as the plan was made, at 100, 50, and looks back now
        (AHEAD, 1.0, [100.0, 50.0, math.pi / 2], [100.0, 55.0, -math.pi / 2], [[-x, 0] for x, _ in AHEAD]),
        # a bend: the points that are left move up, the last one goes straight on along the parabola's tangent
        ([[2.0, 0.0], [2.0, 2.0]], 1.0, HERE, [2.0, 0.0, 0.0], [[0, 2], [-1, 5]]),
        # who brakes to a stand, 10 t - 2.5 t^2 for 2 s, has 2.5 m left after 1 s and stands from then on
        ([[4.375, 0], [7.5, 0], [9.375, 0], [10.0, 0]], 2.0, HERE, [7.5, 0.0, 0.0], [[1.875, 0], [2.5, 0], [2.5, 0]]),
    ],
)
def test_what_is_left_by_hand(
    points: list[list[float]], elapsed: float, then: list[float], now: list[float], expected: list[list[float]]
) -> None:
    found = left(points, elapsed, then, now)
    assert np.array(found[: len(expected)]) == pytest.approx(np.array(expected, float), abs=1e-12)


def test_an_arc_stays_the_arc() -> None:
    """6 m/s on a circle of 20 m: from where it is to be after 0.5 s, the same points lie ahead, but for the last."""
    angles = 6.0 * SPACING_S * np.arange(1, 7) / 20.0
    arc = np.stack([20 * np.sin(angles), 20 * (1 - np.cos(angles))], axis=-1)
    found = np.array(left(arc.tolist(), 1.0, HERE, [*arc[0], angles[0]]))
    assert found[:5] == pytest.approx(arc[:5], abs=1e-12)
    # straight on: beside the circle by s^2 / 2 r = 0.225 m and what the parabola's tangent differs from the circle's
    assert np.hypot(*(found[5] - arc[5])) == pytest.approx(0.225, abs=0.01)
    # between the points, but for the last two, the cubic is within a millimeter or two of the circle
    turned = 0.4 * angles[0]
    now = [20 * math.sin(turned), 20 * (1 - math.cos(turned)), turned]
    assert np.array(left(arc.tolist(), 0.4, HERE, now))[:4] == pytest.approx(arc[:4], abs=2e-3)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 40), st.floats(-10, 10)), min_size=2, max_size=16),
    st.lists(st.floats(0, 12), min_size=1, max_size=8),
)
def test_points_are_those_of_the_tracker(points: list[tuple[float, float]], times: list[float]) -> None:
    found = points_at(torch.tensor([points], dtype=torch.float64), torch.tensor([times], dtype=torch.float64))[0]
    expected = [point_at(np.array(points).ravel(), u * SPACING_S) for u in times]
    assert found.numpy() == pytest.approx(np.array(expected), rel=1e-9, abs=1e-9)


def test_without_elapsed_time_nothing_changes() -> None:
    generator = torch.Generator().manual_seed(0)
    plans = torch.rand(64, 4, 2, generator=generator).double()
    frames = 100 * torch.rand(64, 3, generator=generator).double()
    assert torch.equal(carried_on(plans, torch.zeros(64).double(), frames, frames), plans)


def test_a_plan_of_one_point_is_straight() -> None:
    plan = torch.tensor([[[3.0, 1.0]]])
    assert points_at(plan, torch.tensor([[0.0, 0.5, 1.0, 2.0]]))[0].tolist() == [[0, 0], [1.5, 0.5], [3, 1], [6, 2]]


def test_straight_on_by_hand() -> None:
    found: Tensor = straight_on(torch.tensor([10.0, 0.0]), 3, 0.5)
    assert found.tolist() == [[[5.0, 0.0], [10.0, 0.0], [15.0, 0.0]], [[0.0, 0.0]] * 3]
