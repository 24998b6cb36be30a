"""`BundleDriver`: a bundle behind the driver's contract."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from typing import NamedTuple

import numpy as np
from carla_driver_interface.driver import BaseDriver, DriveContext, DriveResult, SessionState
from carla_driver_interface.geometry import Pose, Trajectory
from numpy.typing import NDArray

from robotrl.deploy.driver.sensing import (
    DriverCfg,
    ego_of,
    light_of,
    limit_of,
    pictures_of,
    ports_of,
    route_of,
    scene_of,
    users_of,
)
from robotrl.deploy.runtime import Controller
from robotrl.deploy.state import refuse_state
from robotrl.errors import DataError, RobotrlError
from robotrl.sims.driving.geometry import BRAKE_MPS2, REAR_M
from robotrl.sims.driving.reported.scene import DT_S, PlannedMotion, ReportedEgo

_LOG = logging.getLogger("robotrl.driver")
DECISIONS = 1 << 20
"""Decisions of a session; the noise of each follows from the session's seed and its number."""


LONGEST_STEP_S = 60.0
"""Longest step of the simulator that is planned for."""


class DriverCounts(NamedTuple):
    """Drive calls since the start."""

    planned: int
    """Calls that the policy answered."""
    braked: int
    """Calls that were answered by braking, since the scene was incomplete or the inference failed."""


class _Course:
    """A session's last plan."""

    def __init__(self, seed: int) -> None:
        self.decision = (seed % DECISIONS) * DECISIONS
        self.controls: NDArray[np.float64] = np.zeros((1, 2))
        self.time_us: int | None = None

    def last_controls(self, now_us: int) -> tuple[float, float]:
        """Steering and acceleration action that were in force until now."""
        if self.time_us is None:
            return 0.0, 0.0
        k = round((now_us - self.time_us) * 1e-6 / DT_S) - 1
        steer, accel = self.controls[min(max(k, 0), len(self.controls) - 1)]
        return float(steer), float(accel)


