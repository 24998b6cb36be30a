"""Observations that measure what a position target commands, found by their names and units. Needs no numpy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from robotrl.deploy.bundle.manifest import Manifest

_UNIT = re.compile(r"^([0-9.]+(?:e-?[0-9]+)?) (.+)$")
_TARGET, _MEASURED, _OFFSET = "_target", ("_pos", "_position", "_offset"), "_offset"


class MeasuredAs(NamedTuple):
    """Observation that measures an action element."""

    key: str
    element: int
    name: str
    factor: float
    """Number of the observation's units in one unit of the action."""
    unit: str
    """Unit of the observation."""


def measured_as(
    name: str, unit: str, observations: Mapping[str, tuple[Sequence[str], Sequence[str]]]
) -> MeasuredAs | None:
    """The observation that measures a position target; None where no name says so.

    It has the target's name, or that name with "_pos", "_position" or "_offset" instead of "_target", and its unit; a
    scaled unit ("0.25 rad") is converted.

    Args:
        name: name of the action element.
        unit: its unit.
        observations: names and units of the elements of each observation, by key.
    """
    stem = name.removesuffix(_TARGET)
    factor, base = unit_factor(unit)
    for key, (names, units) in observations.items():
        for candidate in (name, stem, *(f"{stem}{ending}" for ending in _MEASURED)):
            if candidate not in names:
                continue
            at = list(names).index(candidate)
            measured_factor, measured_base = unit_factor(units[at])
            if measured_base == base:
                return MeasuredAs(key, at, candidate, factor / measured_factor, units[at])
    return None


def measured_positions(manifest: Manifest) -> tuple[MeasuredAs | None, ...]:
    """The observation that measures each of a bundle's position targets; None for one that none measures.

    A scaled target is relative to a pose, so that only an offset measures it.
    """
    ports = {port.name: (port.names, port.units) for port in manifest.observations if len(port.measured_shape) == 1}
    found: list[MeasuredAs | None] = []
    for name, unit in zip(manifest.action.names, manifest.action.units, strict=True):
        one = measured_as(name, unit, ports)
        relative = one is not None and one.factor != 1 and not one.name.endswith(_OFFSET)
        found.append(None if relative else one)
    return tuple(found)


def unit_factor(unit: str) -> tuple[float, str]:
    """Factor and base of a unit: "0.25 rad" is (0.25, "rad"), "m" is (1, "m")."""
    match = _UNIT.match(unit)
    return (float(match[1]), match[2]) if match else (1.0, unit)
