"""Directories of OpenVLA and OpenVLA-OFT as they are published, read strictly.

A directory has `config.json`, one or more safetensors with an index, `tokenizer.json`, `preprocessor_config.json`, and,
of a fine-tune, `dataset_statistics.json`, whose statistics then count. Everything is held against everything else: a
weight that is missing, left over or of another shape, a tokenizer of another length, pixels that are normalised for
other towers, a statistics key that is not there are each refused by name.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from robotrl.errors import ConfigError, DataError, unknown
from robotrl.importers.files import read_json, read_tensors, read_tokenizer_file, require
from robotrl.load import load_weights
from robotrl.policies.base import ACTION
from robotrl.policies.vla.openvla import OpenVlaCfg, TextCfg
from robotrl.policies.vla.pretrained import OpenVlaPolicy, OpenVlaPolicyCfg
from robotrl.policies.vla.speaker import Decoding
from robotrl.policies.vla.vision import DINOV2_L, SIGLIP_SO400M, TowerCfg
from robotrl.spec import Spec, measured
from robotrl.transforms import Affine, Clip, Transform, TransformGroup

TOWERS: dict[str, TowerCfg] = {
    "vit_large_patch14_reg4_dinov2.lvd142m": DINOV2_L,
    "vit_so400m_patch14_siglip_224": SIGLIP_SO400M,
}
"""What the config's `timm_model_ids` mean."""
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
STATE_FILES = "proprio_projector--*_checkpoint.pt"
FLOOR = 1e-8
"""A statistic's range below this is no range."""


class Stats(NamedTuple):
    """How one dataset's numbers are normalised: its quantiles become -1 and 1."""

    low: tuple[float, ...]
    """1 % quantiles."""
    high: tuple[float, ...]
    """99 % quantiles."""
    mask: tuple[bool, ...]
    """False where a number is left as it is, e.g. a gripper's."""


class OpenVlaDir(NamedTuple):
    """What a directory holds, weights apart."""

    path: Path
    net: OpenVlaCfg
    tokenizer: str
    actions: dict[str, Stats]
    """By the dataset's key."""
    states: dict[str, Stats]
    """Of those datasets that have measured states."""


def read_directory(path: str | Path, decoding: Decoding = "autoregressive", state: int = 0) -> OpenVlaDir:
    """Everything but the weights.

    Args:
        path: the directory.
        decoding: "parallel" for OFT; the files do not say it.
        state: width of OFT's measured state, whose projector is in a file of its own; 0 without.

    Raises:
        DataError: a file is missing, cannot be read, or says what the others do not.
    """
    path = Path(path)
    config = read_json(path, "config.json")
    if config.get("model_type") != "openvla":
        raise DataError(f"{path}/config.json: model_type is {config.get('model_type')!r}: expected 'openvla'")
    towers = [_tower(path, name) for name in require(path, config, "timm_model_ids", list)]
    if len(towers) != 2:
        raise DataError(f"{path}/config.json: timm_model_ids has {len(towers)} entries: expected 2, a fused backbone")
    _check_sizes(path, config, towers)
    said = require(path, config, "text_config", dict)
    defaults = TextCfg()
    text = TextCfg(
        width=int(said.get("hidden_size", defaults.width)),
        depth=int(said.get("num_hidden_layers", defaults.depth)),
        heads=int(said.get("num_attention_heads", defaults.heads)),
        kv_heads=int(said.get("num_key_value_heads", said.get("num_attention_heads", defaults.heads))),
        mlp=int(said.get("intermediate_size", defaults.mlp)),
        vocabulary=int(said.get("vocab_size", defaults.vocabulary)),
        padding=int(config.get("pad_to_multiple_of", defaults.padding)),
        positions=int(said.get("max_position_embeddings", defaults.positions)),
        norm_eps=float(said.get("rms_norm_eps", defaults.norm_eps)),
        rope_theta=float(said.get("rope_theta", defaults.rope_theta)),
    )
    net = OpenVlaCfg((towers[0], towers[1]), text, int(config.get("n_action_bins", 256)), decoding, state)
    _check_pixels(path, towers)
    tokenizer = _tokenizer(path, text)
    statistics = config.get("norm_stats") or {}
    if (path / "dataset_statistics.json").exists():
        statistics = read_json(path, "dataset_statistics.json")
    actions = {key: _stats(path, key, entry, "action") for key, entry in statistics.items() if "action" in entry}
    states = {key: _stats(path, key, entry, "proprio") for key, entry in statistics.items() if "proprio" in entry}
    if not actions:
        raise DataError(
            f"{path}: neither config.json (norm_stats) nor dataset_statistics.json has statistics of actions"
        )
    return OpenVlaDir(path, net, tokenizer, actions, states)


