"""Observation columns of the locomotion tasks: name, unit and source field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from robotrl.spec import Spec

INF = float("inf")
INERTIA = ("xx", "yy", "zz", "xy", "xz", "yz")
"""Order of the moments and products of inertia in MuJoCo's `cinert`."""


class ObsColumn(NamedTuple):
    """One column of an observation."""

    name: str
    unit: str


class Segment(NamedTuple):
    """Contiguous observation columns taken from a MuJoCo field (the whole field or its last part)."""

    field: str
    """MjData field; "coordinates" is qpos followed by qvel."""
    columns: tuple[ObsColumn, ...]
    """Columns of the end of the field."""
    skip: int = 0
    """Number of leading columns that are not observed."""
    clip: tuple[float, float] | None = None
    """(low, high) that the values are clipped to."""


def spec_of(segments: Sequence[Segment], dtype: str) -> Spec:
    """Observation spec of concatenated `segments`."""
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
    """Columns of hinge angles."""
    return tuple(ObsColumn(f"{joint}_pos", "rad") for joint in joints)


def joint_velocities(joints: Sequence[str]) -> tuple[ObsColumn, ...]:
    """Columns of hinge velocities."""
    return tuple(ObsColumn(f"{joint}_vel", "rad/s") for joint in joints)


def free_positions(body: str) -> tuple[ObsColumn, ...]:
    """Columns of a free body's position and orientation."""
    return (
        *(ObsColumn(f"{body}_pos_{axis}_w", "m") for axis in "xyz"),
        *(ObsColumn(f"{body}_quat_{part}_w", "1") for part in "wxyz"),
    )


def free_velocities(body: str) -> tuple[ObsColumn, ...]:
    """Columns of a free body's linear velocity (world frame) and angular velocity (body frame), as in MuJoCo's qvel."""
    return (
        *(ObsColumn(f"{body}_vel_{axis}_w", "m/s") for axis in "xyz"),
        *(ObsColumn(f"{body}_ang_vel_{axis}_b", "rad/s") for axis in "xyz"),
    )


def inertias(bodies: Sequence[str]) -> tuple[ObsColumn, ...]:
    """Columns of `cinert`: each body's inertia and first moment about the robot's centre of mass, and its mass."""
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
    """Columns of `cvel`: each body's angular velocity, and its linear velocity at the robot's centre of mass."""
    return tuple(
        column
        for body in bodies
        for column in (
            *(ObsColumn(f"{body}_com_ang_vel_{axis}_w", "rad/s") for axis in "xyz"),
            *(ObsColumn(f"{body}_com_vel_{axis}_w", "m/s") for axis in "xyz"),
        )
    )


def wrenches(bodies: Sequence[str]) -> tuple[ObsColumn, ...]:
    """Columns of `cfrc_ext`: external torque (about the robot's centre of mass) and force on each body."""
    return tuple(
        column
        for body in bodies
        for column in (
            *(ObsColumn(f"{body}_contact_torque_{axis}_w", "N m") for axis in "xyz"),
            *(ObsColumn(f"{body}_contact_force_{axis}_w", "N") for axis in "xyz"),
        )
    )


def actuator_torques(joints: Sequence[str]) -> tuple[ObsColumn, ...]:
    """Columns of `qfrc_actuator` at hinges."""
    return tuple(ObsColumn(f"{joint}_actuator_torque", "N m") for joint in joints)
