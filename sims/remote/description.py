"""EnvDescription of a served environment, from its handshake: specs, kind of starts, methods and constants."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from robotrl.errors import ConfigError, out_of_range
from robotrl.spec import Spec, SuccessRule
from robotrl.spec.captions import ActionCaptions, ActionContext, CaptionClass, CaptionTopic
from robotrl.spec.vehicle import VehicleObs

Starts = Literal["given", "queued", "own"]
"""Starts of episodes: given by the trainer, taken by the environment from a queue of the trainer's, or its own."""
UNIT = "?"
"""Unit of a column whose unit the environment does not state."""


class EnvDescription(NamedTuple):
    """A served environment."""

    observation_spec: dict[str, Spec]
    action_spec: Spec
    info_spec: dict[str, str]
    """dtype of each array of `Step.info`; it has "success"."""
    control_dt_s: float | None
    starts: Starts
    final_obs: bool
    single_start: bool
    """True if single envs can be started, and not only all of them."""
    methods: frozenset[str]
    constants: dict[str, Any]
    """Attributes by name, in the types of `robotrl.spec`."""


def description_of(who: str, said: Mapping[str, Any]) -> EnvDescription:
    """Parse and check what a worker says of its environment.

    Args:
        who: name of the sim, for errors.
        said: the JSON of the handshake.

    Raises:
        ConfigError: a spec is missing a part, or contradicts itself; the message names it.
    """
    observation = {
        key: spec_of(f"{who}: observation_spec[{key!r}]", key, x) for key, x in said["observation_spec"].items()
    }
    if not observation:
        raise ConfigError(f"{who}: observation_spec is empty: expected one array or more")
    action = spec_of(f"{who}: action_spec", "action", said["action_spec"])
    if action.dtype != "float32" or len(action.shape) != 1 or not all(map(math.isfinite, (*action.low, *action.high))):
        raise ConfigError(f"{who}: action_spec is {said['action_spec']}: expected float32, one axis and finite bounds")
    info = {str(key): str(dtype) for key, dtype in said["info_spec"].items()}
    for key, dtype in info.items():
        if not _is_dtype(dtype):
            raise out_of_range(f"{who}: info_spec[{key!r}]", dtype, "the name of a numpy dtype of numbers")
    if "lost" in info and (said["starts"] != "queued" or info["lost"] != "bool"):
        raise ConfigError(f"{who}: info_spec has 'lost': expected another name, robotrl counts what is lost")
    limit = said["constants"].get("limit_steps")
    if limit is not None and "elapsed_steps" in said["methods"] and (not isinstance(limit, int) or limit < 1):
        raise out_of_range(f"{who}: limit_steps", limit, "a whole number of 1 or more, or None")
    if "state_id" in info:
        raise ConfigError(f"{who}: info_spec has 'state_id': expected another name, robotrl knows the starts")
    for name, likely in said.get("misspelled", ()):
        warnings.warn(f"{who}: its {name!r} is not read: did you mean {likely!r}?", stacklevel=2)
    dt_s = said["control_dt_s"]
    if dt_s is not None and (not isinstance(dt_s, int | float) or not 0 < dt_s < math.inf):
        raise out_of_range(f"{who}: control_dt_s", dt_s, "a number above 0, or None")
    return EnvDescription(
        observation,
        action,
        {"success": "bool"} | info,
        dt_s,
        said["starts"],
        said["final_obs"],
        said["single_start"],
        frozenset(said["methods"]),
        {name: _constant(name, value) for name, value in said["constants"].items()},
    )


def spec_of(field: str, name: str, data: Any) -> Spec:
    """Spec of an array; names, units and bounds that are not stated are filled in.

    Args:
        field: its place, for errors.
        name: prefix of the names of its columns.
        data: JSON with "shape", and perhaps other fields of `Spec`.

    Raises:
        ConfigError: a part is missing, unknown or of another length.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("shape"), Sequence):
        raise out_of_range(field, data, 'a dict with "shape"')
    given: Mapping[str, Any] = data
    unknown_parts = set(given) - set(Spec.__dataclass_fields__)
    if unknown_parts:
        raise ConfigError(f"{field} has {sorted(unknown_parts)[0]!r}: expected {', '.join(Spec.__dataclass_fields__)}")
    shape = tuple(given["shape"])
    if not all(isinstance(length, int) and length > 0 for length in shape):
        raise out_of_range(f"{field}['shape']", shape, "whole numbers of 1 or more")
    width = shape[-1] if shape else 1
    choices = given.get("choices")
    dtype = given.get("dtype", "float32")
    if not _is_dtype(dtype):
        raise out_of_range(f"{field}['dtype']", dtype, "the name of a numpy dtype of numbers")
    bounds = ([0.0] * width, [n - 1.0 for n in choices]) if choices else ([None] * width, [None] * width)
    full = {
        "shape": shape,
        "names": given.get("names") or [f"{name}_{i}" for i in range(width)],
        "units": given.get("units") or [UNIT] * width,
        "low": given.get("low") or bounds[0],
        "high": given.get("high") or bounds[1],
        "dtype": dtype,
        "words": given.get("words", ()),
        "choices": choices,
    }
    try:
        return Spec.from_json(full)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{field}: {error}") from error


def _is_dtype(name: Any) -> bool:
    try:
        return isinstance(name, str) and np.dtype(name).kind in "biuf"
    except TypeError:
        return False


def _constant(name: str, value: Any) -> Any:
    match name:
        case "cameras" | "params" | "privileged" | "grounding_keys" | "scenarios" | "vocabulary":
            return tuple(map(str, value))
        case "success_rule":
            return SuccessRule(*value)
        case "vehicle_obs":
            return None if value is None else VehicleObs(*value)
        case "action_captions":
            anchors, actions, contexts = value
            return ActionCaptions(
                tuple(map(tuple, anchors)),
                _classes(actions),
                tuple(ActionContext(key, tuple(edges), _classes(found)) for key, edges, found in contexts),
            )
        case "caption_topics":
            return tuple(CaptionTopic(topic, _classes(found)) for topic, found in value)
        case _:
            return value


def _classes(found: Any) -> tuple[CaptionClass, ...]:
    return tuple(CaptionClass(name, tuple(train), tuple(test)) for name, train, test in found)
