"""What the columns of an observation are called, in which unit, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from robotrl.spec import Spec

INF = float("inf")
INERTIA = ("xx", "yy", "zz", "xy", "xz", "yz")
"""Order of the moments and products of inertia in MuJoCo's `cinert`."""


class ObsColumn(NamedTuple):
    """One number of an observation."""

    name: str
    unit: str


class Segment(NamedTuple):
    """Neighbouring columns that are the last part of a field of MuJoCo's, or all of it."""

    field: str
    """Of MjData; "coordinates" is qpos and qvel, one after the other."""
    columns: tuple[ObsColumn, ...]
    """The field's last columns."""
    skip: int = 0
    """How many of these, from the first on, are not observed."""
    clip: tuple[float, float] | None = None
    """Range that the numbers are cut to."""


def spec_of(segments: Sequence[Segment], dtype: str) -> Spec:
    """The spec of an observation made of `segments`."""
    columns = [(column, segment.clip) for segment in segments for column in segment.columns[segment.skip :]]
    return Spec(
        shape=(len(columns),),
        names=tuple(column.name for column, _ in columns),
        units=tuple(column.unit for column, _ in columns),
        low=tuple(clip[0] if clip else -INF for _, clip in columns),
        high=tuple(clip[1] if clip else INF for _, clip in columns),
        dtype=dtype,
    )


def joint_positions(joints: Sequence[str]) -> tuple[ObsColumn, ...]:
    """Angles of hinges."""
    return tuple(ObsColumn(f"{joint}_pos", "rad") for joint in joints)


def joint_velocities(joints: Sequence[str]) -> tuple[ObsColumn, ...]:
    """Rates of hinges."""
    return tuple(ObsColumn(f"{joint}_vel", "rad/s") for joint in joints)


def free_positions(body: str) -> tuple[ObsColumn, ...]:
    """Position and orientation of a body that moves freely."""
    return (
        *(ObsColumn(f"{body}_pos_{axis}_w", "m") for axis in "xyz"),
        *(ObsColumn(f"{body}_quat_{part}_w", "1") for part in "wxyz"),
    )


def free_velocities(body: str) -> tuple[ObsColumn, ...]:
    """Its velocity in the world frame and its rotation in its own, as in MuJoCo's qvel."""
    return (
        *(ObsColumn(f"{body}_vel_{axis}_w", "m/s") for axis in "xyz"),
        *(ObsColumn(f"{body}_ang_vel_{axis}_b", "rad/s") for axis in "xyz"),
    )


def inertias(bodies: Sequence[str]) -> tuple[ObsColumn, ...]:
    """MuJoCo's `cinert`: each body's inertia and first moment about the whole robot's centre of mass, and its mass."""
    return tuple(
        column
        for body in bodies
        for column in (
            *(ObsColumn(f"{body}_inertia_{axes}_w", "kg m^2") for axes in INERTIA),
            *(ObsColumn(f"{body}_mass_moment_{axis}_w", "kg m") for axis in "xyz"),
            ObsColumn(f"{body}_mass", "kg"),
        )
    )


def spatial_velocities(bodies: Sequence[str]) -> tuple[ObsColumn, ...]:
    """MuJoCo's `cvel`: rotation of each body, and its velocity at the centre of mass of the whole robot."""
    return tuple(
        column
        for body in bodies
        for column in (
            *(ObsColumn(f"{body}_com_ang_vel_{axis}_w", "rad/s") for axis in "xyz"),
            *(ObsColumn(f"{body}_com_vel_{axis}_w", "m/s") for axis in "xyz"),
        )
    )


def wrenches(bodies: Sequence[str]) -> tuple[ObsColumn, ...]:
    """MuJoCo's `cfrc_ext`: torque, about the centre of mass of the whole robot, and force that act on each body."""
    return tuple(
        column
        for body in bodies
        for column in (
            *(ObsColumn(f"{body}_contact_torque_{axis}_w", "N m") for axis in "xyz"),
            *(ObsColumn(f"{body}_contact_force_{axis}_w", "N") for axis in "xyz"),
        )
    )


def actuator_torques(joints: Sequence[str]) -> tuple[ObsColumn, ...]:
    """MuJoCo's `qfrc_actuator` at hinges."""
    return tuple(ObsColumn(f"{joint}_actuator_torque", "N m") for joint in joints)
