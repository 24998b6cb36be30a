"""Bicycle and PID loops: single steps by hand, and against the sims' own bicycle."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from robotrl.fn.planner.path_modes import path_of, points_at
from robotrl.fn.planner.pid_drive import PidGains, PidState, PidTracker, bicycle, drive_path, pid, speed_labels
from robotrl.sims.driving import geometry
from robotrl.spec.vehicle import VehicleModel

MODEL = VehicleModel(geometry.REAR_M, geometry.FRONT_M, geometry.STEER_GAIN, 2.4, geometry.BRAKE_MPS2)
STRAIGHT = path_of(torch.zeros(1, 12), 2.0)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_loop_by_hand_and_its_integral_stays_at_a_bound() -> None:
    gains = PidGains(2.0, 0.5, 0.1)
    state = PidState(numbers(0.4, 0.4), numbers(1.0, 1.0))
    out, after = pid(gains, state, numbers(1.5, 9.0), 0.1, -5.0, 5.0)
    # 2 * 1.5 + 0.5 * (0.4 + 0.15) + 0.1 * 0.5 / 0.1
    assert out.tolist() == pytest.approx([3.0 + 0.275 + 0.5, 5.0])
    assert after.integral.tolist() == pytest.approx([0.55, 0.4])
    assert after.error.tolist() == [1.5, 9.0]


def test_the_bicycle_is_that_of_the_sims() -> None:
    generator = torch.Generator().manual_seed(0)
    low = torch.tensor([-50.0, -50.0, -3.0, 0.0, -1.0, -5.0], dtype=torch.float64)
    high = torch.tensor([50.0, 50.0, 3.0, 15.0, 1.0, 2.4], dtype=torch.float64)
    drawn = low + (high - low) * torch.rand((200, 6), generator=generator, dtype=torch.float64)
    # some that stop within the step, and some that stand
    drawn[:20, 3] *= 0.02
    drawn[:5, 3] = 0.0
    found = bicycle(drawn[:, :4], drawn[:, 4], drawn[:, 5], 0.1, MODEL)
    for row, mine in zip(drawn.tolist(), found.tolist(), strict=True):
        x, y, yaw, v = geometry.bicycle(*row[:4], row[4], row[5], 0.1)
        assert mine[:2] == pytest.approx([x, y], abs=1e-6)
        assert math.remainder(mine[2] - yaw, 2 * math.pi) == pytest.approx(0.0, abs=1e-9)
        assert mine[3] == pytest.approx(v)


def test_two_steps_on_a_straight_path_by_hand() -> None:
    tracker = PidTracker(speed=PidGains(1.0, 0.0, 0.0))
    found = drive_path(STRAIGHT, 2.0, torch.tensor([6.0]), torch.tensor([5.0]), 2, 0.1, MODEL, tracker)
    # accelerations 1 and 0.9
    assert found[0, :, 3].tolist() == pytest.approx([5.0, 5.1, 5.19])
    assert found[0, :, 0].tolist() == pytest.approx([0.0, 0.505, 0.505 + 0.5145])
    assert found[0, :, 1:3].abs().max() == 0


def test_a_car_brakes_as_hard_as_it_can_and_stands() -> None:
    found = drive_path(STRAIGHT, 2.0, torch.tensor([0.0]), torch.tensor([10.0]), 40, 0.1, MODEL)
    assert found[0, 1, 3].item() == pytest.approx(10.0 - 0.495)
    assert found[0, -1, 3].item() == pytest.approx(0.0, abs=0.02)
    assert bool((found[0, :, 3] >= 0).all())
    # not shorter than with full brakes, not much longer
    assert 100 / (2 * 4.95) < found[0, -1, 0].item() < 13.5


@pytest.mark.parametrize("curvature", [0.0, 0.03, -0.06])
def test_a_car_follows_an_arc(curvature: float) -> None:
    path = path_of(torch.full((1, 12), 2.0 * curvature), 2.0)
    found = drive_path(path, 2.0, torch.tensor([8.0]), torch.tensor([8.0]), 20, 0.1, MODEL)
    dense = points_at(path, 2.0, torch.linspace(0.0, 20.0, 400)[None])[0]
    apart = (found[0, :, None, :2] - dense).norm(dim=-1).amin(dim=1)
    assert found[0, -1, 0] > 12.0
    assert apart.max() < 0.35


def test_cars_do_not_see_each_other() -> None:
    paths = path_of(0.05 * torch.randn((6, 12), generator=torch.Generator().manual_seed(1)), 2.0)
    target, speed = torch.linspace(0, 12, 6), torch.linspace(9, 1, 6)
    whole = drive_path(paths, 2.0, target, speed, 20, 0.1, MODEL)
    alone = drive_path(paths[3:4], 2.0, target[3:4], speed[3:4], 20, 0.1, MODEL)
    assert torch.allclose(whole[3:4], alone, atol=1e-5)


def test_labels_are_the_classes_that_come_as_far_as_the_log() -> None:
    classes = torch.arange(13.0)
    speed = torch.tensor([8.0, 8.0, 0.0, 0.0])
    # kept its speed; braked; stood; started as fast as the car can, which class 3 and all above do within 1 s
    driven = torch.tensor([8.0, 6.0, 0.0, 1.2])
    found = speed_labels(speed, driven, classes, 10, 0.1, MODEL).tolist()
    assert found[0] == 8
    assert found[2] == 0
    assert 2 <= found[1] <= 5
    assert 2 <= found[3] <= 4
    # of the braked one no other class comes nearer
    ends = drive_path(STRAIGHT.expand(13, -1, -1), 2.0, classes, torch.full((13,), 8.0), 10, 0.1, MODEL)[:, -1, 0]
    assert (ends - 6.0).abs().argmin().item() == found[1]
