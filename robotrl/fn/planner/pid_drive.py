"""A car that follows a path at a target speed: kinematic bicycle and two PID loops, batched over cars."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from robotrl.fn.planner.path_modes import points_at
from robotrl.spec.vehicle import VehicleModel


class PidGains(NamedTuple):
    """Gains of a PID loop."""

    kp: float
    ki: float
    """Per second."""
    kd: float
    """Seconds."""


class PidTracker(NamedTuple):
    """Two loops: acceleration by the error of the speed, steering by the angle to a point of the path ahead."""

    speed: PidGains = PidGains(2.0, 0.1, 0.0)
    """m/s of error to m/s^2."""
    steer: PidGains = PidGains(0.9, 0.05, 0.1)
    """rad of error to a steering action."""
    look_m: float = 3.0
    """Distance of the point ahead at standstill."""
    look_s: float = 0.25
    """Time by which it moves ahead with the speed."""


class PidState(NamedTuple):
    """Integral and last error of a loop, (B,) each."""

    integral: Tensor
    error: Tensor


def pid(
    gains: PidGains, state: PidState, error: Tensor, dt_s: float, low: float, high: float
) -> tuple[Tensor, PidState]:
    """Output (B,) of a PID loop within its bounds, and the loop's next state.

    The integral does not grow while the output is at a bound.
    """
    integral = state.integral + error * dt_s
    wanted = gains.kp * error + gains.ki * integral + gains.kd * (error - state.error) / dt_s
    out = wanted.clamp(low, high)
    return out, PidState(torch.where(out == wanted, integral, state.integral), error)


def bicycle(car: Tensor, steer: Tensor, accel: Tensor, dt_s: float, model: VehicleModel) -> Tensor:
    """Cars (B, 4) x, y, yaw and speed after a step of the kinematic bicycle model, forward only.

    Args:
        car: (B, 4) before.
        steer: (B,) steering actions, -1 to 1, left positive.
        accel: (B,) m/s^2.
        dt_s: length of the step, s.
        model: constants of the car.
    """
    x, y, yaw, v = car.unbind(-1)
    beta = torch.atan(model.rear_m / (model.front_m + model.rear_m) * torch.tan(model.steer_rad * steer))
    after = (v + accel * dt_s).clamp(min=0.0)
    # a car that stops within the step drives v^2 / 2a
    stopping = 0.5 * v * v / (-accel).clamp(min=1e-6)
    way = torch.where((after > 0) | (accel >= 0), 0.5 * (v + after) * dt_s, stopping)
    turned = way * torch.sin(beta) / model.rear_m
    # along the chord of the arc
    chord = way * torch.sinc(0.5 * turned / torch.pi)
    course = yaw + beta + 0.5 * turned
    return torch.stack([x + chord * course.cos(), y + chord * course.sin(), yaw + turned, after], dim=-1)


def drive_path(
    path: Tensor,
    spacing_m: float,
    target_mps: Tensor,
    speed_mps: Tensor,
    steps: int,
    dt_s: float,
    model: VehicleModel,
    tracker: PidTracker = PidTracker(),  # noqa: B008 - a constant tuple
) -> Tensor:
    """Poses (B, steps + 1, 4) x, y, yaw and speed of cars that start at the origin, along x, and follow a path.

    Args:
        path: (B, P, 2) points ahead, m.
        spacing_m: distance between two points.
        target_mps: (B,) target speeds.
        speed_mps: (B,) speeds at the start.
        steps: number of control steps.
        dt_s: length of a control step, s.
        model: constants of the cars.
        tracker: gains of both loops.
    """
    zero = torch.zeros_like(speed_mps)
    car = torch.stack([zero, zero, zero, speed_mps], dim=-1)
    driven = zero
    along = PidState(zero, target_mps - speed_mps)
    aside = PidState(zero, zero)
    poses = [car]
    for step in range(steps):
        x, y, yaw, v = car.unbind(-1)
        accel, along = pid(tracker.speed, along, target_mps - v, dt_s, -model.brake_mps2, model.throttle_mps2)
        ahead = points_at(path, spacing_m, driven + tracker.look_m + tracker.look_s * v)
        dx, dy = ahead[:, 0] - x, ahead[:, 1] - y
        error = torch.atan2(dy * yaw.cos() - dx * yaw.sin(), dx * yaw.cos() + dy * yaw.sin())
        if step == 0:
            # no derivative before the first error
            aside = PidState(zero, error)
        steer, aside = pid(tracker.steer, aside, error, dt_s, -1.0, 1.0)
        car = bicycle(car, steer, accel, dt_s, model)
        driven = driven + (car[:, :2] - poses[-1][:, :2]).norm(dim=-1)
        poses.append(car)
    return torch.stack(poses, dim=1)


def speed_labels(
    speed_mps: Tensor, driven_m: Tensor, classes_mps: Tensor, steps: int, dt_s: float, model: VehicleModel
) -> Tensor:
    """Speed class (B,) whose loop comes nearest to a logged distance in the same time; of equals the lowest.

    Args:
        speed_mps: (B,) speeds at the start.
        driven_m: (B,) logged distances after `steps`.
        classes_mps: (V,) target speeds, ascending.
        steps: number of control steps.
        dt_s: length of a control step, s.
        model: constants of the car.
    """
    count = len(classes_mps)
    straight = torch.tensor([[[1.0, 0.0]]]).to(speed_mps).expand(len(speed_mps) * count, 1, 2)
    targets, speeds = classes_mps.repeat(len(speed_mps)), speed_mps.repeat_interleave(count)
    end = drive_path(straight, 1.0, targets, speeds, steps, dt_s, model)[:, -1, 0].view(-1, count)
    # to the centimetre, so that rounding does not choose among classes that the loop cannot tell apart yet
    return ((end - driven_m[:, None]).abs() * 100).round().argmin(dim=1)
