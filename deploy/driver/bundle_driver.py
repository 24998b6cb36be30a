"""`BundleDriver`: a bundle behind the driver's contract."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from carla_driver_interface.driver import BaseDriver, DriveContext, DriveResult, SessionState
from carla_driver_interface.geometry import Pose, Trajectory
from numpy.typing import NDArray

from robotrl.deploy.control.log import ControlLog
from robotrl.deploy.driver.sensing import (
    DriverCfg,
    Stamps,
    ego_of,
    light_of,
    limit_of,
    pictures_of,
    ports_of,
    route_of,
    scene_of,
    stamps_of,
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
LOG_HEADER = "driver_header"
"""Kind of the first line of a driver's log."""


class DriverCounts(NamedTuple):
    """Drive calls since the start."""

    planned: int
    """Calls that the policy answered."""
    braked: int
    """Calls that were answered by braking, since the scene was incomplete or the inference failed."""


class _Plan(NamedTuple):
    """A plan of a session."""

    ego: ReportedEgo
    rig: Pose
    motion: PlannedMotion
    seen_us: int
    """Time of the egomotion from which the motion begins."""


class _Course:
    """A session's decisions, and its last plan."""

    def __init__(self, seed: int) -> None:
        self.first = self.decision = (seed % DECISIONS) * DECISIONS
        self.braked = 0
        self.controls: NDArray[np.float64] = np.zeros((1, 2))
        self.time_us: int | None = None

    def last_controls(self, seen_us: int) -> tuple[float, float]:
        """Steering and acceleration action that were in force until the ego was seen."""
        if self.time_us is None:
            return 0.0, 0.0
        k = round((seen_us - self.time_us) * 1e-6 / DT_S) - 1
        steer, accel = self.controls[min(max(k, 0), len(self.controls) - 1)]
        return float(steer), float(accel)