class BundleDriver(BaseDriver):
    """Drives by a bundle of a policy of `bev/drive`, or of `carla/...` with cameras.

    The plan is the motion of `bev/drive`'s car by the policy's actions, at 10 Hz. A scene that is incomplete or too
    old, and an inference that fails, are answered by braking straight ahead, with the reason in the log; nothing is
    filled in. Sessions take turns.

    Args:
        bundle: the bundle's directory; it is verified, and proved on this machine.
        cfg: facts that neither the bundle nor the contract states.
        seed: seed of the noise; a session adds its own.

    Raises:
        DataError: the bundle is refused, or is of no driving policy.
        ConfigError: a setting is out of range.
    """

    name = "robotrl"

    def __init__(self, bundle: str | os.PathLike[str], cfg: DriverCfg, seed: int = 0) -> None:
        cfg.check()
        self.controller = Controller.load(bundle, seed=seed)
        self.manifest = self.controller.manifest
        refuse_state(self.manifest, "a driver that is asked at a rate of its own")
        self._cfg = cfg
        self._ports = ports_of(self.manifest, cfg)
        self._scene = scene_of(self._ports, cfg)
        self._max_age_s = self.manifest.timing.max_observation_age_s
        self._courses: dict[str, _Course] = {}
        self._lock = threading.Lock()
        self._planned = self._braked = 0

    @property
    def counts(self) -> DriverCounts:
        """Drive calls since the start."""
        return DriverCounts(self._planned, self._braked)

    def close(self) -> None:
        """Release the scene."""
        self._scene.close()

    def on_session_start(self, session: SessionState) -> None:
        """Begin a session.

        Raises:
            DataError: the simulator lacks a camera; the session is refused with this text.
        """
        for key, camera in self._cfg.cameras:
            if camera not in session.cameras:
                raise DataError(
                    f"the simulator has no camera {camera!r} for {key!r}: expected one of {sorted(session.cameras)}"
                )
        with self._lock:
            self._courses[session.uuid] = _Course(session.seed)

    def on_session_close(self, session: SessionState) -> None:
        """End a session."""
        with self._lock:
            self._courses.pop(session.uuid, None)

    def drive(self, ctx: DriveContext) -> DriveResult:
        """Plan for a session at `ctx.time_now_us`."""
        with self._lock:
            course = self._courses.get(ctx.session.uuid) or _Course(ctx.session.seed)
            began = time.perf_counter()
            try:
                with ctx.session.lock:
                    ego, rig, motion = self._plan(ctx, course)
            except RobotrlError as error:
                self._braked += 1
                _LOG.warning("session %s: braking: %s", ctx.session.uuid, error)
                return self._brake(ctx)
            course.controls, course.time_us = motion.controls, ctx.time_now_us
            course.decision += 1
            self._planned += 1
        scalars = {"inference_ms": 1e3 * (time.perf_counter() - began), "speed_mps": ego.speed_mps, "braked": 0.0}
        return DriveResult(in_rig(motion.poses, rig, ctx.time_now_us), debug_scalars=scalars)

    def _plan(self, ctx: DriveContext, course: _Course) -> tuple[ReportedEgo, Pose, PlannedMotion]:
        """The ego, its rig, and its planned motion.

        Raises:
            RobotrlError: the scene is incomplete, or the inference failed.
        """
        session, cfg, data = ctx.session, self._cfg, ctx.renderer_data
        ego, rig, seen_us = ego_of(session, *course.last_controls(ctx.time_now_us))
        age_s = (ctx.time_now_us - seen_us) * 1e-6
        if age_s > self._max_age_s:
            raise DataError(f"the last egomotion is {age_s:.2f} s old: expected {self._max_age_s:g} s at most")
        steps_s = (ctx.time_query_us - ctx.time_now_us) * 1e-6
        if steps_s > LONGEST_STEP_S:
            raise DataError(f"the next step is {steps_s:.1f} s ahead: expected {LONGEST_STEP_S:g} s at most")
        pictures = pictures_of(ctx, self._ports, cfg, self._max_age_s)
        obs = self._scene.observe(route_of(session), limit_of(data, cfg), ego, users_of(data), light_of(data))
        wanted = {port.name: obs[port.name] for port in self._ports.scene} | pictures
        chunk = self.controller.infer(wanted, course.decision).astype(np.float64)
        period_s = self.manifest.timing.control_period_s
        return ego, rig, self._scene.motion(chunk, period_s, max(steps_s, 0.0), cfg.horizon_s)

    def _brake(self, ctx: DriveContext) -> DriveResult:
        """A plan that stops straight ahead; an empty one, which holds, before any egomotion."""
        try:
            ego, rig, _ = ego_of(ctx.session, 0.0, 0.0)
        except DataError:
            return DriveResult(Trajectory.empty(), debug_scalars={"braked": 1.0})
        poses = braking(ego, self._cfg.horizon_s)
        scalars = {"speed_mps": ego.speed_mps, "braked": 1.0}
        return DriveResult(in_rig(poses, rig, ctx.time_now_us), debug_scalars=scalars)


def braking(ego: ReportedEgo, horizon_s: float) -> NDArray[np.float64]:
    """Poses (T, 3) every `DT_S` of an ego that brakes fully along its heading."""
    t = DT_S * np.arange(1, max(round(horizon_s / DT_S), 1) + 1)
    t = np.minimum(t, ego.speed_mps / BRAKE_MPS2)
    way = ego.speed_mps * t - 0.5 * BRAKE_MPS2 * t**2
    cos, sin = math.cos(ego.yaw_rad), math.sin(ego.yaw_rad)
    return np.stack([ego.x_m + way * cos, ego.y_m + way * sin, np.full(len(t), ego.yaw_rad)], axis=1)


def in_rig(poses: NDArray[np.float64], rig: Pose, now_us: int) -> Trajectory:
    """Poses (T, 3) of the car's center in the local frame as a plan of the rig, at the height of `rig`."""
    plan, there = Trajectory.empty(), rig.inverse()
    for k, (x, y, yaw) in enumerate(poses.tolist(), start=1):
        rear = Pose.from_xyz_yaw(x - REAR_M * math.cos(yaw), y - REAR_M * math.sin(yaw), float(rig.position[2]), yaw)
        plan.append(now_us + round(k * DT_S * 1e6), there @ rear)
    return plan
