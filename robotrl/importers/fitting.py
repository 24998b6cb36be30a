"""Adaptation of a published policy to a sim: cameras, normalization, tokenizer and weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import ConfigError, DataError, unknown
from robotrl.importers.fields import is_number, wrong
from robotrl.importers.files import read_tokenizer_file
from robotrl.importers.ranges import check_ranges
from robotrl.policies.base import ACTION
from robotrl.policies.vla.pretrained import read_tokenizer
from robotrl.policies.vla.pretrained_flow import Pi0Policy, PretrainedFlow
from robotrl.run.policy_checkpoint import load_weights
from robotrl.spec import Spec, is_picture, measured
from robotrl.transforms import Affine, Clip, TransformGroup

ROWS = 64
"""Embeddings are padded to a multiple of this."""
RANGES = {"MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90")}
"""Statistics that are mapped to -1 and 1, by lerobot's normalization mode."""
SAID = "go"
"""Sample text, to find the special tokens that a tokenizer adds."""


def camera_order(
    wanted: tuple[str, ...], observation_spec: Mapping[str, Spec], cameras: Mapping[str, str] | None
) -> tuple[str, ...]:
    """The sim's image keys in the network's order.

    Args:
        wanted: the policy's image features, in its order.
        observation_spec: the sim's spec.
        cameras: from the policy's features to the sim's images; see `load_lerobot`.

    Raises:
        ConfigError: `cameras` lacks a feature or has an unknown one.
    """
    pictures = [key for key, spec in observation_spec.items() if is_picture(spec)]
    if cameras is None:
        if len(wanted) == len(pictures) == 1:
            return (pictures[0],)
        raise ConfigError(
            f"cameras are not given: expected a picture of {', '.join(pictures) or '(none)'} for each of"
            f" {', '.join(wanted)}, or '' where one is missing"
        )
    for feature in cameras:
        if feature not in wanted:
            raise unknown("cameras", feature, wanted)
    if lost := [feature for feature in wanted if feature not in cameras]:
        raise ConfigError(f"cameras lack {lost[0]!r}: expected a picture, or '' if it is missing")
    return tuple(cameras[feature] for feature in wanted)


def transforms_on(
    where: str, observation_spec: Mapping[str, Spec], action_spec: Spec, state: Affine, action: Affine
) -> TransformGroup:
    """Transforms of a policy on a sim: normalization of the measured state, un-normalization and clipping of actions.

    Raises:
        ConfigError: there are several measured vectors, or the state or the action has another width.
        DataError: the statistics leave no range to any action; see `check_ranges`.
    """
    vectors = measured(observation_spec)
    width = len(state.scale)
    if len(vectors) != 1 or observation_spec[vectors[0]].shape != (width,):
        shapes = ", ".join(f"{key} {observation_spec[key].shape}" for key in vectors) or "(none)"
        raise ConfigError(f"measured vectors are {shapes}: expected one of {width} numbers, the policy's state")
    if len(action.scale) != action_spec.shape[0]:
        raise ConfigError(
            f"actions of the policy have {len(action.scale)} numbers: expected {action_spec.shape[0]}, as the sim's"
        )
    inputs = (Affine(vectors[0], state.scale, state.offset),)
    found = TransformGroup(inputs, (action, Clip(ACTION, action_spec.low, action_spec.high)))
    check_ranges(where, found, observation_spec, action_spec)
    return found


