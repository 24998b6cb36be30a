"""Importer of published OpenVLA and OpenVLA-OFT directories; reads them strictly.

A directory has `config.json`, one or more safetensors with an index, `tokenizer.json`, `preprocessor_config.json`, and
for a fine-tuned model `dataset_statistics.json`, whose statistics then apply. All files are compared: weights that are
missing, left over or of another shape, a tokenizer of another length, image normalization for other towers and a
missing statistics key are refused by name.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from robotrl.errors import ConfigError, DataError
from robotrl.importers.files import (
    check_merged,
    check_weights,
    read_json,
    read_tensors,
    read_tokenizer_file,
    unreadable,
)
from robotrl.importers.openvla.config import network
from robotrl.importers.openvla.stats import (
    ACTIONS,
    STATES,
    Files,
    Stats,
    check_chosen,
    choose,
    of_all,
    read_files,
)
from robotrl.importers.ranges import check_ranges
from robotrl.importers.shards import weight_files
from robotrl.policies.base import ACTION
from robotrl.policies.vla.networks.autoregressive import Decoding
from robotrl.policies.vla.networks.openvla import OpenVlaCfg, TextCfg
from robotrl.policies.vla.pretrained import OpenVlaPolicy, OpenVlaPolicyCfg
from robotrl.run.policy_checkpoint import load_weights
from robotrl.spec import Spec, measured
from robotrl.transforms import Affine, Clip, Transform, TransformGroup

PARTS = "*--*_checkpoint.pt"
"""Files of OFT's modules outside the network, by name and step."""
STATE_PART = "proprio_projector"
STATE_FILES = f"{STATE_PART}--*_checkpoint.pt"
UNSUPPORTED = {
    "action_head": "a head of continuous actions (L1 or diffusion), without which the head that says tokens, untrained,"
    " would be used",
    "noisy_action_projector": "of a diffusion head, without which the head that says tokens, untrained, would be used",
    "vision_backbone": "a backbone that the instruction modulates (FiLM), without which pictures would be seen"
    " otherwise",
}
"""Unsupported modules of OFT, and the consequence of ignoring them."""
FLOOR = 1e-8
"""Smallest range of a state's statistics; smaller ones are raised to it."""


class OpenVlaDir(NamedTuple):
    """Contents of a directory, without the weights."""

    path: Path
    net: OpenVlaCfg
    tokenizer: str
    actions: dict[str, Stats]
    """Statistics of actions by dataset key."""
    states: dict[str, Stats]
    """Statistics of measured states by dataset key, where there are any."""
    statistics: Files
    """All statistics, as read."""


def read_directory(path: str | Path, decoding: Decoding = "autoregressive", state: int = 0) -> OpenVlaDir:
    """Read a directory, without the weights.

    Args:
        path: the directory.
        decoding: "parallel" for OFT; the files do not contain it.
        state: width of OFT's measured state, whose projector is in a file of its own; 0 without.

    Raises:
        DataError: a file is missing, cannot be read, or contradicts another file; or a module is not supported.
        ConfigError: the directory's modules need other settings.
    """
    path = Path(path)
    config = read_json(path, "config.json")
    net = network(path, config, decoding, state)
    check_merged(path)
    _check_parts(path, decoding, state)
    tokenizer = _tokenizer(path, net.text)
    files = read_files(path, config)
    actions, states = (of_all(path, files, what) for what in (ACTIONS, STATES))
    if not actions:
        raise DataError(
            f"{path}: neither config.json (norm_stats) nor dataset_statistics.json has statistics of actions"
        )
    return OpenVlaDir(path, net, tokenizer, actions, states, files)


def statistics_key(path: str | Path, key: str | None) -> str:
    """Key of the dataset whose statistics are used; see `load_openvla`.

    Raises:
        DataError: the statistics cannot be read.
        ConfigError: there are several and no key is given, or the key is unknown.
    """
    path = Path(path)
    return choose(of_all(path, read_files(path, read_json(path, "config.json")), ACTIONS), key)


def load_openvla(
    path: str | Path,
    observation_spec: Mapping[str, Spec],
    action_spec: Spec,
    *,
    key: str | None = None,
    decoding: Decoding = "autoregressive",
    horizon: int | None = None,
    state: int = 0,
    camera: str = "",
    dtype: torch.dtype = torch.float32,
) -> OpenVlaPolicy:
    """Load a directory's policy for the observations and actions of a sim.

    The policy is unverified: only a comparison with labeled actions of its dataset shows that its weights are right.

    Args:
        path: the directory.
        observation_spec: the sim's spec: a square image of the towers' size, an instruction, a state for OFT.
        action_spec: the sim's action, with the width and the units of the dataset's actions.
        key: dataset whose statistics un-normalize actions; optional if there is one.
        decoding: "parallel" for OFT.
        horizon: actions in a chunk, 1 by default; required for OFT, as in its training.
        state: width of OFT's measured state, 0 without.
        camera: key of the image; optional if there is one image.
        dtype: dtype of the weights.

    Raises:
        DataError: the directory's files contradict each other or do not match the architecture.
        ConfigError: the directory does not match the settings or the sim: modules, key, action width, pixels, words.
        CapabilityError: the sim has no image or no instruction.
    """
    found = read_directory(path, decoding, state)
    if horizon is None and decoding == "parallel":
        raise ConfigError(
            "horizon is not given: expected the actions of a chunk that the OFT policy was trained with, which its"
            " directory does not say (8 for LIBERO)"
        )
    name = choose(found.actions, key)
    check_chosen(found.path, found.statistics, name, ACTIONS)
    stats = found.actions[name]
    if len(stats.low) != action_spec.shape[0]:
        raise ConfigError(
            f"actions of {name!r} have {len(stats.low)} numbers: expected {action_spec.shape[0]}, as the sim's"
        )
    outputs: tuple[Transform, ...] = (_from_unit(stats), Clip(ACTION, action_spec.low, action_spec.high))
    inputs: tuple[Transform, ...] = ()
    if state:
        inputs = _state_inputs(found, name, observation_spec, state)
    transforms = TransformGroup(inputs, outputs)
    check_ranges(f"{found.path}: statistics {name!r}", transforms, observation_spec, action_spec)
    cfg = OpenVlaPolicyCfg(found.net, found.tokenizer, horizon or 1, camera)
    policy = OpenVlaPolicy(dict(observation_spec), action_spec, transforms, cfg)
    weights = {name: value.to(dtype) for name, value in read_weights(found.path, bool(state)).items()}
    load_weights(policy.to(dtype).net, weights, f"{found.path}: the network")
    return policy


