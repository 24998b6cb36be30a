"""Observation groups of an Isaac environment as named arrays with specs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from robotrl.errors import ConfigError, unknown
from robotrl.sims.isaac.faults import IsaacFault
from robotrl.spec import Spec

UNIT_UNKNOWN = "?"
"""Unit of an element that the environment does not describe."""
POLICY_GROUPS = ("policy", "actor")
"""Names of the group that a policy reads: Isaac Lab's and mjlab's."""
DTYPES = {"float32": torch.float32, "uint8": torch.uint8, "int32": torch.int32, "int64": torch.int64}


class Group(NamedTuple):
    """One array of the observation."""

    key: str
    """Name in the sim: the group's, or "group_term" for a term of a group that is not concatenated."""
    path: tuple[str, ...]
    """Keys that lead to it in the environment's observation."""
    spec: Spec


def groups_of(space: Any, names: Mapping[str, tuple[Sequence[str], Sequence[str]]], taken: Any = None) -> list[Group]:
    """Arrays of an environment's observation space.

    Args:
        space: a Dict space of Boxes, or of Dicts of Boxes; any object with `spaces`, and `shape` and `dtype` below.
        names: key to names and units of the elements; keys without an entry get numbered names.
        taken: groups to take; None for all.

    Raises:
        ConfigError: no such group, or a space of another kind.
    """
    if not hasattr(space, "spaces") or not isinstance(space.spaces, Mapping):
        raise ConfigError(f"single_observation_space is a {type(space).__name__}: expected a Dict space of groups")
    spaces: dict[str, Any] = dict(space.spaces)
    for name in taken or ():
        if name not in spaces:
            raise unknown("groups", str(name), spaces)
    found: list[Group] = []
    for name, inner in spaces.items():
        if taken is not None and name not in taken:
            continue
        if hasattr(inner, "spaces"):
            found += [_group(f"{name}_{term}", (name, term), box, names) for term, box in inner.spaces.items()]
        else:
            found.append(_group(name, (name,), inner, names))
    if not found:
        raise ConfigError("single_observation_space has no group: expected one or more")
    return found


def _group(
    key: str, path: tuple[str, ...], box: Any, names: Mapping[str, tuple[Sequence[str], Sequence[str]]]
) -> Group:
    if hasattr(box, "n") or hasattr(box, "nvec") or not hasattr(box, "shape"):
        raise ConfigError(f"observation {key!r} is a {type(box).__name__} space: expected a Box")
    shape, dtype = tuple(int(n) for n in box.shape), np.dtype(box.dtype).name
    if dtype not in DTYPES or not shape or not all(shape):
        raise ConfigError(
            f"observation {key!r} is {dtype} of shape {shape}: expected {', '.join(DTYPES)}, with one element or more"
        )
    width = shape[-1]
    numbered = tuple(f"{key}_{i}" for i in range(width)), (UNIT_UNKNOWN,) * width
    texts, units = names.get(key, numbered)
    if len(texts) != width:
        raise ConfigError(f"observation {key!r} is described as {len(texts)} elements: expected {width}")
    low, high = (np.broadcast_to(np.asarray(end, np.float64), shape).reshape(-1, width) for end in (box.low, box.high))
    # of a picture, each channel's widest bounds
    ends = tuple(low.min(0).tolist()), tuple(high.max(0).tolist())
    return Group(key, path, Spec(shape, tuple(texts), tuple(units), *ends, dtype))


def privileged_keys(groups: Sequence[Group], policy_groups: Sequence[str] | None) -> tuple[str, ...]:
    """Keys that only critics may read: all but those of the policy's groups.

    Args:
        groups: arrays of the observation.
        policy_groups: groups that a policy may read; None: the group "policy", or "actor".

    Raises:
        ConfigError: there is no such group.
    """
    known = list(dict.fromkeys(group.path[0] for group in groups))
    if policy_groups is None:
        policy_groups = [name for name in POLICY_GROUPS if name in known][:1]
        if not policy_groups:
            raise ConfigError(
                f"policy_groups is None and the groups are {', '.join(known)}: expected those that a policy may read,"
                f" where none is called {' or '.join(map(repr, POLICY_GROUPS))}"
            )
    for name in policy_groups:
        if name not in known:
            raise unknown("policy_groups", str(name), known)
    return tuple(group.key for group in groups if group.path[0] not in policy_groups)


class ObservationReader:
    """Takes the arrays out of what an environment returns, without a copy where the dtype fits.

    Args:
        groups: the arrays.
        num_envs: number of envs N.
        device: expected device.
    """

    def __init__(self, groups: Sequence[Group], num_envs: int, device: torch.device) -> None:
        self._groups = [
            (group.key, group.path, DTYPES[group.spec.dtype], (num_envs, *group.spec.shape)) for group in groups
        ]
        self._device = device

    def read(self, observation: Mapping[str, Any]) -> dict[str, Tensor]:
        """Arrays (N, ...) by key; views of the environment's tensors where the dtype fits.

        Raises:
            IsaacFault: a group is missing, or has another shape or device than its space and the environment say.
        """
        found: dict[str, Tensor] = {}
        for key, path, dtype, shape in self._groups:
            value: Any = observation
            for name in path:
                if name not in value:
                    raise IsaacFault(f"the observation lacks {key!r}: it has {', '.join(map(str, value))}")
                value = value[name]
            if value.shape != shape:
                raise IsaacFault(f"observation {key!r} has shape {tuple(value.shape)}: expected {shape}, as its space")
            if value.device != self._device:
                raise IsaacFault(f"observation {key!r} is on {value.device}: expected {self._device}, as the env says")
            found[key] = value if value.dtype is dtype else value.to(dtype)
        return found