class BundleDriver(BaseDriver):
    """Drives by a bundle of a policy of `bev/drive`, or of `carla/...` with cameras.

    The plan is the motion of `bev/drive`'s car by the policy's actions, at 10 Hz, from the time of the egomotion on:
    each pose has the time at which the car is to be there, however late the call is. A scene that is incomplete or too
    old, and an inference that fails, are answered by braking straight ahead, with the reason in the log; nothing is
    filled in. Sessions take turns.

    Args:
        bundle: the bundle's directory; it is verified, and proved on this machine.
        cfg: facts that neither the bundle nor the contract states.
        seed: seed of the noise; a session adds its own.
        log: path of the log (JSON lines), with ids and times of each call; None writes none.

    Raises:
        DataError: the bundle is refused, or is of no driving policy, or the log cannot be made.
        ConfigError: a setting is out of range.
    """

    name = "robotrl"

    def __init__(self, bundle: str | os.PathLike[str], cfg: DriverCfg, seed: int = 0, log: Path | None = None) -> None:
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
        self.log = ControlLog(log)
        header = {"bundle_id": self.manifest.bundle_id, "seed": seed, "cameras": dict(cfg.cameras)}
        self.log.open({**header, "control_period_s": self.manifest.timing.control_period_s}, LOG_HEADER)

    @property
    def counts(self) -> DriverCounts:
        """Drive calls since the start."""
        return DriverCounts(self._planned, self._braked)

    def close(self) -> None:
        """Release the scene, and end the log."""
        self._scene.close()
        with self._lock:
            self.log.close()

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
            fields = {"scene_id": session.scene_id, "random_seed": session.seed, "cameras": sorted(session.cameras)}
            self.log.write([{"kind": "session", "session": session.uuid, **fields}])

    def on_session_close(self, session: SessionState) -> None:
        """End a session."""
        with self._lock:
            course = self._courses.pop(session.uuid, None)
            if course is not None:
                counts = {"planned": course.decision - course.first, "braked": course.braked}
                self.log.write([{"kind": "session_end", "session": session.uuid, **counts}])

    def drive(self, ctx: DriveContext) -> DriveResult:
        """Plan for a session at `ctx.time_now_us`."""
        with self._lock:
            course = self._courses.get(ctx.session.uuid) or _Course(ctx.session.seed)
            decision, began, why = course.decision, time.perf_counter(), None
            with ctx.session.lock:
                stamps, number = stamps_of(ctx.session, self._cfg), ctx.session.drive_count
                try:
                    plan = self._plan(ctx, course, stamps)
                    result = DriveResult(in_rig(plan.motion.poses, plan.rig, plan.seen_us))
                    result.debug_scalars = {"speed_mps": plan.ego.speed_mps, "braked": 0.0}
                    course.controls, course.time_us = plan.motion.controls, plan.seen_us
                    course.decision += 1
                    self._planned += 1
                except RobotrlError as error:
                    why, result = str(error), self._brake(ctx)
                    course.braked += 1
                    self._braked += 1
                    _LOG.warning("session %s: braking: %s", ctx.session.uuid, error)
            result.debug_scalars |= {
                "inference_ms": 1e3 * (time.perf_counter() - began),
                "decision": float(decision - course.first),
                **stamps.ages_ms(ctx.time_now_us),
            }
            self._record(ctx, stamps, number, decision, why, result)
        return result

    def _record(
        self, ctx: DriveContext, stamps: Stamps, number: int, decision: int, why: str | None, result: DriveResult
    ) -> None:
        """Write a call's line of the log."""
        times = result.trajectory_in_rig.timestamps_us
        self.log.write(
            [
                {
                    "kind": "drive",
                    "session": ctx.session.uuid,
                    "drive": number,
                    "time_now_us": ctx.time_now_us,
                    "time_query_us": ctx.time_query_us,
                    **stamps._asdict(),
                    "decision": decision,
                    "braked": why,
                    "inference_ms": result.debug_scalars["inference_ms"],
                    "plan_us": [times[0], times[-1]] if times else None,
                }
            ]
        )

    def _plan(self, ctx: DriveContext, course: _Course, stamps: Stamps) -> _Plan:
        """The ego's planned motion.

        Raises:
            RobotrlError: the scene is incomplete, or the inference failed.
        """
        session, cfg, data = ctx.session, self._cfg, ctx.renderer_data
        seen_us = ctx.time_now_us if stamps.egomotion_us is None else stamps.egomotion_us
        ego, rig = ego_of(session, *course.last_controls(seen_us))
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
        # from the time of the egomotion to the next step, and as far beyond the call as without its age
        held_s, length_s = max(age_s + steps_s, 0.0), max(age_s, 0.0) + cfg.horizon_s
        motion = self._scene.motion(chunk, self.manifest.timing.control_period_s, held_s, length_s)
        return _Plan(ego, rig, motion, seen_us)

    def _brake(self, ctx: DriveContext) -> DriveResult:
        """A plan that stops straight ahead, from now on; an empty one, which holds, before any egomotion."""
        try:
            ego, rig = ego_of(ctx.session, 0.0, 0.0)
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


def in_rig(poses: NDArray[np.float64], rig: Pose, from_us: int) -> Trajectory:
    """Poses (T, 3) of the car's center in the local frame as a plan of the rig, at the height of `rig`.

    Args:
        poses: poses every `DT_S` from `from_us` on; the first one belongs to the end of the first step.
        rig: pose of the rig at `from_us` in the local frame.
        from_us: time from which the poses count.
    """
    plan, there = Trajectory.empty(), rig.inverse()
    for k, (x, y, yaw) in enumerate(poses.tolist(), start=1):
        rear = Pose.from_xyz_yaw(x - REAR_M * math.cos(yaw), y - REAR_M * math.sin(yaw), float(rig.position[2]), yaw)
        plan.append(from_us + round(k * DT_S * 1e6), there @ rear)
    return plan
