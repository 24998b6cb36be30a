"""Retiming of plans: numbers worked by hand, and what holds for any path."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robotrl.fn.planner.retiming import acceleration_shift, least_ahead, retimed

AHEAD = [[2.0, 0.0], [4.0, 0.0], [6.0, 0.0], [8.0, 0.0]]
"""4 m/s along x, points 0.5 s apart."""
BEND = [[2.0, 0.0], [2.0, 2.0]]
"""2 m/s for 1 s ahead, then 1 s to the left."""


def one(points: list[list[float]], accel: float, dt_s: float) -> list[list[float]]:
    return retimed(torch.tensor([points], dtype=torch.float64), torch.tensor([accel]).double(), dt_s)[0].tolist()


@pytest.mark.parametrize(
    ("points", "accel", "dt_s", "expected"),
    [
        # 4 t - t^2
        (AHEAD, -2.0, 0.5, [[1.75, 0], [3.0, 0], [3.75, 0], [4.0, 0]]),
        # 4 t - 2 t^2 until it stands, after 1 s
        (AHEAD, -4.0, 0.5, [[1.5, 0], [2.0, 0], [2.0, 0], [2.0, 0]]),
        # 4 t + t^2, beyond the end of the path
        (AHEAD, 2.0, 0.5, [[2.25, 0], [5.0, 0], [8.25, 0], [12.0, 0]]),
        # 2 t -+ t^2 / 2: short of the corner, and around it
        (BEND, -1.0, 1.0, [[1.5, 0], [2.0, 0]]),
        (BEND, 1.0, 1.0, [[2.0, 0.5], [2.0, 4.0]]),
        # who stands has no path: it goes ahead, t^2; who has stopped goes on as before, 2 + t^2 / 2
        ([[0.0, 0.0], [0.0, 0.0]], 2.0, 0.5, [[0.25, 0], [1.0, 0]]),
        ([[0.0, 2.0], [0.0, 2.0]], 1.0, 1.0, [[0, 2.5], [0, 4.0]]),
        ([[0.0, 0.0], [0.0, 0.0]], -2.0, 0.5, [[0, 0], [0, 0]]),
    ],
)
def test_points_by_hand(points, accel, dt_s, expected):
    for found, wanted in zip(one(points, accel, dt_s), expected, strict=True):
        assert found == pytest.approx(wanted, abs=1e-9)


number = st.floats(-5, 20, width=32)
paths = st.lists(st.tuples(number, number), min_size=2, max_size=8)


def travel(points: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(points[:, :1]), points], dim=1).diff(dim=1).norm(dim=-1).sum(dim=1)


@settings(max_examples=80, deadline=None)
@given(paths, st.floats(0.01, 5.0))
def test_a_plan_is_shorter_when_it_brakes_and_longer_when_it_speeds_up(path, accel):
    points = torch.tensor([path], dtype=torch.float64)
    rows = points.expand(3, -1, -1)
    slower, same, faster = retimed(rows, torch.tensor([-accel, 0.0, accel], dtype=torch.float64), 0.5).unbind(0)
    assert torch.equal(same, points[0])
    seconds = 0.5 * len(path)
    # along the path; a chord across a corner is shorter
    assert travel(slower[None]) <= travel(points) + 1e-6
    assert travel(faster[None]) <= travel(points) + 0.5 * accel * seconds**2 + 1e-6
    # the last point has come as far as the shift says, beyond a path that goes on straight
    straight = torch.tensor([[[float(k + 1), 0.0] for k in range(len(path))]], dtype=torch.float64)
    found = retimed(straight, torch.tensor([accel], dtype=torch.float64), 0.5)
    assert found[0, -1, 0].item() == pytest.approx(len(path) + 0.5 * accel * seconds**2)


def test_rows_do_not_see_each_other():
    points = torch.randn((6, 4, 2), generator=torch.Generator().manual_seed(0)).double()
    accel = torch.linspace(-2, 2, 6).double()
    whole = retimed(points, accel, 0.5)
    for k in range(6):
        assert torch.equal(retimed(points[k : k + 1], accel[k : k + 1], 0.5)[0], whole[k])


def test_who_is_near_a_collision_brakes_and_only_the_safe_speed_up():
    ttc_s = torch.tensor([1.9, 2.0, 3.0, 4.0, 6.0, 1.0])
    progress = torch.tensor([0.5, 0.5, 0.5, 0.5, 0.95, 1.2])
    shift = acceleration_shift(
        ttc_s, ttc_s, progress, unsafe_ttc_s=2.0, safe_ttc_s=4.0, lag=0.95, brake_mps2=1.5, speed_up_mps2=0.75
    )
    assert shift.tolist() == [-1.5, 0.0, 0.0, 0.75, 0.0, -1.5]


def test_nobody_brakes_for_who_comes_from_behind():
    """Behind at 1 s, nobody ahead: the plan stays, though it lags. Ahead at 1.5 s: it is shortened."""
    shift = acceleration_shift(
        torch.tensor([1.0, 1.0]),
        torch.tensor([6.0, 1.5]),
        torch.tensor([0.5, 0.5]),
        unsafe_ttc_s=2.0,
        safe_ttc_s=4.0,
        lag=0.95,
        brake_mps2=1.5,
        speed_up_mps2=0.75,
    )
    assert shift.tolist() == [0.0, -1.5]


def test_the_least_value_looks_ahead_within_its_episode():
    # decisions by time: episodes 0 and 1 side by side, then 0 alone
    episode = torch.tensor([0, 1, 0, 1, 0, 0])
    value = torch.tensor([5.0, 4.0, 3.0, 6.0, 1.0, 2.0])
    assert least_ahead(value, episode, 0).tolist() == value.tolist()
    assert least_ahead(value, episode, 1).tolist() == [3.0, 4.0, 1.0, 6.0, 1.0, 2.0]
    assert least_ahead(value, episode, 9).tolist() == [1.0, 4.0, 1.0, 6.0, 1.0, 2.0]
    assert least_ahead(value[:0], episode[:0], 1).tolist() == []
