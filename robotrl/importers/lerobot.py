"""Importer of lerobot's published SmolVLA and pi0 directories; reads them strictly.

A directory has `config.json`, one `model.safetensors`, and `policy_preprocessor.json` and `policy_postprocessor.json`
with a file of statistics each. The vision-language model's config and tokenizer, which lerobot downloads by name, are
read from another directory. `lerobot_steps` reads the processors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from robotrl.errors import DataError, unknown
from robotrl.importers.fields import fixed, mapped, positive, text, whole, wrong
from robotrl.importers.files import check_merged, read_json, read_tensors
from robotrl.importers.fitting import camera_order, load_into, renamed, tokenizer_of, transforms_on
from robotrl.importers.lerobot_steps import LABEL, STATE, features, read_units
from robotrl.importers.pi0 import BEGIN, from_openpi, variant
from robotrl.policies.vla.networks.pi0 import Pi0Cfg
from robotrl.policies.vla.networks.smolvla import SmolVlaCfg
from robotrl.policies.vla.pretrained_flow import Pi0Policy, PretrainedFlow, PretrainedFlowCfg, SmolVlaPolicy
from robotrl.spec import Spec
from robotrl.transforms import Affine

POLICIES: dict[str, type[PretrainedFlow]] = {"smolvla": SmolVlaPolicy, "pi0": Pi0Policy}
"""Policy classes by the config's `type`."""
FIXED: dict[str, dict[str, Any]] = {
    "smolvla": {
        "attention_mode": "cross_attn",
        "add_image_special_tokens": False,
        "adapt_to_pi_aloha": False,
        "use_delta_joint_actions_aloha": False,
        "use_peft": False,
        "n_obs_steps": 1,
    },
    "pi0": {
        "adapt_to_pi_aloha": False,
        "use_delta_joint_actions_aloha": False,
        "use_peft": False,
        "n_obs_steps": 1,
    },
}
"""Settings with only one supported value."""
FAMILIES = ("smolvlm", "idefics3")
"""`model_type` of SmolVLM2 and of SmolVLM."""
TEXT = {"model_type": "llama", "hidden_act": "silu"}
VISION = {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "num_channels": 3}
"""Settings of the model's two parts with only one supported value."""


class LeRobotDir(NamedTuple):
    """Contents of a directory, without the weights."""

    path: Path
    kind: str
    config: dict[str, Any]
    cameras: tuple[str, ...]
    """Image features, in the network's order."""
    state: Affine
    """Normalization of measured states."""
    action: Affine
    """Un-normalization of actions."""


def read_directory(path: str | Path) -> LeRobotDir:
    """Read a directory, without the weights.

    Raises:
        DataError: a file is missing, cannot be read, or contradicts another file.
    """
    path = Path(path)
    check_merged(path)
    config = read_json(path, "config.json")
    where = f"{path}/config.json"
    kind = text(where, config, "type")
    if kind not in POLICIES:
        raise DataError(f"{where}: {unknown('type', kind, POLICIES)}")
    fixed(where, config, FIXED[kind])
    inputs, outputs = (features(where, config, name) for name in ("input_features", "output_features"))
    cameras = tuple(key for key, feature in inputs.items() if feature.kind == "VISUAL")
    if not cameras or STATE not in inputs or set(outputs) != {LABEL}:
        raise DataError(
            f"{where}: features are {', '.join([*inputs, *outputs])}: expected pictures, {STATE} and {LABEL}"
        )
    every = inputs | outputs
    for key, wanted in ((STATE, "STATE"), (LABEL, "ACTION")):
        if every[key].kind != wanted or len(every[key].shape) != 1:
            raise DataError(
                f"{where}: {key} is {every[key].kind} {every[key].shape}: expected {wanted} of one dimension"
            )
    return LeRobotDir(path, kind, config, cameras, *read_units(path, kind, config, every))


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
    """Load a directory's policy for the observations and actions of a sim.

    The policy is unverified: only a comparison with labeled actions of its dataset shows that its weights are right.

    Args:
        path: the directory.
        observation_spec: the sim's spec: images, an instruction, and one vector as wide as the policy's state.
        action_spec: the sim's action, with the width and the units of the policy's actions.
        vlm: directory of the vision-language model that it was trained from: its `tokenizer.json`, and for SmolVLA its
            `config.json`.
        cameras: from the policy's image features, e.g. "observation.images.top", to the sim's images; "" for a missing
            camera. Optional if there is one of each.
        horizon: number of a chunk's actions that are executed; the default is the config's `n_action_steps`.
        dtype: dtype of the weights.

    Raises:
        DataError: the directory's files contradict each other or do not match the architecture.
        ConfigError: the policy does not match the sim: cameras, state, action, words.
        CapabilityError: the sim has no image or no instruction.
    """
    found = read_directory(path)
    config, vlm, where = found.config, Path(vlm), f"{found.path}/config.json"
    small = found.kind == "smolvla"
    net: SmolVlaCfg | Pi0Cfg = smolvla_sizes(found, vlm) if small else pi0_sizes(found)
    chunk = whole(where, config, "chunk_size")
    cfg = PretrainedFlowCfg(
        net=net,
        tokenizer=tokenizer_of(vlm, net.vocabulary, None if small else BEGIN),
        chunk=chunk,
        horizon=whole(where, config, "n_action_steps", chunk) if horizon is None else horizon,
        denoising_steps=whole(where, config, "num_steps" if small else "num_inference_steps", 10),
        cameras=camera_order(found.cameras, observation_spec, cameras),
    )
    transforms = transforms_on(str(found.path), observation_spec, action_spec, found.state, found.action)
    policy = POLICIES[found.kind](dict(observation_spec), action_spec, transforms, cfg)
    stored = read_tensors(found.path / "model.safetensors")
    weights = renamed(stored, lambda name: name.removeprefix("model."), str(found.path))
    if not small:
        weights = from_openpi(weights, str(found.path))
    load_into(policy, weights, str(found.path), dtype)
    return policy


