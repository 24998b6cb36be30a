"""Directories of lerobot's SmolVLA and pi0 as they are published, read strictly.

A directory has `config.json`, one `model.safetensors`, and `policy_preprocessor.json` and `policy_postprocessor.json`
with a file of statistics each. What it does not have is the vision-language model's config and tokenizer, which lerobot
fetches by name; they are read from a directory of their own. A processor's step that is not known here is refused,
since what it does would be missing; so are statistics that are not there, which lerobot passes over in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from robotrl.errors import DataError, unknown
from robotrl.importers.files import read_json, read_tensors, require
from robotrl.importers.fitting import camera_order, from_stats, load_into, tokenizer_of, transforms_on
from robotrl.importers.pi0 import from_openpi, variant
from robotrl.policies.base import ACTION
from robotrl.policies.vla.pi0 import Pi0Cfg
from robotrl.policies.vla.pretrained_flow import Pi0Policy, PretrainedFlow, PretrainedFlowCfg, SmolVlaPolicy
from robotrl.policies.vla.smolvla import SmolVlaCfg
from robotrl.spec import Spec
from robotrl.transforms import Affine, inverse

POLICIES: dict[str, type[PretrainedFlow]] = {"smolvla": SmolVlaPolicy, "pi0": Pi0Policy}
"""By the config's `type`."""
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
    return variant(found.path, found.config, chunk=chunk, **_widths(found, Pi0Cfg))


def _widths(found: LeRobotDir, defaults: type[SmolVlaCfg] | type[Pi0Cfg]) -> dict[str, Any]:
    config = found.config
    return {
        "state": int(config.get("max_state_dim", defaults.state)),
        "action": int(config.get("max_action_dim", defaults.action)),
        "min_period": float(config.get("min_period", defaults.min_period)),
        "max_period": float(config.get("max_period", defaults.max_period)),
    }


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
