"""Network sizes from OpenVLA's `config.json` and `preprocessor_config.json`; unsupported settings are refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robotrl.errors import DataError, unknown
from robotrl.importers.fields import fixed, is_number, positive, whole, wrong
from robotrl.importers.files import read_json, require
from robotrl.policies.vla.networks.autoregressive import Decoding
from robotrl.policies.vla.networks.openvla import OpenVlaCfg, TextCfg
from robotrl.policies.vla.networks.vision import DINOV2_L, SIGLIP_SO400M, TowerCfg

TOWERS: dict[str, TowerCfg] = {
    "vit_large_patch14_reg4_dinov2.lvd142m": DINOV2_L,
    "vit_so400m_patch14_siglip_224": SIGLIP_SO400M,
}
"""Vision towers by the config's `timm_model_ids`."""
PIXELS = "preprocessor_config.json"
FIXED: dict[str, Any] = {"use_fused_vision_backbone": True, "timm_override_act_layers": [None, None]}
FIXED_TEXT: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": TextCfg.stop,
}
"""Settings with only one supported value."""
NEAR = 2e-3
"""Tolerance of image means and stds: published ones are rounded to bfloat16."""


def network(path: Path, config: Mapping[str, Any], decoding: Decoding, state: int) -> OpenVlaCfg:
    """Sizes of the network from its config.

    Raises:
        DataError: sizes are missing, or a setting is not supported.
    """
    where = f"{path}/config.json"
    if config.get("model_type") != "openvla":
        raise wrong(where, "model_type", config.get("model_type"), "'openvla'")
    towers = [_tower(where, name) for name in require(where, config, "timm_model_ids", list)]
    if len(towers) != 2:
        raise DataError(f"{where}: timm_model_ids has {len(towers)} entries: expected 2, a fused backbone")
    sizes = [tower.image for tower in towers]
    fixed(where, config, {**FIXED, "image_sizes": sizes})
    _check_pixels(path, towers)
    bins = whole(where, config, "n_action_bins", OpenVlaCfg.bins)
    text = _text(f"{where}: text_config", require(where, config, "text_config", dict), config)
    return OpenVlaCfg((towers[0], towers[1]), text, bins, decoding, state)


def _text(where: str, said: Mapping[str, Any], config: Mapping[str, Any]) -> TextCfg:
    fixed(where, said, FIXED_TEXT)
    width, heads = (
        whole(where, said, name, default)
        for name, default in (("hidden_size", TextCfg.width), ("num_attention_heads", TextCfg.heads))
    )
    kv_heads = whole(where, said, "num_key_value_heads", heads)
    if width % (2 * heads):
        raise wrong(where, "num_attention_heads", heads, f"one that divides hidden_size, {width}, to even widths")
    if heads % kv_heads:
        raise wrong(where, "num_key_value_heads", kv_heads, f"one that divides num_attention_heads, {heads}")
    fixed(where, {k: x for k, x in said.items() if x is not None}, {"head_dim": width // heads})
    return TextCfg(
        width=width,
        depth=whole(where, said, "num_hidden_layers", TextCfg.depth),
        heads=heads,
        kv_heads=kv_heads,
        mlp=whole(where, said, "intermediate_size", TextCfg.mlp),
        vocabulary=whole(where, said, "vocab_size", TextCfg.vocabulary),
        padding=whole(where.partition(": ")[0], config, "pad_to_multiple_of", TextCfg.padding),
        positions=whole(where, said, "max_position_embeddings", TextCfg.positions),
        norm_eps=positive(where, said, "rms_norm_eps", TextCfg.norm_eps),
        rope_theta=_theta(where, said),
    )


def _theta(where: str, said: Mapping[str, Any]) -> float:
    """Base of the rotary positions: in `rope_parameters` since transformers 5, else a field of its own."""
    found = [positive(where, said, "rope_theta", TextCfg.rope_theta)] if "rope_theta" in said else []
    for name in ("rope_scaling", "rope_parameters"):
        if said.get(name) is None:
            continue
        entry: dict[str, Any] = require(where, said, name, dict)
        kinds = [entry.get(kind, "default") for kind in ("rope_type", "type")]
        if kinds != ["default", "default"] or entry.keys() - {"rope_type", "type", "rope_theta"}:
            raise wrong(where, name, entry, "rope_type 'default' alone, with or without rope_theta")
        if "rope_theta" in entry:
            found.append(positive(f"{where}: {name}", entry, "rope_theta", TextCfg.rope_theta))
    if len(set(found)) > 1:
        raise wrong(where, "rope_theta", found, "the same in rope_theta, rope_scaling and rope_parameters")
    return found[0] if found else TextCfg.rope_theta


def _tower(where: str, name: object) -> TowerCfg:
    if not isinstance(name, str) or name not in TOWERS:
        raise DataError(f"{where}: {unknown('timm_model_ids', str(name), TOWERS)}")
    return TOWERS[name]


def _check_pixels(path: Path, towers: list[TowerCfg]) -> None:
    """Compare the preprocessor's image sizes, means and stds with those of the towers, in their order."""
    where, said = f"{path}/{PIXELS}", read_json(path, PIXELS)
    fixed(where, said, {"use_fused_vision_backbone": True, "input_sizes": [[3, x.image, x.image] for x in towers]})
    means, stds = ([list(getattr(tower, name)) for tower in towers] for name in ("mean", "std"))
    _check_rows(where, "means", said.get("means"), means)
    _check_rows(where, "stds", said.get("stds"), stds)
    if said.get("tvf_normalize_params") is None:
        return
    again: list[Any] = require(where, said, "tvf_normalize_params", list)
    for name, wanted in (("mean", means), ("std", stds)):
        rows = [row.get(name) if isinstance(row, dict) else row for row in again]
        _check_rows(where, f"{name} of tvf_normalize_params", rows, wanted)


def _check_rows(where: str, name: str, found: Any, wanted: list[list[float]]) -> None:
    """Check rows of three numbers, one for each tower."""
    rows: list[Any] = found if isinstance(found, list) else []
    whole_rows = [isinstance(row, list) and len(row) == 3 and all(map(is_number, row)) for row in rows]
    if whole_rows != [True, True] or not np.allclose(found, wanted, atol=NEAR):
        raise wrong(where, name, found, f"{wanted}, one row for each tower in its order")
