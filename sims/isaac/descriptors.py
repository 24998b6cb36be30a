"""Isaac Lab's IO descriptors as names, units, scales and default pose.

The descriptors are a mapping with "observations" (group to terms), "actions" (terms) and "articulations" (name to
joints), as `export_IO_descriptors` writes it. Environments without them are described from their managers in the same
form. Formats: `isaaclab/envs/utils/io_descriptors.py` and the managers of Isaac Lab 2.3 and 3.0.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch

from robotrl.errors import ConfigError
from robotrl.sims.isaac.observations import UNIT_UNKNOWN
from robotrl.sims.isaac.surface import DescribesIO, HasManagers
from robotrl.spec.actuation import Actuation, ActuationKind

Descriptors = Mapping[str, Any]
INFINITE = float("inf")
JOINT_TERMS: Mapping[str, tuple[ActuationKind, str]] = {
    "JointPositionAction": ("position", "rad"),
    "RelativeJointPositionAction": ("delta", "rad"),
    "JointVelocityAction": ("velocity", "rad/s"),
    "JointEffortAction": ("torque", "N m"),
}
"""Action terms that compute `target = scale * action + offset` of joints, with kind and unit of the target, which is
written for joints that turn."""


class ActionDescription(NamedTuple):
    """Meaning of each element of an action; each tuple has A entries."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    scale: tuple[float, ...]
    """Factor from the environment's own action to the joint target; 1 for terms that are no joint targets."""
    offset: tuple[float, ...]
    """Joint target of action 0; 0 for terms that are no joint targets."""
    low: tuple[float, ...]
    """Lower bound of the target; -inf if the term clips nothing."""
    high: tuple[float, ...]
    actuation: Actuation | None
    """None where the elements are not joint targets of one kind."""


class _Term(NamedTuple):
    names: tuple[str, ...]
    unit: str
    scale: tuple[float, ...]
    offset: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    kind: ActuationKind | None


def descriptors_of(env: object) -> Descriptors | None:
    """Descriptors of an environment: its own, else from its managers; None for one that has neither."""
    if isinstance(env, DescribesIO):
        with warnings.catch_warnings():
            # Isaac Lab 3.0 announces that they go with 3.2; then the managers describe the environment
            warnings.simplefilter("ignore", FutureWarning)
            return env.get_IO_descriptors
    return from_managers(env) if isinstance(env, HasManagers) else None


def from_managers(env: HasManagers) -> Descriptors:
    """Descriptors from the managers of an environment: names of terms, targets of joint actions; no units of terms."""
    seen, acts = env.observation_manager, env.action_manager
    observations = {
        group: [
            {"name": name, "shape": list(shape), "overloads": {}, "extras": {}}
            for name, shape in zip(terms, seen.group_obs_term_dim[group], strict=True)
        ]
        for group, terms in seen.active_terms.items()
    }
    actions = [_term_of_manager(acts.get_term(name), name) for name in acts.active_terms]
    return {"observations": observations, "actions": actions, "articulations": {}}


def _term_of_manager(term: Any, name: str) -> dict[str, Any]:
    kind, width = type(term).__name__, int(term.action_dim)
    found = {"name": name, "full_path": kind, "shape": [width]}
    if kind not in JOINT_TERMS or not hasattr(term, "target_names"):  # mjlab's; Isaac Lab's has descriptors instead
        return found
    return {**found, "joint_names": list(term.target_names), "scale": term.scale, "offset": term.offset, "clip": None}


def observation_names(descriptors: Descriptors) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Names and units of the elements of each group, by the group's name; for groups whose terms are concatenated."""
    return {group: _described(terms) for group, terms in (descriptors.get("observations") or {}).items()}