def load_openvla(
    path: str | Path,
    observation_spec: Mapping[str, Spec],
    action_spec: Spec,
    *,
    key: str | None = None,
    decoding: Decoding = "autoregressive",
    horizon: int = 1,
    state: int = 0,
    camera: str = "",
    dtype: torch.dtype = torch.float32,
) -> OpenVlaPolicy:
    """The policy of a directory, on the observations and actions of a sim.

    It is unverified: that its weights are those of somebody's results, only labelled actions of its dataset can show.

    Args:
        path: the directory.
        observation_spec: of the sim; a square picture of the towers' size, an instruction, a state for OFT.
        action_spec: of the sim; as wide as the dataset's actions, whose units it must have.
        key: whose statistics un-normalise actions; may be left out where there is one.
        decoding: "parallel" for OFT.
        horizon: actions in a chunk: 1, for OFT what it was trained on.
        state: width of OFT's measured state, 0 without.
        camera: key of the picture; may be left out where there is one.
        dtype: of the weights.

    Raises:
        DataError: what the directory holds does not fit together, or not the architecture.
        ConfigError: it does not fit the sim: key, width of the action, pixels, words.
        CapabilityError: the sim has no picture or no instruction.
    """
    found = read_directory(path, decoding, state)
    name = _key(found, key)
    stats = found.actions[name]
    if len(stats.low) != action_spec.shape[0]:
        raise ConfigError(
            f"actions of {name!r} have {len(stats.low)} numbers: expected {action_spec.shape[0]}, as the sim's"
        )
    outputs: tuple[Transform, ...] = (_from_unit(stats), Clip(ACTION, action_spec.low, action_spec.high))
    inputs: tuple[Transform, ...] = ()
    if state:
        inputs = _state_inputs(found, name, observation_spec, state)
    cfg = OpenVlaPolicyCfg(found.net, found.tokenizer, horizon, camera)
    policy = OpenVlaPolicy(dict(observation_spec), action_spec, TransformGroup(inputs, outputs), cfg)
    weights = {name: value.to(dtype) for name, value in read_weights(found.path, bool(state)).items()}
    load_weights(policy.to(dtype).net, weights, f"{found.path}: the network")
    return policy


def read_weights(path: Path, state: bool) -> dict[str, Tensor]:
    """All tensors of a directory, by the names of `OpenVla`.

    Raises:
        DataError: a file is missing or cannot be read, or a tensor is in two of them.
    """
    if (path / INDEX).exists():
        listed: dict[str, str] = require(path, read_json(path, INDEX), "weight_map", dict)
        names = sorted(set(listed.values()))
    else:
        listed, names = {}, [SINGLE]
    out: dict[str, Tensor] = {}
    for name in names:
        part = read_tensors(path / name)
        if twice := out.keys() & part.keys():
            raise DataError(f"{path / name}: tensor {min(twice)!r} is in another file, too")
        if listed and (wrong := {k for k in part if listed.get(k) != name}):
            raise DataError(f"{path / name}: tensor {min(wrong)!r} is not listed there by {INDEX}")
        out |= part
    if lost := listed.keys() - out.keys():
        raise DataError(f"{path / INDEX}: tensor {min(lost)!r} is in none of the files")
    if state:
        out |= _state_weights(path)
    return out


