"""Table of all actors: a row each, in arrays, and the records that snapshots are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.carla.stub import wire
from robotrl.sims.carla.stub.simulation.blueprints import Blueprint, Kind
from robotrl.sims.carla.stub.simulation.town import Pose

BODY = np.dtype(
    [
        ("location", "f8", 3),
        ("rotation", "f8", 3),
        ("velocity", "f8", 3),
        ("speed", "f8"),
        ("constant_velocity", "f8", 3),
        ("ground_z", "f8"),
        ("extent", "f8", 3),
        ("center_z", "f8"),
        ("wheelbase", "f8"),
        ("mass", "f8"),
        ("kind", "i4"),
        ("simulated", "?"),
        ("constant", "?"),
        ("scripted", "?"),
        ("solid", "?"),
    ]
)
"""State of an actor in double precision: m, degrees, m/s; `speed` is along the heading."""
_BYTES = np.dtype(f"V{wire.ACTOR.itemsize}")


@dataclass
class StubActor:
    """Unchanging part of an actor.

    Attributes:
        attributes: values by name, all of them text.
        attributes_packed: the same in the form of the protocol.
        relative: pose on the parent, of attached actors.
        stream: number of its stream; 0 without one.
        areas: boxes of lights and signs in the frame of the actor, in the form of the protocol.
    """

    id: int
    uid: int
    blueprint: Blueprint
    attributes: dict[str, str]
    attributes_packed: list[Any]
    parent: int = 0
    relative: Pose | None = None
    stream: int = 0
    light_state: int = 0
    areas: list[Any] = field(default_factory=list)
    script: list[Pose] = field(default_factory=list)


class Actors:
    """Actors by id and as rows of arrays; rows keep the order of ids."""

    def __init__(self) -> None:
        self.list: list[StubActor] = []
        self.row: dict[int, int] = {}
        self.body: NDArray[Any] = np.zeros(0, BODY)
        self.record: NDArray[Any] = np.zeros(0, wire.ACTOR)
        self._rows: dict[Kind, NDArray[np.intp]] = {}

    def add(self, actor: StubActor, pose: Pose, ground_z: float) -> None:
        """Add an actor, which must have the greatest id so far."""
        blueprint = actor.blueprint
        body = np.zeros(1, BODY)
        body["location"], body["rotation"] = pose[:3], pose[3:]
        body["ground_z"] = ground_z
        body["extent"], body["center_z"] = blueprint.extent, blueprint.center_z
        body["wheelbase"], body["mass"] = max(blueprint.wheelbase, 1e-3), blueprint.mass_kg
        body["kind"] = blueprint.kind
        body["simulated"] = blueprint.kind in (Kind.VEHICLE, Kind.WALKER)
        body["solid"] = blueprint.kind in (Kind.VEHICLE, Kind.WALKER, Kind.PROP)
        self.row[actor.id] = len(self.list)
        self.list.append(actor)
        self.body = np.concatenate([self.body, body])
        self.record = _longer(self.record)
        self.record["id"][-1], self.record["activity"][-1] = actor.id, wire.ACTIVE
        self._rows.clear()

    def remove(self, ids: Sequence[int]) -> None:
        """Remove actors."""
        rows = [self.row[i] for i in ids]
        keep = np.ones(len(self.list), bool)
        keep[rows] = False
        self.list = [actor for actor, kept in zip(self.list, keep, strict=True) if kept]
        self.body, self.record = self.body[keep], self.record[keep]
        self.row = {actor.id: row for row, actor in enumerate(self.list)}
        self._rows.clear()

    def of(self, actor: int) -> StubActor | None:
        """The actor of that id."""
        row = self.row.get(actor)
        return None if row is None else self.list[row]

    def pose(self, actor: int) -> Pose:
        """Pose of an actor."""
        body = self.body[self.row[actor]]
        x, y, z, pitch, yaw, roll = (float(v) for v in (*body["location"], *body["rotation"]))
        return (x, y, z, pitch, yaw, roll)

    def place(self, actor: int, pose: Pose, ground_z: float) -> None:
        """Put an actor elsewhere."""
        row = self.row[actor]
        self.body["location"][row], self.body["rotation"][row] = pose[:3], pose[3:]
        self.body["ground_z"][row] = ground_z

    def rows(self, kind: Kind) -> NDArray[np.intp]:
        """Rows of a kind of actor."""
        if kind not in self._rows:
            self._rows[kind] = np.flatnonzero(self.body["kind"] == kind)
        return self._rows[kind]


def _longer(record: NDArray[Any]) -> NDArray[Any]:
    """Records with one more; `concatenate` would move their fields."""
    longer = np.zeros(len(record) + 1, wire.ACTOR)
    longer.view(_BYTES)[:-1] = record.view(_BYTES)
    return longer


def complete(blueprint: Blueprint, given: Sequence[Sequence[Any]]) -> tuple[dict[str, str], list[Any]]:
    """Attributes of a new actor: those given, and the blueprint's defaults.

    Args:
        blueprint: its blueprint.
        given: id, type and value of each attribute in the request.

    Returns:
        Values by name, and the form of the protocol.
    """
    packed = {str(name): [name, kind, value] for name, kind, value in given}
    for attribute in blueprint.attributes:
        packed.setdefault(attribute.name, [attribute.name, attribute.type, attribute.value])
    return {name: str(entry[2]) for name, entry in packed.items()}, list(packed.values())


def given(blueprint: Blueprint, values: Mapping[str, str]) -> list[list[Any]]:
    """Attributes in the form of a request."""
    types = {attribute.name: attribute.type for attribute in blueprint.attributes}
    return [[name, types.get(name, 4), value] for name, value in values.items()]
