"""Observations of `bev/drive` for a bundle, made of a session of the driver's contract.

The contract's rig frame lies on the ground below the rear axle (x ahead, y left, z up); `bev/drive` counts from the
center of the car's box, `REAR_M` further ahead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from carla_driver_interface.driver import CameraFrame, DriveContext, SessionState
from carla_driver_interface.geometry import Pose
from carla_driver_interface.protocol import CarlaRendererData, TrafficLightState
from numpy.typing import NDArray

from robotrl.deploy.bundle.manifest import Manifest, Port
from robotrl.errors import ConfigError, DataError, check_number, nearest
from robotrl.sims.driving import tables
from robotrl.sims.driving.geometry import REAR_M
from robotrl.sims.driving.plan import Actions, actions_of
from robotrl.sims.driving.render.raster import RasterCfg
from robotrl.sims.driving.reported.phases import GREEN, RED, YELLOW
from robotrl.sims.driving.reported.scene import ReportedEgo, ReportedLight, ReportedUser, RouteScene
from robotrl.spec import is_picture

BICYCLE_WIDTH_M = 1.2
"""Vehicles narrower than this are two-wheelers."""
STATES = {
    TrafficLightState.TRAFFIC_LIGHT_STATE_GREEN: GREEN,
    TrafficLightState.TRAFFIC_LIGHT_STATE_YELLOW: YELLOW,
    TrafficLightState.TRAFFIC_LIGHT_STATE_RED: RED,
}
KINDS = {"vehicle.": tables.CAR, "walker.": tables.PEDESTRIAN, "static.": tables.OBSTACLE}


class DriverCfg(NamedTuple):
    """Facts that neither the bundle nor the contract states; see `check`."""

    limit_mps: float = 10.0
    """Speed limit where the simulator tells none."""
    throttle_mps2: float = 2.4
    """Acceleration for an acceleration action of 1, as trained (`--sim.throttle-mps2`)."""
    pixels_per_m: float = 2.0
    """Resolution of the raster, as trained (`--sim.pixels-per-m`)."""
    horizon_s: float = 4.0
    """Length of a plan."""
    cameras: tuple[tuple[str, str], ...] = ()
    """Pairs of an observation of the bundle and the simulator's camera."""

    def check(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a number is out of range.
        """
        check_number("driver.limit_mps", self.limit_mps, 0.1, 60.0, "m/s")
        check_number("driver.throttle_mps2", self.throttle_mps2, 0.1, 10.0, "m/s^2")
        check_number("driver.pixels_per_m", self.pixels_per_m, 0.1, 20.0)
        check_number("driver.horizon_s", self.horizon_s, 0.1, 60.0, "s")


class Stamps(NamedTuple):
    """Times of what a session has reported, on the simulator's clock, us."""

    egomotion_us: int | None
    """Time of the last egomotion; None before the first."""
    route_us: int | None
    """Time of the route, whose frame is the rig of that time; None without one."""
    frames_us: dict[str, tuple[int, int]]
    """Begin and end of the exposure of the newest frame, by observation; cameras without a frame are left out."""

    def ages_ms(self, now_us: int) -> dict[str, float]:
        """Age of the egomotion, of the route and of the oldest frame at a time, ms, as far as there are any."""
        ends = [end for _, end in self.frames_us.values()]
        times = {"egomotion": self.egomotion_us, "route": self.route_us, "frame": min(ends, default=None)}
        return {f"{name}_age_ms": 1e-3 * (now_us - time_us) for name, time_us in times.items() if time_us is not None}


def stamps_of(session: SessionState, cfg: DriverCfg) -> Stamps:
    """Times of what a session has reported."""
    times, frames = session.ego_trajectory.timestamps_us, dict[str, tuple[int, int]]()
    for key, camera in cfg.cameras:
        frame = session.latest_frame(camera)
        if isinstance(frame, CameraFrame):
            frames[key] = (frame.frame_start_us, frame.frame_end_us)
    routed = len(session.route_waypoints_in_rig) > 0
    return Stamps(int(times[-1]) if times else None, int(session.route_timestamp_us) if routed else None, frames)


class BundlePorts(NamedTuple):
    """Observations and actions of a bundle: ports of the scene, and cameras by key."""

    scene: tuple[Port, ...]
    cameras: Mapping[str, Port]
    actions: Actions


def ports_of(manifest: Manifest, cfg: DriverCfg) -> BundlePorts:
    """The observations and actions of a bundle, as far as a driver knows them.

    Raises:
        DataError: the bundle is of no driving policy.
        ConfigError: a camera's name is missing or unknown.
    """
    ports = {port.name: port for port in manifest.observations}
    for port in ports.values():
        if port.stack > 1:
            # the contract's drive calls come at a rate of the simulator's, not at the bundle's
            raise DataError(f"this bundle's {port.name!r} holds {port.stack} control ticks: expected one of each")
    names = manifest.action.names
    if names == ("steer", "accel"):
        actions = actions_of("controls", 1, 4)
    else:
        actions = actions_of("trajectory", None, max(len(names) // 2, 2))
        if names != actions.spec.names:
            raise DataError(
                f"this bundle's actions are {', '.join(names[:4])}{', ...' if len(names) > 4 else ''}: expected those"
                " of a driving policy (steer and accel, or the points of a trajectory)"
            )
    chosen = dict(cfg.cameras)
    pictures = {key: port for key, port in ports.items() if is_picture(port.spec) and key != "bev"}
    for key in chosen:
        if key not in pictures:
            close = nearest(key, pictures)
            hint = f"did you mean {close!r}? " if close else ""
            raise ConfigError(f"--driver.cameras names {key!r}: {hint}expected {', '.join(pictures) or 'none'}")
    if missing := [key for key in pictures if key not in chosen]:
        raise ConfigError(f"no camera is named for {missing[0]!r}: expected --driver.cameras {missing[0]}=NAME")
    return BundlePorts(tuple(port for key, port in ports.items() if key not in pictures), pictures, actions)


def scene_of(ports: BundlePorts, cfg: DriverCfg) -> RouteScene:
    """The scene whose observations a bundle reads.

    Raises:
        DataError: an observation is none of `bev/drive`, or of another form.
        ConfigError: an option is out of range.
    """
    by_name = {port.name: port for port in ports.scene}
    obs = {(False, True): "raster", (True, False): "vector", (True, True): "both"}.get(
        ("scalars" in by_name, "bev" in by_name), "vector"
    )
    view, packed = RasterCfg(), False
    if "bev" in by_name:
        height, width, channels = by_name["bev"].shape
        view, packed = RasterCfg(height, width, cfg.pixels_per_m), channels == 2
    rows = {key: by_name[key].shape[0] if key in by_name else 0 for key in ("agents", "lanes")}
    scene = RouteScene(obs, rows["agents"], rows["lanes"], view, packed, ports.actions, cfg.throttle_mps2)
    for name, port in by_name.items():
        spec = scene.specs.get(name)
        if spec is None or (spec.shape, spec.dtype) != (port.shape, port.source_dtype) or spec.names != port.names:
            known = ", ".join(scene.specs)
            raise DataError(
                f"this bundle observes {name!r} of shape {port.shape}: expected observations of bev/drive ({known}),"
                " and cameras"
            )
    return scene


def ego_of(session: SessionState, steer: float, accel: float) -> tuple[ReportedEgo, Pose]:
    """The ego of a session as last reported: its center, and its rig's pose in the local frame.

    Acceleration and yaw rate are differences of the last two reported states.

    Raises:
        DataError: no egomotion has been reported, or a number of it is not finite.
    """
    times, poses = session.ego_trajectory.timestamps_us, session.ego_trajectory.poses
    if not poses:
        raise DataError("no egomotion was reported: expected submit_egomotion_observation before drive")
    speed, rate, gained = _speed(session, -1), 0.0, 0.0
    if len(poses) > 1 and 0 < (passed_us := times[-1] - times[-2]) <= 1_000_000:
        dt = passed_us * 1e-6
        gained = (speed - _speed(session, -2)) / dt
        turned = poses[-1].yaw - poses[-2].yaw
        rate = (math.remainder(turned, 2.0 * math.pi)) / dt
    if not (np.isfinite(poses[-1].position).all() and math.isfinite(speed)):
        raise DataError(f"the egomotion at {times[-1]} us has a number that is not finite: expected pose and velocity")
    x, y = center_of(poses[-1])
    return ReportedEgo(x, y, poses[-1].yaw, speed, gained, rate, steer, accel), poses[-1]


def _speed(session: SessionState, k: int) -> float:
    """Speed ahead of a reported state, m/s."""
    ahead = float(session.dynamic_states[k].linear_velocity.x)
    return 0.0 if ahead < 0.0 else ahead


def center_of(rig: Pose) -> tuple[float, float]:
    """Center of the car's box in the local frame, m."""
    yaw = rig.yaw
    return float(rig.position[0] + REAR_M * math.cos(yaw)), float(rig.position[1] + REAR_M * math.sin(yaw))


def route_of(session: SessionState) -> NDArray[np.float64]:
    """Route ahead (n, 3) in the local frame, m.

    Raises:
        DataError: none was reported.
    """
    points = session.route_waypoints_in_rig
    if len(points) < 2:
        raise DataError("no route was reported: expected submit_route with two points or more before drive")
    # the route's frame is the rig at its own time
    rig = session.ego_trajectory.interpolate(session.route_timestamp_us) or session.latest_pose()
    if rig is None:
        raise DataError("no egomotion was reported: expected submit_egomotion_observation before drive")
    return np.asarray(rig.transform_points(points), np.float64)


def users_of(data: CarlaRendererData | None) -> list[ReportedUser]:
    """Road users that a CARLA runtime reports; none where the runtime reports none, as AlpaSim's."""
    found: list[ReportedUser] = []
    for actor in () if data is None else data.actors:
        kind = next((one for prefix, one in KINDS.items() if actor.type_id.startswith(prefix)), 0)
        if not kind:
            continue
        pose, v = Pose.from_proto(actor.pose_local_to_aabb), actor.dynamic_state.linear_velocity
        length, width = float(actor.aabb.size_x), float(actor.aabb.size_y)
        if kind == tables.CAR and width < BICYCLE_WIDTH_M:
            kind = tables.CYCLIST
        x, y = (float(value) for value in pose.position[:2])
        found.append(ReportedUser(kind, x, y, pose.yaw, math.hypot(v.x, v.y), 0.0, length, width))
    return found


def light_of(data: CarlaRendererData | None) -> ReportedLight | None:
    """The light of the ego's lane that a CARLA runtime reports; None without."""
    if data is None or data.ego_traffic_light not in STATES or data.ego_traffic_light_distance_m < 0.0:
        return None
    return ReportedLight(float(data.ego_traffic_light_distance_m) - REAR_M, STATES[data.ego_traffic_light])


def limit_of(data: CarlaRendererData | None, cfg: DriverCfg) -> float:
    """Speed limit, m/s."""
    return cfg.limit_mps if data is None or data.speed_limit_mps <= 0.0 else float(data.speed_limit_mps)


def pictures_of(ctx: DriveContext, ports: BundlePorts, cfg: DriverCfg, max_age_s: float) -> dict[str, NDArray[Any]]:
    """Pictures of the bundle's cameras, resized to its observations.

    Raises:
        DataError: a camera has no frame, an old one, or one that cannot be decoded.
    """
    found: dict[str, NDArray[Any]] = {}
    for key, camera in cfg.cameras:
        frame = ctx.session.latest_frame(camera)
        if not isinstance(frame, CameraFrame):
            raise DataError(f"camera {camera!r} has no frame: expected submit_image_observation before drive")
        age_s = (ctx.time_now_us - frame.timestamp_us) * 1e-6
        if age_s > max_age_s:
            raise DataError(f"the frame of camera {camera!r} is {age_s:.2f} s old: expected {max_age_s:g} s at most")
        found[key] = resized(frame, ports.cameras[key].shape)
    return found


def resized(frame: CameraFrame, shape: Sequence[int]) -> NDArray[np.uint8]:
    """A frame as RGB of a shape (height, width, 3).

    Raises:
        DataError: it is no image.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        pixels = frame.as_array()
    except (UnidentifiedImageError, OSError, ValueError) as error:
        raise DataError(f"a frame of camera {frame.logical_id!r} is no image that can be decoded") from error
    height, width = shape[:2]
    if pixels.shape[:2] == (height, width):
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR), np.uint8)
