"""Directories of lerobot's SmolVLA and pi0 as they are published, read strictly.

A directory has `config.json`, one `model.safetensors`, and `policy_preprocessor.json` and `policy_postprocessor.json`
with a file of statistics each. What it does not have is the vision-language model's config and tokenizer, which lerobot
fetches by name; they are read from a directory of their own. A processor's step that is not known here is refused,
since what it does would be missing; so are statistics that are not there, which lerobot passes over in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from robotrl.errors import ConfigError, DataError, unknown
from robotrl.importers.files import read_json, read_tensors, read_tokenizer_file, require
from robotrl.importers.pi0_names import from_openpi
from robotrl.load import load_weights
from robotrl.policies.base import ACTION
from robotrl.policies.encoder import is_picture
from robotrl.policies.vla.pi0 import Pi0Cfg
from robotrl.policies.vla.pretrained_flow import Pi0Policy, PretrainedFlow, PretrainedFlowCfg, SmolVlaPolicy
from robotrl.policies.vla.smolvla import SmolVlaCfg
from robotrl.spec import Spec
from robotrl.transforms import Affine, Clip, TransformGroup, inverse

POLICIES: dict[str, type[PretrainedFlow]] = {"smolvla": SmolVlaPolicy, "pi0": Pi0Policy}
"""By the config's `type`."""
PI0_SIZES = {("gemma_2b", "gemma_300m"): Pi0Cfg()}
"""By the config's variants of the language model and of the expert."""
STATE, LABEL = "observation.state", "action"
BEFORE, AFTER = "policy_preprocessor.json", "policy_postprocessor.json"
NORMALIZER, UNNORMALIZER, RENAME = (
    "normalizer_processor",
    "unnormalizer_processor",
    "rename_observations_processor",
)
STEPS = {
    BEFORE: (
        RENAME,
        "to_batch_processor",
        "smolvla_new_line_processor",
        "pi0_new_line_processor",
        "tokenizer_processor",
        "device_processor",
        NORMALIZER,
    ),
    AFTER: (UNNORMALIZER, "device_processor"),
}
"""Steps whose work is done here."""
FIXED: dict[str, dict[str, Any]] = {
    "smolvla": {
        "attention_mode": "cross_attn",
        "add_image_special_tokens": False,
        "adapt_to_pi_aloha": False,
        "n_obs_steps": 1,
    },
    "pi0": {"n_obs_steps": 1},
}
"""Settings of which nothing else is supported."""
ROWS = 64
"""Embeddings are padded to a multiple of this."""


class LeRobotDir(NamedTuple):
    """What a directory holds, weights apart."""

    path: Path
    kind: str
    config: dict[str, Any]
    cameras: tuple[str, ...]
    """Features of the pictures, in the network's order."""
    state: Affine
    """From measured states to what the network sees."""
    action: Affine
    """From what it says to actions."""


def read_directory(path: str | Path) -> LeRobotDir:
    """Everything but the weights.

    Raises:
        DataError: a file is missing, cannot be read, or says what the others do not.
    """
    path = Path(path)
    config = read_json(path, "config.json")
    kind = config.get("type")
    if kind not in POLICIES:
        raise DataError(f"{path}/config.json: {unknown('type', str(kind), POLICIES)}")
    for name, wanted in FIXED[kind].items():
        if config.get(name, wanted) != wanted:
            raise DataError(f"{path}/config.json: {name} is {config[name]!r}: expected {wanted!r}")
    inputs, outputs = (require(path, config, name, dict) for name in ("input_features", "output_features"))
    cameras = tuple(key for key, feature in inputs.items() if feature.get("type") == "VISUAL")
    if not cameras or STATE not in inputs or set(outputs) != {LABEL}:
        raise DataError(
            f"{path}/config.json: features are {', '.join([*inputs, *outputs])}: expected pictures, {STATE} and {LABEL}"
        )
    if not (path / BEFORE).exists():
        raise DataError(
            f"{path} has no {BEFORE}: expected lerobot's layout since 0.4, with the statistics in the processors; its"
            " migrate_policy_normalization makes one of an older directory"
        )
    modes = require(path, config, "normalization_mapping", dict)
    if modes.get("VISUAL", "IDENTITY") != "IDENTITY":
        raise DataError(
            f"{path}/config.json: normalization_mapping of VISUAL is {modes['VISUAL']!r}: expected IDENTITY"
        )
    before, after = (_steps(path, name) for name in (BEFORE, AFTER))
    if before.get(RENAME, {}).get("config", {}).get("rename_map"):
        raise DataError(f"{path}/{BEFORE}: rename_map is not empty: name the cameras by `cameras` instead")
    state = _affine(path, before, NORMALIZER, STATE, modes.get("STATE", "IDENTITY"), inputs[STATE])
    action = inverse(_affine(path, after, UNNORMALIZER, LABEL, modes.get("ACTION", "IDENTITY"), outputs[LABEL]))
    return LeRobotDir(path, kind, config, cameras, state, action)


