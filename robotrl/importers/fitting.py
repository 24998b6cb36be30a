"""What a published policy becomes on a sim: its cameras, its units, its tokenizer, its weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robotrl.errors import ConfigError, DataError, unknown
from robotrl.importers.files import read_tokenizer_file
from robotrl.load import load_weights
from robotrl.policies.base import ACTION
from robotrl.policies.vla.pretrained_flow import Pi0Policy, PretrainedFlow
from robotrl.spec import Spec, is_picture, measured
from robotrl.transforms import Affine, Clip, TransformGroup

ROWS = 64
"""Embeddings are padded to a multiple of this."""
RANGES = {"MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90")}
"""The statistics that become -1 and 1, by lerobot's names of its modes."""


def camera_order(
    wanted: tuple[str, ...], observation_spec: Mapping[str, Spec], cameras: Mapping[str, str] | None
) -> tuple[str, ...]:
    """The sim's pictures in the network's order.

    Args:
        wanted: the policy's picture features, in its order.
        observation_spec: of the sim.
        cameras: feature to picture; see `load_lerobot`.

    Raises:
        ConfigError: a feature is not named, or one that is not the policy's.
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
    observation_spec: Mapping[str, Spec], action_spec: Spec, state: Affine, action: Affine
) -> TransformGroup:
    """Normalisation of the sim's one measured vector, and the way back to its actions.

    Raises:
        ConfigError: there are several vectors, or one of another width; actions of another width.
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
    return TransformGroup(inputs, (action, Clip(ACTION, action_spec.low, action_spec.high)))


def from_stats(key: str, stats: Mapping[str, Any], mode: str, width: int, eps: float, where: str) -> Affine:
    """The `Affine` from a feature's units to the network's.

    Args:
        key: whose.
        stats: statistics by name, (width,) each.
        mode: lerobot's `NormalizationMode`.
        width: numbers that are expected.
        eps: added to deviations, and put in the place of ranges that are 0.
        where: what to call them in errors.

    Raises:
        DataError: an unknown mode, or statistics that are missing, of another width or no numbers.
    """
    if mode != "MEAN_STD" and mode not in RANGES:
        raise DataError(f"{where}: {unknown('mode', mode, ['MEAN_STD', *RANGES, 'IDENTITY'])}")
    names = ("mean", "std") if mode == "MEAN_STD" else RANGES[mode]
    rows = []
    for name in names:
        if name not in stats:
            raise DataError(f"{where} lack {name!r}: expected it for {mode}")
        row = np.asarray(stats[name], np.float64).reshape(-1)
        if row.shape != (width,) or not np.isfinite(row).all():
            raise DataError(f"{where}: {name} has {row.size} numbers: expected {width}, finite ones")
        rows.append(row)
    first, second = rows
    if mode == "MEAN_STD":
        scale = 1 / (second + eps)
        return Affine(key, tuple(scale.tolist()), tuple((-first * scale).tolist()))
    span = np.where(second == first, eps, second - first)
    return Affine(key, tuple((2 / span).tolist()), tuple((-2 * first / span - 1).tolist()))


def tokenizer_of(vlm: Path, rows: int) -> str:
    """The `tokenizer.json` of a directory, held against the rows of an embedding.

    Raises:
        DataError: it is missing, or has not as many tokens.
    """
    stored, _, every = read_tokenizer_file(vlm)
    if not rows - ROWS < every <= rows:
        raise DataError(
            f"{vlm}/tokenizer.json has {every} tokens: expected {rows}, the embedding's rows, or up to {ROWS - 1} fewer"
        )
    return stored


def load_into(policy: PretrainedFlow, weights: Mapping[str, Tensor], where: str, dtype: torch.dtype) -> None:
    """Put weights into a policy's network, strictly.

    Raises:
        DataError: weights are missing, left over or of another shape.
    """
    net: Any = policy.to(dtype).net
    inner = net.net if isinstance(policy, Pi0Policy) else net
    load_weights(inner, {name: x.to(dtype) for name, x in weights.items()}, f"{where}: the network")