def _state_weights(path: Path) -> dict[str, Tensor]:
    """OFT's projector of measured states, published as a pickle; `weights_only` takes tensors and runs nothing."""
    files = sorted(path.glob(STATE_FILES))
    if len(files) != 1:
        raise DataError(f"{path} has {len(files)} files {STATE_FILES}: expected 1")
    try:
        stored = torch.load(files[0], map_location="cpu", weights_only=True)
    # a cut-short file, an old format that is cut short, and a pickle of something else than tensors raise each its own
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise DataError(f"{files[0]} cannot be read as weights alone: {error}") from error
    # written from several devices, names begin with "module."
    return {f"proprio_projector.{name.removeprefix('module.')}": value for name, value in stored.items()}


def _tower(path: Path, name: str) -> TowerCfg:
    if name not in TOWERS:
        raise DataError(f"{path}/config.json: {unknown('timm_model_ids', name, TOWERS)}")
    return TOWERS[name]


def _check_sizes(path: Path, config: Mapping[str, Any], towers: list[TowerCfg]) -> None:
    sizes = [tower.image for tower in towers]
    if list(config.get("image_sizes", sizes)) != sizes:
        raise DataError(f"{path}/config.json: image_sizes is {config['image_sizes']}: expected {sizes}")


def _check_pixels(path: Path, towers: list[TowerCfg]) -> None:
    """Hold the preprocessor's means and deviations against those that the towers are built with, in their order."""
    said = read_json(path, "preprocessor_config.json")
    for name, field in (("means", "mean"), ("stds", "std")):
        wanted = [list(getattr(tower, field)) for tower in towers]
        found = said.get(name)
        if found is None or np.shape(found) != (2, 3) or not np.allclose(found, wanted, atol=2e-3):
            raise DataError(
                f"{path}/preprocessor_config.json: {name} is {found}: expected {wanted}, one row for each tower in its"
                " order"
            )


def _tokenizer(path: Path, text: TextCfg) -> str:
    stored, plain, _ = read_tokenizer_file(path)
    if plain != text.end:
        raise DataError(
            f"{path}/tokenizer.json has {plain} tokens: expected {text.end}, the embedding's {text.vocabulary} rows"
            f" less {text.padding} of padding"
        )
    return stored


def _stats(path: Path, key: str, entry: Mapping[str, Any], what: str) -> Stats:
    said = require(path, entry, what, dict)
    low, high = (tuple(float(x) for x in require(path, said, name, list)) for name in ("q01", "q99"))
    mask = tuple(bool(x) for x in said.get("mask", [True] * len(low)))
    if not len(low) == len(high) == len(mask):
        raise DataError(f"{path}: statistics {key!r} of {what}: q01, q99 and mask have different lengths")
    if not np.isfinite([*low, *high]).all() or any(b < a for a, b in zip(low, high, strict=True)):
        raise DataError(f"{path}: statistics {key!r} of {what}: expected finite numbers, q99 not below q01")
    return Stats(low, high, mask)


def _key(found: OpenVlaDir, key: str | None) -> str:
    if key is None:
        if len(found.actions) > 1:
            raise ConfigError(f"key is not given: expected one of {', '.join(sorted(found.actions))}")
        return next(iter(found.actions))
    if key not in found.actions:
        raise unknown("key", key, found.actions)
    return key


def _from_unit(stats: Stats) -> Affine:
    """From [-1, 1] to the dataset's units: 0.5 (x + 1) (q99 - q01) + q01 where the mask says so."""
    low, high, mask = (np.asarray(x) for x in stats)
    scale = np.where(mask, 0.5 * (high - low), 1.0)
    offset = np.where(mask, 0.5 * (high + low), 0.0)
    return Affine(ACTION, tuple(scale.tolist()), tuple(offset.tolist()))


def _state_inputs(
    found: OpenVlaDir, key: str, observation_spec: Mapping[str, Spec], width: int
) -> tuple[Transform, ...]:
    """The state's quantiles to -1 and 1, clipped to them; of the one vector that is as wide."""
    if key not in found.states:
        raise DataError(f"{found.path}: statistics {key!r} have no proprio: expected them of a policy with a state")
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
