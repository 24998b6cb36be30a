"""The simulated world: one episode at a time, its actors, its clock, and the snapshots that it publishes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.carla.stub import wire
from robotrl.sims.carla.stub.simulation import motion, physics
from robotrl.sims.carla.stub.simulation.actors import Actors, StubActor, complete
from robotrl.sims.carla.stub.simulation.blueprints import LIBRARY, SPECTATOR, TRAFFIC_LIGHT, Blueprint, Kind, sign
from robotrl.sims.carla.stub.simulation.lights import GREEN, Lights
from robotrl.sims.carla.stub.simulation.town import ORIGIN, Area, Pose, Signal, Town

ASYNC_DT_S = 0.05
SPEED_LIMIT_KMH = 30.0
WORLD_STREAM = 1
SETTINGS: list[Any] = [False, False, [False], True, 0.01, 10, 0.0, False, 3000.0, 2000.0, True]
"""Default settings in the order of the protocol: synchronous, no rendering, fixed time step or none, and others."""
_FAR_M = 50.0


class Refusal(Exception):
    """A request that the server refuses; its text is what the client gets."""


class World:
    """The simulated world.

    Args:
        towns: maps that can be loaded; the first one is loaded.
    """

    def __init__(self, towns: Sequence[Town]) -> None:
        self.towns = {town.name: town for town in towns}
        self.settings = list(SETTINGS)
        self.weather: list[float] = [0.0] * 14
        self.episode, self.frame = 0, 0
        self.admit: Callable[[str], None] = lambda blueprint: None
        """Raises a `Refusal` where a client may not make an actor of a blueprint."""
        self._last_id, self._last_stream = 0, WORLD_STREAM  # neither begins anew with an episode
        self.load(towns[0])

    def load(self, town: Town) -> None:
        """Begin an episode on a map: all actors but its lights and signs are gone."""
        self.town = town
        self.episode += 1
        self.seconds, self._new = 0.0, True
        self.actors = Actors()
        self.collisions: list[motion.Collision] = []
        self._attached: list[StubActor] = []
        self.spectator = self._add(SPECTATOR, [], ORIGIN)
        ids: dict[str, int] = {}
        areas: list[tuple[Area, int]] = []
        for signal in town.signals:
            light = signal.name == "traffic_light"
            actor = self._add(TRAFFIC_LIGHT if light else sign(signal.name), [], signal.pose)
            actor.areas = [_box_in(signal.pose, area) for area in signal.areas]
            self.actors.record["sign_id"][-1] = signal.opendrive_id.encode()
            if light:
                ids[signal.opendrive_id] = actor.id
                areas += [(area, actor.id) for area in signal.areas]
        self.lights = Lights(town.phases, ids)
        limits = [(area, _limit_kmh(signal)) for signal in town.signals for area in signal.areas if _limit_kmh(signal)]
        self._limit_box = np.array([area for area, _ in limits]).reshape(-1, 6)
        self._limit_kmh = np.array([limit for _, limit in limits], float)
        self._area_light = np.array([light for _, light in areas], np.uint32)
        self._area_box = np.array([area for area, _ in areas]).reshape(-1, 6)

    # settings

    @property
    def synchronous(self) -> bool:
        """True while the world waits for a client's tick."""
        return bool(self.settings[0])

    @property
    def rendering(self) -> bool:
        """True while cameras send pictures."""
        return not self.settings[1]

    @property
    def dt_s(self) -> float:
        """Simulated time of a frame."""
        fixed = self.settings[2]
        return float(fixed[1]) if fixed[0] and fixed[1] > 0 else ASYNC_DT_S

    # actors

    def spawn(
        self, name: str, attributes: Sequence[Sequence[Any]], pose: Pose, parent: int = 0, uid: int = 0
    ) -> StubActor:
        """Make an actor.

        Args:
            name: of its blueprint.
            attributes: name, type and value of each.
            pose: in the world, or on the parent.
            parent: id of the actor that it is attached to; 0 for none.
            uid: number of the blueprint, as the client gave it.

        Raises:
            Refusal: an unknown blueprint, no such parent, or no room there.
        """
        blueprint = LIBRARY.get(name)
        if blueprint is None:
            raise Refusal(f"unable to find actor definition of {name}")
        if name == "controller.ai.walker":  # without a mesh the client's own code for walkers ends its process
            raise Refusal("the stub has no navigation mesh for controllers of walkers: use WalkerControl")
        if parent and parent not in self.actors.row:
            raise Refusal("unable to attach actor: parent actor not found")
        if not parent and self._occupied(blueprint, pose):
            raise Refusal("Spawn failed because of collision at spawn position")
        relative = pose if parent else None
        actor = self._add(blueprint, attributes, pose, uid, parent, relative)
        if blueprint.kind is Kind.SENSOR:
            self._last_stream += 1
            actor.stream = self._last_stream
        return actor

    def destroy(self, actor: int) -> bool:
        """Remove an actor and what is attached to it; False without such an actor."""
        if actor not in self.actors.row or self._lasts(actor):
            return False
        gone = [actor, *(other.id for other in self.actors.list if other.parent == actor)]
        self.actors.remove(gone)
        self._attached = [other for other in self._attached if other.id not in gone]
        return True

    def _lasts(self, actor: int) -> bool:
        found = self.actors.of(actor)
        return found is not None and (found.blueprint.kind in (Kind.LIGHT, Kind.SIGN) or found is self.spectator)

    def place(self, actor: int, pose: Pose) -> None:
        """Put an actor elsewhere; its speed stays."""
        self.actors.place(actor, pose, self.town.ground(*pose[:3]))
        found = self.actors.of(actor)
        if found is not None and found.parent:
            found.relative = pose

    def set_velocity(self, actor: int, velocity: Sequence[float]) -> None:
        """Set the velocity (m/s) in the frame of the world; a vehicle keeps what of it is along its heading."""
        body, row = self.actors.body, self.actors.row[actor]
        body["velocity"][row] = velocity
        yaw = math.radians(float(body["rotation"][row, 1]))
        body["speed"][row] = velocity[0] * math.cos(yaw) + velocity[1] * math.sin(yaw)

    def hold_velocity(self, actor: int, velocity: Sequence[float] | None) -> None:
        """Keep a vehicle at a velocity (m/s) in its own frame; None lets it go."""
        body, row = self.actors.body, self.actors.row[actor]
        body["constant"][row] = velocity is not None
        body["constant_velocity"][row] = velocity or (0.0, 0.0, 0.0)

    def _occupied(self, blueprint: Blueprint, pose: Pose) -> bool:
        body = self.actors.body[self.actors.body["solid"]]
        if blueprint.kind not in (Kind.VEHICLE, Kind.WALKER, Kind.PROP) or not len(body):
            return False
        near = body[np.abs(body["location"][:, :2] - pose[:2]).max(1) < _FAR_M]
        center = np.concatenate([near["location"], [pose[:3]]])
        center[:, 2] += [*near["center_z"], blueprint.center_z]
        yaw = np.radians([*near["rotation"][:, 1], pose[4]])
        pairs = physics.overlapping(center, yaw, np.concatenate([near["extent"], [blueprint.extent]]))
        return bool((pairs == len(near)).any())

    def _add(
        self,
        blueprint: Blueprint,
        attributes: Sequence[Sequence[Any]],
        pose: Pose,
        uid: int = 0,
        parent: int = 0,
        relative: Pose | None = None,
    ) -> StubActor:
        self._last_id += 1
        values, packed = complete(blueprint, attributes)
        actor = StubActor(self._last_id, uid, blueprint, values, packed, parent, relative)
        if relative is not None:
            pose = motion.on_parent(self.actors, actor)
            self._attached.append(actor)
        self.actors.add(actor, pose, self.town.ground(*pose[:3]) if blueprint.kind <= Kind.WALKER else pose[2])
        if blueprint.kind is Kind.VEHICLE:
            self.actors.record["speed_limit"][-1] = SPEED_LIMIT_KMH
            self.actors.record["light_state"][-1] = GREEN
            self.actors.record["gear"][-1] = 1
        return actor

    # time

    def advance(self, dt_s: float) -> None:
        """Simulate one frame; with `dt_s` 0 nothing moves, and what clients changed is seen."""
        self.collisions = []
        if dt_s > 0:
            self.collisions = motion.move(self.actors, self.town, dt_s)
            self.lights.advance(dt_s)
            self.seconds += dt_s
        for actor in self._attached:
            pose = motion.on_parent(self.actors, actor)
            self.actors.place(actor.id, pose, pose[2])
        self.frame += 1
        self._fill_records()

    def snapshot(self, wall_s: float, dt_s: float) -> bytes:
        """Message of the world's stream for the frame that was simulated last."""
        payload = wire.snapshot(self.episode, wall_s, dt_s, self._new, self.actors.record.tobytes())
        self._new = False
        return wire.frame(wire.WORLD, self.frame, self.seconds, ORIGIN, payload)

    def _fill_records(self) -> None:
        body, record = self.actors.body, self.actors.record
        for field in ("location", "rotation", "velocity"):
            record[field] = body[field]
        for light in self.lights.by_id.values():
            row = self.actors.row[light.id]
            record["state"][row], record["elapsed_time"][row] = light.state, light.elapsed_s
            record["green_time"][row], record["yellow_time"][row] = light.green_s, light.yellow_s
            record["red_time"][row] = light.red_s
            record["frozen"][row] = self.lights.of_junction[light.id].frozen
        self._find_lights_of_vehicles()
        self._find_limits_of_vehicles()

    def _reached(self, rows: NDArray[np.intp], box: NDArray[np.float64]) -> NDArray[np.bool_]:
        """(rows, areas) which actors stand in which areas."""
        at = self.actors.body["location"][rows, :2]
        return physics.within(at, box[:, :2], np.radians(box[:, 3]), box[:, 4:])

    def _find_limits_of_vehicles(self) -> None:
        rows = self.actors.rows(Kind.VEHICLE)
        if len(rows) and len(self._limit_kmh):
            reached = self._reached(rows, self._limit_box)
            passes = reached.any(1)
            self.actors.record["speed_limit"][rows[passes]] = self._limit_kmh[reached[passes].argmax(1)]

    def _find_lights_of_vehicles(self) -> None:
        rows = self.actors.rows(Kind.VEHICLE)
        if not len(rows) or not len(self._area_light):
            return
        record = self.actors.record
        reached = self._reached(rows, self._area_box)
        at = reached.any(1)
        light = np.where(at, self._area_light[reached.argmax(1)], 0)
        record["has_light"][rows], record["light_id"][rows] = at, light
        state: NDArray[np.uint8] = np.array([self.lights.by_id[i].state if i else GREEN for i in light.tolist()])
        record["light_state"][rows] = state


def _limit_kmh(signal: Signal) -> float:
    """Speed limit that a sign shows; 0 for other signals."""
    name, _, limit = signal.name.partition(".")
    return float(limit) if name == "speed_limit" else 0.0


def _box_in(pose: Pose, area: Area) -> list[Any]:
    """Box of an area in the frame of its signal, in the form of the protocol."""
    yaw = math.radians(pose[4])
    dx, dy = area.x - pose[0], area.y - pose[1]
    at = [math.cos(yaw) * dx + math.sin(yaw) * dy, math.cos(yaw) * dy - math.sin(yaw) * dx, area.z - pose[2] + 1.0]
    return [at, [area.half_length, area.half_width, 1.0], [0.0, area.yaw_deg - pose[4], 0.0]]
