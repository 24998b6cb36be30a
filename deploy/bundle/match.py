"""Comparison of a robot with a bundle: by names, never by positions.

Elements are matched and permuted by name. A driver that lists its joints in another order works; one that lacks a
joint, or has another unit for it, is refused before anything moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast, get_args

import numpy as np

from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.bundle.site import SiteLimits, tightened
from robotrl.deploy.control.safety import SafetyLimits, limits_of
from robotrl.deploy.control.start import MotionToStart
from robotrl.deploy.robots.link import MAX_OBSERVATION, RobotFault
from robotrl.deploy.robots.start_motion import StartedBy, StartMotion
from robotrl.errors import ConfigError, nearest
from robotrl.spec import Spec, is_picture
from robotrl.spec.checks import first_word_difference

_PERIOD_TOLERANCE = 1e-6


@dataclass(frozen=True)
class RobotInfo:
    """A robot's description of itself: specs, periods and start states."""

    observation_spec: dict[str, Spec]
    action_spec: Spec
    control_dt_s: float
    inner_dt_s: float
    limit_s: float | None
    test_ids: range
    started_by: StartedBy = "driver"
    start_motion: StartMotion | None = None
    """Of a robot that the servo moves to its start."""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RobotInfo:
        """Parse a robot's introduction.

        Raises:
            RobotFault: it reports a fault, or is invalid.
        """
        if "fault" in data:
            raise RobotFault(str(data["fault"]))
        try:
            return cls(
                observation_spec={str(key): Spec.from_json(spec) for key, spec in data["observation_spec"].items()},
                action_spec=Spec.from_json(data["action_spec"]),
                control_dt_s=float(data["control_dt_s"]),
                inner_dt_s=float(data["inner_dt_s"]),
                limit_s=None if data["limit_s"] is None else float(data["limit_s"]),
                test_ids=range(int(data["test_ids"][0]), int(data["test_ids"][1])),
                # a driver's own loop may say neither
                started_by=_started_by(data.get("started_by", "driver")),
                start_motion=None if (motion := data.get("start_motion")) is None else StartMotion.from_json(motion),
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise RobotFault(f"the robot's introduction is not one: {type(error).__name__}: {error}") from error


class Wiring(NamedTuple):
    """Index maps and limits that connect a bundle and a robot."""

    observations: dict[str, np.ndarray]
    """For each observation of numbers: indices (of one tick's shape) into the robot's flat observation."""
    observation_size: int
    """Length of the robot's flat observation, without images."""
    cameras: dict[str, np.ndarray]
    """For each image of the bundle: order (channels,) of the robot's channels."""
    action: np.ndarray
    """(A,) index into the bundle's action for each action element of the robot."""
    limits: SafetyLimits
    """Limits of the bundle, tightened by the robot's own bounds and the site's limits."""
    start: MotionToStart | None = None
    """Motion by which the servo brings the robot to its start; None where its driver does."""


def wire(manifest: Manifest, robot: RobotInfo, site: SiteLimits | None = None) -> Wiring:
    """Connect a bundle and a robot.

    Args:
        manifest: the bundle's manifest.
        robot: the robot's introduction.
        site: limits of the robot's site; None for none.

    Raises:
        ConfigError: the robot or the site's limits do not match the bundle; the first difference is named.
    """
    offsets: dict[str, int] = {}
    size = 0
    for key, spec in robot.observation_spec.items():
        offsets[key] = size
        size += 0 if is_picture(spec) else int(np.prod(spec.shape))
    observations: dict[str, np.ndarray] = {}
    cameras: dict[str, np.ndarray] = {}
    for port in manifest.observations:
        if port.name not in robot.observation_spec:
            close = nearest(port.name, robot.observation_spec)
            hint = f"did you mean {close!r}? " if close else ""
            known = ", ".join(robot.observation_spec)
            raise ConfigError(f"robot has no observation {port.name!r} of the bundle: {hint}it has: {known}")
        spec = robot.observation_spec[port.name]
        what = f"observation {port.name!r}"
        if spec.shape[:-1] != port.measured_shape[:-1]:
            raise ConfigError(f"{what} of the robot has shape {spec.shape}: the bundle expects {port.measured_shape}")
        order = _order(what, port.names, port.units, spec)
        _same_numbers(what, port.measured, spec)
        if is_picture(spec):
            cameras[port.name] = order
            continue
        if port.stack > 1 and int(np.prod(port.shape)) > MAX_OBSERVATION:
            raise ConfigError(
                f"{what} is {port.stack} control ticks of {port.shape[-1]} numbers: expected at most {MAX_OBSERVATION}"
                " numbers in all"
            )
        flat = offsets[port.name] + np.arange(int(np.prod(spec.shape))).reshape(spec.shape)
        observations[port.name] = flat[..., order]
    # The robot's element i is the bundle's element action[i]: the inverse of `order`.
    order = _order("action", manifest.action.names, manifest.action.units, robot.action_spec)
    _same_choices(manifest, robot.action_spec, order)
    period = manifest.timing.control_period_s
    if abs(period - robot.control_dt_s) > _PERIOD_TOLERANCE:
        raise ConfigError(f"robot is controlled every {robot.control_dt_s} s: the bundle was trained for {period} s")
    limits = _limits(manifest, robot.action_spec, order, site)
    start = None if robot.start_motion is None else _start(manifest, robot.start_motion, order, limits)
    return Wiring(observations, size, cameras, np.argsort(order), limits, start)


def _started_by(value: object) -> StartedBy:
    if value not in get_args(StartedBy):
        raise ValueError(f"started_by is {value!r}")
    return cast("StartedBy", value)


def _start(manifest: Manifest, motion: StartMotion, order: np.ndarray, limits: SafetyLimits) -> MotionToStart:
    """Motion to the start pose in the bundle's order.

    Args:
        manifest: the bundle's manifest.
        motion: the robot's description of it.
        order: index of each of the bundle's action elements among the robot's.
        limits: limits of bundle, robot and site.

    Raises:
        ConfigError: the actions are no positions, one of them is not measured, or a number of the motion cannot be.
    """
    names, measured = manifest.action.names, limits.measured
    if limits.hold != "last" or measured is None:
        raise ConfigError(
            f"robot has a start_motion, and the bundle's actions are of kind {manifest.action.kind!r}: expected"
            " position targets, or a driver whose reset moves the robot"
        )
    for field, values in motion._asdict().items():
        if len(values) != len(names):
            raise ConfigError(f"start_motion.{field} of the robot has {len(values)} numbers: expected {len(names)}")
    pose, speed, tolerance = (np.asarray(values, np.float64)[order] for values in motion)
    for i, name in enumerate(names):
        if not limits.low[i] <= pose[i] <= limits.high[i]:
            raise ConfigError(
                f"start_motion.pose of {name!r} is {pose[i]}: limits of bundle, robot and site leave"
                f" [{limits.low[i]}, {limits.high[i]}]"
            )
        for field, value in (("speed", speed[i]), ("tolerance", tolerance[i])):
            if not 0 < value < np.inf:
                raise ConfigError(f"start_motion.{field} of {name!r} is {value}: expected more than 0")
        if measured[i] is None:
            raise ConfigError(
                f"action element {name!r} has no observation that measures it: expected one, from which the robot is"
                " moved to its start, or a driver whose reset moves it"
            )
    step = speed * manifest.timing.control_period_s
    return MotionToStart(*(array.astype(np.float32) for array in (pose, step, tolerance)))


def _order(what: str, names: tuple[str, ...], units: tuple[str, ...], spec: Spec) -> np.ndarray:
    """Index of each of the bundle's elements among the robot's."""
    for name in names:
        if name not in spec.names:
            close = nearest(name, spec.names)
            hint = f"did you mean {close!r}? " if close else ""
            raise ConfigError(f"{what} of the robot lacks {name!r}: {hint}it has: {', '.join(spec.names)}")
    extra = [name for name in spec.names if name not in names]
    if extra:
        raise ConfigError(f"{what} of the robot has {extra[0]!r}, which the bundle does not know: {', '.join(names)}")
    order = [spec.names.index(name) for name in names]
    for name, unit, index in zip(names, units, order, strict=True):
        if spec.units[index] != unit:
            raise ConfigError(f"{what} element {name!r} is in {spec.units[index]!r}: the bundle expects {unit!r}")
    return np.asarray(order, np.int64)


def _same_numbers(what: str, wanted: Spec, spec: Spec) -> None:
    """Refuse a robot whose images are not uint8 where the bundle's are, or whose vocabulary differs."""
    if is_picture(wanted) != is_picture(spec):
        kinds = ("an image of uint8" if is_picture(one) else f"{one.dtype} numbers" for one in (spec, wanted))
        robot, bundle = kinds
        raise ConfigError(f"{what} of the robot is {robot}: the bundle expects {bundle}")
    differs = first_word_difference(wanted.words, spec.words) if wanted.words else None
    if differs is not None:
        raise ConfigError(
            f"{what} of the robot has {differs.now} as word {differs.number}: the bundle was trained with"
            f" {differs.before} there, expected the same words in the same order"
        )


def _same_choices(manifest: Manifest, spec: Spec, order: np.ndarray) -> None:
    """Refuse a robot whose discrete choices differ from the bundle's."""
    wanted = manifest.action.choices
    found = None if spec.choices is None else tuple(spec.choices[i] for i in order)
    if found != wanted:
        bundle, robot = ("numbers" if c is None else f"choices of {', '.join(map(str, c))}" for c in (wanted, found))
        raise ConfigError(f"action of the robot is {robot}: the bundle's is {bundle}, expected the same")


def _limits(manifest: Manifest, spec: Spec, order: np.ndarray, site: SiteLimits | None) -> SafetyLimits:
    """Limits of the bundle, tightened by the site's and by the robot's bounds."""
    limits = limits_of(manifest)
    if site is not None:
        limits = tightened(limits, manifest, site)
    low = np.maximum(limits.low, np.asarray(spec.low, np.float32)[order])
    high = np.minimum(limits.high, np.asarray(spec.high, np.float32)[order])
    for i, name in enumerate(manifest.action.names):
        if not low[i] <= limits.neutral[i] <= high[i]:
            raise ConfigError(
                f"action element {name!r}: limits of bundle, robot and site leave [{low[i]}, {high[i]}], "
                f"which does not hold the neutral action {limits.neutral[i]}"
            )
    return limits._replace(low=low, high=high)
