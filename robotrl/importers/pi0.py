"""Shared parts of the pi0 importers: sizes by variant, and openpi's parameter names (also used by lerobot)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robotrl.errors import DataError
from robotrl.importers.fitting import renamed
from robotrl.policies.vla.networks.pi0 import Pi0Cfg

SIZES = {("gemma_2b", "gemma_300m"): Pi0Cfg()}
"""Sizes by the config's variants of the language model and of the expert."""
PREFIXES = {
    "paligemma_with_expert.paligemma.model.vision_tower.vision_model.": "model.vlm.vision_tower.",
    "paligemma_with_expert.paligemma.model.": "model.vlm.",
    "paligemma_with_expert.gemma_expert.model.": "model.dit.",
    "action_out_proj.": "action_out_proj.",
    "action_in_proj.": "embed_action_time.action_in_proj.",
    "action_time_mlp_in.": "embed_action_time.action_time_mlp_in.",
    "action_time_mlp_out.": "embed_action_time.action_time_mlp_out.",
    "state_proj.": "embed_action_time.state_proj.",
}
"""From openpi's name prefixes to those of `transformers`; the first match applies."""
HEAD = "paligemma_with_expert.paligemma.lm_head.weight"
"""Head tied to the embedding; safetensors stores one of the two."""
EMBEDDING = "model.vlm.language_model.embed_tokens.weight"
UNUSED = "paligemma_with_expert.gemma_expert.lm_head.weight"
"""Unused head: the expert predicts no words."""
BEGIN = "<bos>"
"""Token that the tokenizer adds before a prompt."""


def from_openpi(weights: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """Rename openpi's weights to the names of `transformers`' `PI0ForConditionalGeneration`.

    Args:
        weights: weights by openpi's names.
        where: their source, for errors.

    Raises:
        DataError: an unknown name, two names of one weight, or an embedding that differs from its tied head.
    """

    def ours(name: str) -> str:
        prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), None)
        if prefix is None:
            raise DataError(f"{where} has an unknown weight: {name}")
        return PREFIXES[prefix] + name.removeprefix(prefix)

    out = renamed({name: x for name, x in weights.items() if name not in (HEAD, UNUSED)}, ours, where)
    head = weights.get(HEAD)
    if head is not None and EMBEDDING in out and not torch.equal(head, out[EMBEDDING]):
        raise DataError(f"{where}: {HEAD} differs from the embedding: expected the same numbers, they are tied")
    if head is not None:
        out.setdefault(EMBEDDING, head)
    return out


def variant(path: Path, config: Mapping[str, Any], **changes: Any) -> Pi0Cfg:
    """Sizes for a config's `paligemma_variant` and `action_expert_variant`, with changed fields.

    Raises:
        DataError: unknown variants.
    """
    names = tuple(str(config.get(f"{part}_variant")) for part in ("paligemma", "action_expert"))
    base = SIZES.get((names[0], names[1]))
    if base is None:
        known = "; ".join(" and ".join(pair) for pair in SIZES)
        raise DataError(f"{path}/config.json: variants are {' and '.join(names)}: expected {known}")
    return replace(base, **changes)