def smolvla_sizes(found: LeRobotDir, vlm: Path) -> SmolVlaCfg:
    """Sizes of SmolVLA's network, from the policy's config and the vision-language model's.

    Raises:
        DataError: sizes are missing, or a setting is not supported.
    """
    config, where, whose = found.config, f"{found.path}/config.json", f"{vlm}/config.json"
    said = read_json(vlm, "config.json")
    if (family := text(whose, said, "model_type", FAMILIES[0])) not in FAMILIES:
        raise wrong(whose, "model_type", family, " or ".join(FAMILIES))
    # in transformers' configs null means the default
    text_said, vision = (
        {name: x for name, x in mapped(whose, said, part).items() if x is not None}
        for part in ("text_config", "vision_config")
    )
    in_text, in_vision = f"{whose}: text_config", f"{whose}: vision_config"
    fixed(in_text, text_said, TEXT)
    fixed(in_vision, vision, VISION)
    side = whole(in_vision, vision, "image_size", SmolVlaCfg.image)
    _check_pixels(where, config, "resize_imgs_with_padding", side, SmolVlaCfg.image)
    layers = whole(where, config, "num_vlm_layers", SmolVlaCfg.layers, least=None)
    expert = whole(where, config, "num_expert_layers", -1, least=None)
    if expert > 0 and expert != layers:
        raise wrong(where, "num_expert_layers", expert, f"{layers}, num_vlm_layers")
    fixed(where, config, {"empty_cameras": 0})
    width, heads = (whole(in_text, text_said, name) for name in ("hidden_size", "num_attention_heads"))
    cfg = SmolVlaCfg(
        width=width,
        layers=layers if layers > 0 else whole(in_text, text_said, "num_hidden_layers"),
        heads=heads,
        kv_heads=whole(in_text, text_said, "num_key_value_heads", heads),
        head_width=whole(in_text, text_said, "head_dim", max(1, width // heads)),
        mlp=whole(in_text, text_said, "intermediate_size"),
        vocabulary=whole(in_text, text_said, "vocab_size"),
        norm_eps=positive(in_text, text_said, "rms_norm_eps", SmolVlaCfg.norm_eps),
        vision_width=whole(in_vision, vision, "hidden_size"),
        vision_layers=whole(in_vision, vision, "num_hidden_layers", SmolVlaCfg.vision_layers),
        vision_heads=whole(in_vision, vision, "num_attention_heads"),
        vision_mlp=whole(in_vision, vision, "intermediate_size", SmolVlaCfg.vision_mlp),
        patch=whole(in_vision, vision, "patch_size"),
        image=side,
        shuffle=whole(whose, said, "scale_factor"),
        expert_share=positive(where, config, "expert_width_multiplier", SmolVlaCfg.expert_share),
        self_every=whole(where, config, "self_attn_every_n_layers", SmolVlaCfg.self_every),
        **_widths(found, SmolVlaCfg),
    )
    for name, wide, parts in (
        (f"{in_text}: hidden_size", cfg.width, heads),
        (f"{in_vision}: hidden_size", cfg.vision_width, cfg.vision_heads),
        (f"{where}: the expert's width", cfg.expert_width, heads),
    ):
        if wide % parts:
            raise DataError(f"{name} is {wide}: expected a multiple of {parts}, its heads")
    return cfg


def pi0_sizes(found: LeRobotDir) -> Pi0Cfg:
    """Sizes of pi0's network, by the names of its variants.

    Raises:
        DataError: unknown variants.
    """
    where = f"{found.path}/config.json"
    fixed(where, found.config, {"empty_cameras": 0})
    chunk = whole(where, found.config, "chunk_size")
    net = variant(found.path, found.config, chunk=chunk, **_widths(found, Pi0Cfg))
    _check_pixels(where, found.config, "image_resolution", net.image, net.image)
    return net


def _check_pixels(where: str, config: Mapping[str, Any], name: str, side: int, default: int) -> None:
    """Check that images are resized to the vision tower's size."""
    if (pixels := config.get(name, [default, default])) != [side, side]:
        raise wrong(where, name, pixels, str([side, side]))


def _widths(found: LeRobotDir, defaults: type[SmolVlaCfg] | type[Pi0Cfg]) -> dict[str, Any]:
    config, where = found.config, f"{found.path}/config.json"
    return {
        "state": whole(where, config, "max_state_dim", defaults.state),
        "action": whole(where, config, "max_action_dim", defaults.action),
        "min_period": positive(where, config, "min_period", defaults.min_period),
        "max_period": positive(where, config, "max_period", defaults.max_period),
    }
