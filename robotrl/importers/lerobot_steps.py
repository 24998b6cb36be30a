"""Reader of lerobot's pre- and postprocessors, which hold a policy's normalization; strict.

lerobot follows the processors, whatever the policy's config says, so both are compared. A step that is unknown, missing
or out of lerobot's order is refused, since its effect would be missing; so are unsupported settings of a step, and
missing statistics, which lerobot ignores silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from robotrl.errors import DataError, unknown
from robotrl.importers.fields import fixed, known, listed, mapped, positive, text, whole, wrong
from robotrl.importers.files import read_json, read_tensors
from robotrl.importers.fitting import from_stats
from robotrl.policies.base import ACTION
from robotrl.transforms import Affine, inverse

STATE, LABEL = "observation.state", "action"
BEFORE, AFTER = "policy_preprocessor.json", "policy_postprocessor.json"
IDENTITY = "IDENTITY"
RENAME, BATCH, TOKENIZER, DEVICE, NORMALIZER, UNNORMALIZER = (
    "rename_observations_processor",
    "to_batch_processor",
    "tokenizer_processor",
    "device_processor",
    "normalizer_processor",
    "unnormalizer_processor",
)
NEW_LINE = "{}_new_line_processor"
"""Name pattern; the placeholder is the policy's type."""
STEPS = {
    BEFORE: ((RENAME, BATCH, NEW_LINE, TOKENIZER, DEVICE, NORMALIZER),),
    # the second order is that of before 0.4; policies on the hub have it
    AFTER: ((UNNORMALIZER, DEVICE), (DEVICE, UNNORMALIZER)),
}
"""Steps that lerobot writes, in each of its orders."""
STATISTICS = ("eps", "features", "norm_map", "normalize_observation_keys")
SETTINGS: dict[str, tuple[str, ...]] = {
    RENAME: ("rename_map",),
    TOKENIZER: ("max_length", "task_key", "padding_side", "padding", "truncation", "tokenizer_name"),
    DEVICE: ("device", "float_dtype"),
    NORMALIZER: STATISTICS,
    UNNORMALIZER: STATISTICS,
}
"""Allowed fields of each step's config; steps not listed have none."""
FIXED: dict[str, dict[str, Any]] = {
    TOKENIZER: {"task_key": "task", "padding_side": "right", "truncation": True},
    DEVICE: {"float_dtype": None},
}
"""Settings with only one supported value. The prompt's padding is free, since nothing attends to it."""
LONGEST = 48
"""Default length of a prompt, in tokens."""
EPS = 1e-8
TOLERANCE = 1e-6
"""Tolerance between the two stored copies of a statistic."""


class PolicyFeature(NamedTuple):
    """An input or output of a policy."""

    kind: str
    """lerobot's feature type: "VISUAL", "STATE", "ACTION" ..."""
    shape: tuple[int, ...]


class Units(NamedTuple):
    """Conversions between a robot's units and the network's."""

    state: Affine
    """Normalization of measured states."""
    action: Affine
    """Un-normalization of actions."""


def features(where: str, data: Mapping[str, Any], name: str) -> dict[str, PolicyFeature]:
    """Parse the features in a config's field.

    Raises:
        DataError: the field is missing, or a feature has no type or shape.
    """
    found: dict[str, PolicyFeature] = {}
    said = mapped(where, data, name)
    for key in said:
        inside = f"{where}: {name}: {key}"
        feature = mapped(f"{where}: {name}", said, key)
        shape = listed(inside, feature, "shape")
        if not shape or any(isinstance(x, bool) or not isinstance(x, int) or x < 1 for x in shape):
            raise wrong(inside, "shape", shape, "whole numbers")
        found[key] = PolicyFeature(text(inside, feature, "type"), tuple(shape))
    return found


def read_units(path: Path, kind: str, config: Mapping[str, Any], every: Mapping[str, PolicyFeature]) -> Units:
    """Normalization of states and actions from a directory's two processors.

    Args:
        path: the directory.
        kind: the policy's type.
        config: the policy's config.
        every: inputs and outputs of the policy.

    Raises:
        DataError: a file is missing, cannot be read, or contradicts another file.
    """
    if not (path / BEFORE).exists():
        raise DataError(
            f"{path} has no {BEFORE}: expected lerobot's layout since 0.4, with the statistics in the processors; its"
            " migrate_policy_normalization makes one of an older directory"
        )
    config_file = f"{path}/config.json"
    said = mapped(config_file, config, "normalization_mapping")
    modes = {name: text(f"{config_file}: normalization_mapping", said, name) for name in said}
    if modes.get("VISUAL", IDENTITY) != IDENTITY:
        raise wrong(config_file, "normalization_mapping of VISUAL", modes["VISUAL"], IDENTITY)
    before, after = (_steps(path, file, kind) for file in (BEFORE, AFTER))
    if before[RENAME].config.get("rename_map", {}) != {}:
        raise DataError(f"{before[RENAME].where}: rename_map is not empty: name the cameras by `cameras` instead")
    _check_tokenizer(before[TOKENIZER], config_file, config)
    for step, keys in ((before[NORMALIZER], (STATE, LABEL)), (after[UNNORMALIZER], (LABEL,))):
        _check_normalizer(step, every, modes, keys)
    state_mode, action_mode = (modes.get(name, IDENTITY) for name in ("STATE", "ACTION"))
    state = _affine(path, before[NORMALIZER], STATE, state_mode, every[STATE], _eps(before[NORMALIZER]))
    # lerobot's un-normalization adds no eps to stds
    action = inverse(_affine(path, after[UNNORMALIZER], LABEL, action_mode, every[LABEL], 0.0))
    if action_mode != IDENTITY:
        _check_same(path, before[NORMALIZER], after[UNNORMALIZER])
    return Units(state, action)