def _described(terms: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names: list[str] = []
    units: list[str] = []
    for term in terms:
        given, overloads = term.get("extras") or {}, term.get("overloads") or {}
        width = int((term.get("shape") or [1])[-1])
        texts = term.get("joint_names") or given.get("joint_names") or given.get("axes") or range(width)
        if len(texts) != width:
            texts = range(width)
        one = [f"{term['name']}_{text}".lower() if width > 1 else str(term["name"]) for text in texts]
        steps = int(overloads.get("history_length") or 0)
        # oldest first; "back_0" is the newest
        names += [f"{name}_back_{back}" for back in reversed(range(steps)) for name in one] if steps > 1 else one
        units += _units(given.get("units"), overloads.get("scale"), width) * max(1, steps)
    return _distinct(names), tuple(units)


def _units(unit: str | None, scale: Any, width: int) -> list[str]:
    """Units of a term's elements; a scaled element counts in a multiple of the unit, "4 rad/s" for a scale of 0.25."""
    if not unit:
        return [UNIT_UNKNOWN] * width
    unit = {"unit": "1", "m/s^2": "m/s^2"}.get(unit, unit)
    scales = (1.0,) * width if scale is None else _numbers(scale, width)
    return [unit if s in (0.0, 1.0) else f"{1 / s:g} {unit}" for s in scales]


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Names with a number behind those that have occurred before."""
    seen: dict[str, int] = {}
    found: list[str] = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return tuple(found)


def action_description(descriptors: Descriptors) -> ActionDescription | None:
    """Meaning of the action; None if the descriptors describe none.

    Raises:
        ConfigError: a term without names of its elements or with another number of scales.
    """
    described = descriptors.get("actions") or ()
    terms = [_action_term(term) for term in described]
    if not terms:
        return None
    names = _distinct([name for term in terms for name in term.names])
    return ActionDescription(
        names,
        units=tuple(term.unit for term in terms for _ in term.names),
        scale=_joined(term.scale for term in terms),
        offset=_joined(term.offset for term in terms),
        low=_joined(term.low for term in terms),
        high=_joined(term.high for term in terms),
        actuation=_actuation(terms, names, descriptors.get("articulations") or {}),
    )


def _joined(parts: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(chain.from_iterable(parts))


def _action_term(term: Mapping[str, Any]) -> _Term:
    name, joints = str(term.get("name")), tuple(term.get("joint_names") or ())
    width = int((term.get("shape") or [len(joints)])[-1])
    free = (-INFINITE,) * width, (INFINITE,) * width
    target = JOINT_TERMS.get(str(term.get("full_path") or "").rpartition(".")[2])
    if target is None or len(joints) != width:
        texts = joints if len(joints) == width else tuple(f"{name}_{i}" for i in range(width))
        return _Term(texts, UNIT_UNKNOWN, (1.0,) * width, (0.0,) * width, *free, None)
    kind, unit = target
    # null in a file: 1 and 0
    scale, offset = (
        _numbers(none if term.get(key) is None else term[key], width) for key, none in (("scale", 1.0), ("offset", 0.0))
    )
    if not all(scale):
        raise ConfigError(f"action term {name!r} has scale {scale}: expected numbers other than 0")
    return _Term(joints, unit, scale, offset, *_clip(term.get("clip"), free), kind)


def _clip(clip: Any, free: tuple[tuple[float, ...], tuple[float, ...]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Bounds of the targets: Isaac Lab gives a pair for each joint."""
    if clip is None:
        return free
    pairs = torch.as_tensor(clip, dtype=torch.float64).reshape(-1, 2)
    if len(pairs) != len(free[0]):
        return free
    return tuple(pairs[:, 0].tolist()), tuple(pairs[:, 1].tolist())


def _numbers(value: Any, width: int) -> tuple[float, ...]:
    """One number for each element: of a number, a list, or a tensor (A,) or (N, A) whose rows are equal."""
    given = torch.as_tensor(value, dtype=torch.float64)
    row = given.reshape(-1, given.shape[-1])[0] if given.dim() else given.expand(width)
    if len(row) != width:
        raise ConfigError(f"the descriptors give {len(row)} numbers, {row.tolist()}: expected {width}")
    return tuple(row.tolist())


def _actuation(terms: Sequence[_Term], names: Sequence[str], articulations: Mapping[str, Any]) -> Actuation | None:
    kind = terms[0].kind
    if kind is None or any(term.kind != kind for term in terms):
        return None
    offsets = _joined(term.offset for term in terms)
    found = next((found for found in articulations.values() if set(names) <= set(found.get("joint_names", ()))), None)
    if found is None:
        # Isaac's joint targets start at the default pose
        return Actuation(kind, offsets if kind == "position" else None)
    rows = [list(found["joint_names"]).index(name) for name in names]

    def of(key: str) -> tuple[float, ...] | None:
        return tuple(float(found[key][i]) for i in rows) if key in found else None

    return Actuation(kind, of("default_joint_pos"), of("default_joint_stiffness"), of("default_joint_damping"))
