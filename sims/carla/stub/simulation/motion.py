"""Motion of all actors over one step of time."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.carla.stub.simulation import physics
from robotrl.sims.carla.stub.simulation.actors import Actors, StubActor
from robotrl.sims.carla.stub.simulation.blueprints import Kind
from robotrl.sims.carla.stub.simulation.town import Pose, Town

Rows = NDArray[np.intp]


class Collision(NamedTuple):
    """Two actors that ran into each other; the impulse (N s) acts on the first."""

    actor: int
    other: int
    impulse: tuple[float, float, float]


def move(actors: Actors, town: Town, dt_s: float) -> list[Collision]:
    """Move all actors, stop those that would run into others, and return who did."""
    body, record = actors.body, actors.record
    before = body.copy()
    _drive(actors, dt_s)
    _walk(actors, dt_s)
    _follow_scripts(actors)
    _fall(actors, town)
    collisions = _collide(actors, before)
    record["acceleration"] = (body["velocity"] - before["velocity"]) / dt_s
    turned = (body["rotation"] - before["rotation"] + 180.0) % 360.0 - 180.0
    record["angular_velocity"] = turned[:, [2, 0, 1]] / dt_s  # about x, y and z
    return collisions


def _drive(actors: Actors, dt_s: float) -> None:
    body, record = actors.body, actors.record
    rows = actors.rows(Kind.VEHICLE)
    rows = rows[body["simulated"][rows] & ~body["scripted"][rows]]
    if not len(rows):
        return
    control = record[rows]
    speed = physics.next_speed(
        body["speed"][rows],
        control["throttle"].astype(float),
        control["brake"].astype(float),
        control["hand_brake"],
        control["reverse"],
        dt_s,
    )
    held = body["constant"][rows]
    speed = np.where(held, body["constant_velocity"][rows, 0], speed)
    yaw = np.radians(body["rotation"][rows, 1])
    steer = control["steer"].astype(float)
    moved = physics.bicycle(body["location"][rows, :2], yaw, speed, steer, body["wheelbase"][rows], dt_s)
    body["location"][rows, :2] = moved.xy
    body["rotation"][rows, 1] = np.degrees(moved.yaw_rad)
    body["speed"][rows] = speed
    body["velocity"][rows, 0] = speed * np.cos(moved.yaw_rad)
    body["velocity"][rows, 1] = speed * np.sin(moved.yaw_rad)
    body["velocity"][rows, 2] = 0.0


def _walk(actors: Actors, dt_s: float) -> None:
    body, record = actors.body, actors.record
    rows = actors.rows(Kind.WALKER)
    rows = rows[body["simulated"][rows] & ~body["scripted"][rows]]
    if not len(rows):
        return
    way = record["walk_direction"][rows].astype(float)
    way[:, 2] = 0.0
    length = np.linalg.norm(way, axis=1, keepdims=True)
    velocity = way / np.maximum(length, 1e-9) * record["walk_speed"][rows, None]
    body["velocity"][rows] = velocity
    body["speed"][rows] = np.linalg.norm(velocity, axis=1)
    body["location"][rows] += velocity * dt_s
    walks = rows[(body["speed"][rows] > 0)]
    body["rotation"][walks, 1] = np.degrees(np.arctan2(body["velocity"][walks, 1], body["velocity"][walks, 0]))


def _follow_scripts(actors: Actors) -> None:
    """Put each scripted actor at its next pose; at the last one it stays."""
    for row in np.flatnonzero(actors.body["scripted"]):
        actor = actors.list[row]
        if actor.script:
            pose = actor.script.pop(0)
            actors.body["location"][row], actors.body["rotation"][row] = pose[:3], pose[3:]


def _fall(actors: Actors, town: Town) -> None:
    body = actors.body
    for kind in (Kind.VEHICLE, Kind.WALKER):
        rows = actors.rows(kind)
        rows = rows[body["simulated"][rows] & ~body["scripted"][rows]]
        if not town.flat:
            body["ground_z"][rows] = [town.ground(*(float(v) for v in at)) for at in body["location"][rows]]
        height = 0.0 if kind is Kind.VEHICLE else body["extent"][rows, 2]  # a walker's origin is its middle
        body["location"][rows, 2] = body["ground_z"][rows] + height


def _collide(actors: Actors, before: NDArray[np.void]) -> list[Collision]:
    """Take those back who ran into others, and stop them.

    Who overlapped before (was put there) may move on.
    """
    body = actors.body
    solid = np.flatnonzero(body["solid"])
    pairs = overlaps(body, solid)
    if not len(pairs):
        return []
    old = {tuple(pair) for pair in overlaps(before, solid).tolist()}
    found: list[Collision] = []
    stopped: list[int] = []
    for first, second in pairs.tolist():
        found += _impulses(actors, first, second)
        if (first, second) not in old:
            stopped += [first, second]
    stopped = [row for row in stopped if not body["scripted"][row] and body["simulated"][row]]
    body["location"][stopped], body["rotation"][stopped] = before["location"][stopped], before["rotation"][stopped]
    body["velocity"][stopped], body["speed"][stopped] = 0.0, 0.0
    return found


def overlaps(body: NDArray[np.void], solid: Rows) -> Rows:
    """(P, 2) rows of solid actors whose boxes overlap."""
    center = body["location"][solid] + 0.0
    center[:, 2] += body["center_z"][solid]
    return solid[physics.overlapping(center, np.radians(body["rotation"][solid, 1]), body["extent"][solid])]


def _impulses(actors: Actors, first: int, second: int) -> list[Collision]:
    """The collision as each of two actors feels it: the lighter mass times the change of relative velocity."""
    body = actors.body
    between = body["location"][first, :2] - body["location"][second, :2]
    normal = between / max(float(np.linalg.norm(between)), 1e-9)
    closing = max(float((body["velocity"][second, :2] - body["velocity"][first, :2]) @ normal), 0.0)
    size = closing * float(min(body["mass"][first], body["mass"][second]))
    push = (size * float(normal[0]), size * float(normal[1]), 0.0)
    back = (-push[0], -push[1], 0.0)
    ids = actors.list[first].id, actors.list[second].id
    return [Collision(*ids, push), Collision(ids[1], ids[0], back)]


def on_parent(actors: Actors, actor: StubActor) -> Pose:
    """Pose of an attached actor: its own pose on its parent, turned by the parent's yaw."""
    relative = actor.relative
    assert relative is not None
    x, y, z, pitch, yaw, roll = actors.pose(actor.parent)
    cos, sin = math.cos(math.radians(yaw)), math.sin(math.radians(yaw))
    dx, dy, dz, *turn = relative
    return (x + cos * dx - sin * dy, y + sin * dx + cos * dy, z + dz, pitch + turn[0], yaw + turn[1], roll + turn[2])