class _Step(NamedTuple):
    where: str
    """File and name, for errors."""
    config: dict[str, Any]
    said: dict[str, Any]
    """The whole entry of the step."""


def _steps(path: Path, file: str, kind: str) -> dict[str, _Step]:
    """Read and check a processor's steps, by name."""
    orders = [tuple(name.format(kind) for name in order) for order in STEPS[file]]
    out: list[tuple[str, _Step]] = []
    for index, step in enumerate(listed(f"{path}/{file}", read_json(path, file), "steps")):
        where = f"{path}/{file}: step {index}"
        if not isinstance(step, dict):
            raise wrong(f"{path}/{file}", f"step {index}", step, "an object")
        name = str(step.get("registry_name", step.get("class")))
        if name not in orders[0]:
            raise DataError(f"{path}/{file}: {unknown('step', name, orders[0])}")
        where = f"{where}, {name}"
        normalizes = name in (NORMALIZER, UNNORMALIZER)
        known(where, step, ("registry_name", "config", *(("state_file",) if normalizes else ())))
        config = mapped(where, step, "config", {})
        known(where, config, SETTINGS.get(name, ()))
        fixed(where, config, FIXED.get(name, {}))
        out.append((name, _Step(where, config, step)))
    found = tuple(name for name, _ in out)
    if found not in orders:
        raise DataError(f"{path}/{file}: steps are {', '.join(found)}: expected {', '.join(orders[0])}, in this order")
    return dict(out)


def _check_tokenizer(step: _Step, config_file: str, config: Mapping[str, Any]) -> None:
    """Check that both files have the same prompt length, since lerobot truncates to the processor's."""
    longest = whole(config_file, config, "tokenizer_max_length", LONGEST)
    if (found := whole(step.where, step.config, "max_length")) != longest:
        raise wrong(step.where, "max_length", found, f"{longest}, as {config_file} says (tokenizer_max_length)")


def _check_normalizer(
    step: _Step, every: Mapping[str, PolicyFeature], modes: Mapping[str, str], keys: tuple[str, ...]
) -> None:
    """Compare a normalizer with the policy's config: its features and modes."""
    said = mapped(step.where, step.config, "norm_map")
    for kind in sorted({*said, *modes}):
        found, wanted = said.get(kind, IDENTITY), modes.get(kind, IDENTITY)
        if found != wanted:
            raise DataError(f"{step.where} normalises {kind} by {found!r}: expected {wanted!r}, as config.json says")
    theirs = features(step.where, step.config, "features")
    for key in keys:
        if key not in theirs:
            raise DataError(f"{step.where}: features lack {key!r}: expected it, or it is not normalised")
    for key, feature in theirs.items():
        wanted = every.get(key, feature)
        # images may have any size
        if feature.kind != wanted.kind or (key in keys and feature.shape != wanted.shape):
            raise DataError(
                f"{step.where}: {key} is {feature.kind} {feature.shape}: expected {wanted.kind} {wanted.shape}, as"
                " config.json says"
            )
    if "normalize_observation_keys" in step.config:
        chosen = listed(step.where, step.config, "normalize_observation_keys")
        if STATE in keys and STATE not in chosen:
            raise wrong(
                step.where, "normalize_observation_keys", chosen, f"{STATE} among them, or it is not normalised"
            )


def _eps(step: _Step) -> float:
    return positive(step.where, step.config, "eps", EPS)


def _statistics(path: Path, step: _Step, key: str) -> dict[str, Tensor]:
    """Read a feature's statistics from a step's file."""
    found = read_tensors(path / text(step.where, step.said, "state_file"))
    return {name.removeprefix(f"{key}."): x for name, x in found.items() if name.startswith(f"{key}.")}


def _affine(path: Path, step: _Step, key: str, mode: str, feature: PolicyFeature, eps: float) -> Affine:
    """Normalization of a feature, from its units to the network's."""
    name, width = ACTION if key == LABEL else key, feature.shape[0]
    if mode == IDENTITY:
        return Affine(name, (1.0,) * width, (0.0,) * width)
    return from_stats(name, _statistics(path, step, key), mode, width, eps, f"{step.where}: statistics of {key}")


def _check_same(path: Path, before: _Step, after: _Step) -> None:
    """Compare the action's statistics of both processors: those used in training, and those that undo them."""
    first, second = (_statistics(path, step, LABEL) for step in (before, after))
    for name in sorted({*first, *second}):
        if name not in first or name not in second:
            lacking = before if name not in first else after
            raise DataError(f"{lacking.where}: statistics of {LABEL} lack {name!r}: expected what both processors have")
        a, b = (np.asarray(side[name].tolist(), np.float64).reshape(-1) for side in (first, second))
        if a.shape != b.shape:
            raise DataError(
                f"{after.where}: statistics of {LABEL}: {name} has {len(b)} numbers: expected {len(a)}, as {BEFORE} has"
            )
        if (apart := np.flatnonzero(~np.isclose(a, b, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True))).size:
            column = apart[0]
            raise DataError(
                f"{after.where}: statistics of {LABEL}: {name} of column {column} is {b[column]:g}: expected"
                f" {a[column]:g}, as {BEFORE} has"
            )
