"""Published pi0s: sizes by the names of their variants, and openpi's parameter names, which lerobot has too."""

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
"""By the config's variants of the language model and of the expert."""
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
"""The first that fits counts."""
HEAD = "paligemma_with_expert.paligemma.lm_head.weight"
"""The same tensor as the embedding; safetensors stores one of the two."""
EMBEDDING = "model.vlm.language_model.embed_tokens.weight"
UNUSED = "paligemma_with_expert.gemma_expert.lm_head.weight"
"""The expert says no words."""
BEGIN = "<bos>"
"""The token that its tokenizer puts before a prompt."""


def from_openpi(weights: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """Weights by the names of `transformers`' `PI0ForConditionalGeneration`.

    Args:
        weights: by openpi's names.
        where: whose they are, for errors.

    Raises:
        DataError: a name that is not openpi's, two of one weight, or an embedding that is not that of its head.
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
    """The sizes that a config's `paligemma_variant` and `action_expert_variant` stand for, with these changes.

    Raises:
        DataError: variants that are not known.
    """
    names = tuple(str(config.get(f"{part}_variant")) for part in ("paligemma", "action_expert"))
    base = SIZES.get((names[0], names[1]))
    if base is None:
        known = "; ".join(" and ".join(pair) for pair in SIZES)
        raise DataError(f"{path}/config.json: variants are {' and '.join(names)}: expected {known}")
    return replace(base, **changes)