def load_lerobot(
    path: str | Path,
    observation_spec: Mapping[str, Spec],
    action_spec: Spec,
    *,
    vlm: str | Path,
    cameras: Mapping[str, str] | None = None,
    horizon: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> PretrainedFlow:
    """The policy of a directory, on the observations and actions of a sim.

    It is unverified: that its weights are those of somebody's results, only labelled actions of its dataset can show.

    Args:
        path: the directory.
        observation_spec: of the sim; pictures, an instruction, and one vector as wide as the policy's state.
        action_spec: of the sim; as wide as the policy's actions, whose units it must have.
        vlm: directory of the vision-language model that it was trained from: its `tokenizer.json`, and for SmolVLA its
            `config.json`.
        cameras: the policy's picture features, e.g. "observation.images.top", to the sim's pictures; "" where a camera
            is missing. May be left out where there is one of each.
        horizon: how many of a chunk's actions are executed; by default what the config says (`n_action_steps`).
        dtype: of the weights.

    Raises:
        DataError: what the directory holds does not fit together, or not the architecture.
        ConfigError: it does not fit the sim: cameras, state, action, words.
        CapabilityError: the sim has no picture or no instruction.
    """
    found = read_directory(path)
    config, vlm = found.config, Path(vlm)
    net: SmolVlaCfg | Pi0Cfg = smolvla_sizes(found, vlm) if found.kind == "smolvla" else pi0_sizes(found)
    cfg = PretrainedFlowCfg(
        net=net,
        tokenizer=tokenizer_of(vlm, net.vocabulary),
        chunk=int(require(found.path, config, "chunk_size", int)),
        horizon=int(config.get("n_action_steps", config["chunk_size"])) if horizon is None else horizon,
        denoising_steps=int(config.get("num_steps" if found.kind == "smolvla" else "num_inference_steps", 10)),
        cameras=camera_order(found.cameras, observation_spec, cameras),
    )
    transforms = transforms_on(observation_spec, action_spec, found.state, found.action)
    policy = POLICIES[found.kind](dict(observation_spec), action_spec, transforms, cfg)
    weights = {k.removeprefix("model."): x for k, x in read_tensors(found.path / "model.safetensors").items()}
    if found.kind == "pi0":
        weights = from_openpi(weights, str(found.path))
    load_into(policy, weights, str(found.path), dtype)
    return policy


def load_into(policy: PretrainedFlow, weights: Mapping[str, Tensor], where: str, dtype: torch.dtype) -> None:
    """Put weights into a policy's network, strictly.

    Raises:
        DataError: weights are missing, left over or of another shape.
    """
    net: Any = policy.to(dtype).net
    inner = net.net if isinstance(policy, Pi0Policy) else net
    load_weights(inner, {name: x.to(dtype) for name, x in weights.items()}, f"{where}: the network")


def smolvla_sizes(found: LeRobotDir, vlm: Path) -> SmolVlaCfg:
    """The network's sizes, from the policy's config and the vision-language model's.

    Raises:
        DataError: they do not say them, or ask for what is not supported.
    """
    config, said = found.config, read_json(vlm, "config.json")
    text, vision = (require(vlm, said, name, dict) for name in ("text_config", "vision_config"))
    pixels = config.get("resize_imgs_with_padding")
    side = vision.get("image_size", SmolVlaCfg.image)
    if pixels is not None and list(pixels) != [side, side]:
        raise DataError(f"{found.path}/config.json: resize_imgs_with_padding is {pixels}: expected {[side, side]}")
    layers = int(config.get("num_vlm_layers", SmolVlaCfg.layers))
    expert = int(config.get("num_expert_layers", -1))
    if expert > 0 and expert != layers:
        raise DataError(f"{found.path}/config.json: num_expert_layers is {expert}: expected {layers}, num_vlm_layers")
    if config.get("empty_cameras", 0):
        raise DataError(f"{found.path}/config.json: empty_cameras is {config['empty_cameras']}: expected 0")
    heads = int(require(vlm, text, "num_attention_heads", int))
    width = int(require(vlm, text, "hidden_size", int))
    vision_heads = int(require(vlm, vision, "num_attention_heads", int))
    return SmolVlaCfg(
        width=width,
        layers=layers if layers > 0 else int(require(vlm, text, "num_hidden_layers", int)),
        heads=heads,
        kv_heads=int(text.get("num_key_value_heads", heads)),
        head_width=int(text.get("head_dim") or width // heads),
        mlp=int(require(vlm, text, "intermediate_size", int)),
        vocabulary=int(require(vlm, text, "vocab_size", int)),
        norm_eps=float(text.get("rms_norm_eps", SmolVlaCfg.norm_eps)),
        vision_width=int(require(vlm, vision, "hidden_size", int)),
        vision_layers=int(vision.get("num_hidden_layers", SmolVlaCfg.vision_layers)),
        vision_heads=vision_heads,
        vision_mlp=int(vision.get("intermediate_size", SmolVlaCfg.vision_mlp)),
        patch=int(require(vlm, vision, "patch_size", int)),
        image=int(side),
        shuffle=int(require(vlm, said, "scale_factor", int)),
        expert_share=float(config.get("expert_width_multiplier", SmolVlaCfg.expert_share)),
        self_every=int(config.get("self_attn_every_n_layers", SmolVlaCfg.self_every)),
        **_widths(found, SmolVlaCfg),
    )


def pi0_sizes(found: LeRobotDir) -> Pi0Cfg:
    """The network's sizes by the names of its variants.

    Raises:
        DataError: variants that are not known.
    """
    if found.config.get("empty_cameras", 0):
        raise DataError(f"{found.path}/config.json: empty_cameras is {found.config['empty_cameras']}: expected 0")
    chunk = require(found.path, found.config, "chunk_size", int)
    return pi0_variant(found.path, found.config, chunk=chunk, **_widths(found, Pi0Cfg))


def pi0_variant(path: Path, config: Mapping[str, Any], **changes: Any) -> Pi0Cfg:
    """The sizes that a config's `paligemma_variant` and `action_expert_variant` stand for, with these changes.

    Raises:
        DataError: variants that are not known.
    """
    names = tuple(str(config.get(f"{part}_variant")) for part in ("paligemma", "action_expert"))
    base = PI0_SIZES.get((names[0], names[1]))
    if base is None:
        known = "; ".join(" and ".join(pair) for pair in PI0_SIZES)
        raise DataError(f"{path}/config.json: variants are {' and '.join(names)}: expected {known}")
    return replace(base, **changes)


def _widths(found: LeRobotDir, defaults: type[SmolVlaCfg] | type[Pi0Cfg]) -> dict[str, Any]:
    config = found.config
    return {
        "state": int(config.get("max_state_dim", defaults.state)),
        "action": int(config.get("max_action_dim", defaults.action)),
        "min_period": float(config.get("min_period", defaults.min_period)),
        "max_period": float(config.get("max_period", defaults.max_period)),
    }


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
    vectors = [key for key, spec in observation_spec.items() if len(spec.shape) == 1 and not spec.words]
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


def _steps(path: Path, name: str) -> dict[str, dict[str, Any]]:
    """A processor's steps by name."""
    out: dict[str, dict[str, Any]] = {}
    for step in require(path / name, read_json(path, name), "steps", list):
        said = str(step.get("registry_name", step.get("class")))
        if said not in STEPS[name]:
            raise DataError(f"{path}/{name}: {unknown('step', said, STEPS[name])}")
        out[said] = step
    return out


def _affine(
    path: Path, steps: Mapping[str, Mapping[str, Any]], step: str, key: str, mode: str, feature: Mapping[str, Any]
) -> Affine:
    """From a feature's units to the network's, by the statistics beside a processor."""
    name = ACTION if key == LABEL else key
    width = int(feature["shape"][0])
    if mode == "IDENTITY":
        return Affine(name, (1.0,) * width, (0.0,) * width)
    if step not in steps:
        raise DataError(f"{path}: no step {step!r}: expected one for the {mode} of {key}")
    said = steps[step]
    kept = str(feature.get("type"))
    if said.get("config", {}).get("norm_map", {}).get(kept) != mode:
        found = said.get("config", {}).get("norm_map", {}).get(kept)
        raise DataError(f"{path}: {step} normalises {kept} by {found!r}: expected {mode!r}, as config.json says")
    stats = read_tensors(path / str(said.get("state_file")))
    eps = float(said.get("config", {}).get("eps", 1e-8))
    return from_stats(
        name,
        {k.removeprefix(f"{key}."): x for k, x in stats.items() if k.startswith(f"{key}.")},
        mode,
        width,
        eps,
        f"{path}: statistics of {key}",
    )


RANGES = {"MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90")}


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