def from_stats(key: str, stats: Mapping[str, Any], mode: str, width: int, eps: float, where: str) -> Affine:
    """Normalization of a feature, as an `Affine` from its units to the network's.

    Args:
        key: the feature. An action element without any range is refused, since the network could not move it.
        stats: statistics by name, (width,) each.
        mode: lerobot's `NormalizationMode`.
        width: expected width of the feature.
        eps: added to stds, and replaces ranges of 0.
        where: name of the statistics in errors.

    Raises:
        DataError: an unknown mode, or statistics that are missing, of another width, no numbers, or impossible: a std
            below 0, a lower bound above the upper one.
    """
    if mode != "MEAN_STD" and mode not in RANGES:
        raise DataError(f"{where}: {unknown('mode', mode, ['MEAN_STD', *RANGES, 'IDENTITY'])}")
    names = ("mean", "std") if mode == "MEAN_STD" else RANGES[mode]
    for name in names:
        if name not in stats:
            raise DataError(f"{where} lack {name!r}: expected it for {mode}")
    first, second = (_row(stats[name], name, width, where) for name in names)
    spread = second if mode == "MEAN_STD" else second - first
    if (below := np.flatnonzero(spread < 0)).size:
        expected = "0 or more" if mode == "MEAN_STD" else f"{names[0]} or more, {first[below[0]]:g}"
        raise wrong(where, f"{names[1]} of column {below[0]}", float(second[below[0]]), expected)
    if key == ACTION and (still := np.flatnonzero(spread == 0)).size:
        expected = f"more than {'0' if mode == 'MEAN_STD' else names[0]}, as it would never move"
        raise wrong(where, f"{names[1]} of column {still[0]}", float(second[still[0]]), expected)
    if mode == "MEAN_STD":
        scale = 1 / (second + eps)
        return Affine(key, tuple(scale.tolist()), tuple((-first * scale).tolist()))
    span = np.where(spread == 0, eps, spread)
    return Affine(key, tuple((2 / span).tolist()), tuple((-2 * first / span - 1).tolist()))


def _row(said: Any, name: str, width: int, where: str) -> NDArray[np.float64]:
    """Check and convert the numbers of a statistic."""
    row = said.tolist() if isinstance(said, Tensor) else said
    if not isinstance(row, list):
        raise wrong(where, name, row, f"a list of {width} numbers")
    if len(row) != width:
        raise DataError(f"{where}: {name} has {len(row)} numbers: expected {width}")
    for column, value in enumerate(row):
        if not is_number(value):
            raise wrong(where, f"{name} of column {column}", value, "a finite number")
    return np.asarray(row, np.float64)


def renamed(weights: Mapping[str, Tensor], rename: Callable[[str], str], where: str) -> dict[str, Tensor]:
    """Rename weights.

    Raises:
        DataError: two weights get the same name, so that the right one is unknown.
    """
    out: dict[str, Tensor] = {}
    came: dict[str, str] = {}
    for name, value in weights.items():
        new = rename(name)
        if new in out:
            raise DataError(f"{where} has {came[new]} and {name}: expected one of them, both are the same weight")
        out[new], came[new] = value, name
    return out


def tokenizer_of(vlm: Path, rows: int, begin: str | None) -> str:
    """Read a directory's `tokenizer.json` and check it against the embedding.

    Args:
        vlm: the directory.
        rows: rows of the embedding.
        begin: expected token before a text, or None for no special tokens.

    Raises:
        DataError: it is missing, has a different number of tokens, or adds other special tokens.
    """
    stored, _, every = read_tokenizer_file(vlm)
    where = f"{vlm}/tokenizer.json"
    if not rows - ROWS < every <= rows:
        raise DataError(f"{where} has {every} tokens: expected {rows}, the embedding's rows, or up to {ROWS - 1} fewer")
    loaded = read_tokenizer(stored)
    plain = loaded.encode(SAID, add_special_tokens=False).tokens
    if (found := loaded.encode(SAID).tokens) != ([] if begin is None else [begin]) + plain:
        expected = "nothing around them" if begin is None else f"{begin} before them and nothing else"
        raise DataError(f"{where} makes {' '.join(found)} of {' '.join(plain)}: expected {expected}")
    return stored


def load_into(policy: PretrainedFlow, weights: Mapping[str, Tensor], where: str, dtype: torch.dtype) -> None:
    """Load weights into a policy's network, strictly.

    Raises:
        DataError: weights are missing, left over or of another shape.
    """
    net: Any = policy.to(dtype).net
    inner = net.net if isinstance(policy, Pi0Policy) else net
    load_weights(inner, {name: x.to(dtype) for name, x in weights.items()}, f"{where}: the network")