def read_weights(path: Path, state: bool) -> dict[str, Tensor]:
    """Read all tensors of a directory, by the names of `OpenVla`.

    Raises:
        DataError: see `weight_files` and `read_tensors`.
    """
    out = {name: value for file in weight_files(path) for name, value in read_tensors(file).items()}
    if state:
        out |= _state_weights(path)
    return out


def _check_parts(path: Path, decoding: Decoding, state: int) -> None:
    """Refuse unsupported modules of OFT, and settings that contradict its modules."""
    parts = {file.name.partition("--")[0]: file for file in sorted(path.glob(PARTS))}
    for part, file in parts.items():
        if part != STATE_PART:
            what = UNSUPPORTED.get(part, "a part that is not known, without which the policy would be another")
            raise DataError(f"{file} is {what}: expected tokens alone, with {STATE_PART} or without")
    if decoding != "parallel" and (STATE_PART in parts or state):
        why = f"{parts[STATE_PART]} is a part of OFT" if parts else f"state is {state}, which OFT alone has"
        raise ConfigError(f"{why}: expected layout openvla-oft (decoding 'parallel'), not openvla")
    if STATE_PART in parts and not state:
        raise ConfigError(f"state is not given beside {parts[STATE_PART]}: expected the width of the measured state")


def _state_weights(path: Path) -> dict[str, Tensor]:
    """Read OFT's state projector, published as a pickle; `weights_only` loads tensors and runs no code."""
    files = sorted(path.glob(STATE_FILES))
    if len(files) != 1:
        raise DataError(f"{path} has {len(files)} files {STATE_FILES}: expected 1")
    try:
        stored = torch.load(files[0], map_location="cpu", weights_only=True)
    # truncated files, truncated old formats and pickles of other objects raise different errors
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise unreadable(files[0], "cannot be read as weights alone", error) from error
    if not isinstance(stored, dict):
        raise DataError(f"{files[0]} holds {type(stored).__name__}: expected tensors by name")
    weights: dict[Any, Any] = stored
    for name, value in weights.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise DataError(f"{files[0]}: {name!r} is {type(value).__name__}: expected tensors by name")
    check_weights(files[0], weights)
    # names saved under data-parallel training begin with "module."
    return {f"{STATE_PART}.{name.removeprefix('module.')}": value for name, value in weights.items()}


def _tokenizer(path: Path, text: TextCfg) -> str:
    stored, plain, _ = read_tokenizer_file(path)
    if plain != text.end:
        raise DataError(
            f"{path}/tokenizer.json has {plain} tokens: expected {text.end}, the embedding's {text.vocabulary} rows"
            f" less {text.padding} of padding"
        )
    return stored


def _from_unit(stats: Stats) -> Affine:
    """Un-normalization from [-1, 1] to the dataset's units: 0.5 (x + 1) (q99 - q01) + q01 where the mask is True."""
    low, high, mask = (np.asarray(x) for x in stats)
    scale = np.where(mask, 0.5 * (high - low), 1.0)
    offset = np.where(mask, 0.5 * (high + low), 0.0)
    return Affine(ACTION, tuple(scale.tolist()), tuple(offset.tolist()))


def _state_inputs(
    found: OpenVlaDir, key: str, observation_spec: Mapping[str, Spec], width: int
) -> tuple[Transform, ...]:
    """Normalization of the sim's measured vector: quantiles to -1 and 1, clipped."""
    if key not in found.states:
        raise DataError(f"{found.path}: statistics {key!r} have no proprio: expected them of a policy with a state")
    check_chosen(found.path, found.statistics, key, STATES)
    stats = found.states[key]
    names = measured(observation_spec)
    if len(stats.low) != width or len(names) != 1 or observation_spec[names[0]].shape != (width,):
        raise ConfigError(
            f"state {', '.join(names) or '(none)'}: expected one vector of {width} numbers, and statistics of as many;"
            f" {key!r} has {len(stats.low)}"
        )
    low, high, mask = (np.asarray(x) for x in stats)
    span = np.where(mask, np.maximum(high - low, FLOOR), 2.0)
    middle = np.where(mask, (high + low) / 2, 0.0)
    to_unit = Affine(names[0], tuple((2 / span).tolist()), tuple((-2 * middle / span).tolist()))
    return to_unit, Clip(names[0], (-1.0,) * width, (1.0,) * width)
