"""Supported families of vision-language models of `transformers`: image inputs, prompts, masks and positions of each.

All differences between the families are in this module. On import, a model's output through these functions is compared
with that of its own forward pass (`robotrl.importers.vlm.directory`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from robotrl.policies.vla.networks.autoregressive import Place, places

Together = Literal["nothing", "picture", "prefix"]
PICTURE = "{picture}"
ASKED = "What action should the robot take to {task}?"


class VlmFamily(NamedTuple):
    """Functions and settings of a model family."""

    encode_images: Callable[[Any, Tensor], Tensor]
    """Image embeddings (B, P, D) from the model without its head and normalised pixels (B, 3, S, S)."""
    own: Callable[[Any, Tensor, Tensor], dict[str, Tensor]]
    """Arguments of the model's own forward pass for pixels and the mask (B, T) of image tokens."""
    template: str
    """Prompt with {picture} and {task}."""
    specials: bool = True
    """The tokenizer adds its own begin token to the prompt."""
    together: Together = "nothing"
    """Tokens before the actions with bidirectional attention; the others attend to those before them."""
    multiple: Callable[[Any], int] | None = None
    """For models without a fixed image size: side lengths are multiples of this many pixels, from the config."""
    axes: Callable[[Tensor, Place], Tensor] | None = None
    """Positions (n, B, T) along several axes, from the mask of tokens (B, T) and the image's range."""
    graph: bool = True
    """The forward pass does not depend on the data, so that it can be exported as a graph."""


# pixels


def _features(model: Any, pixels: Tensor) -> Tensor:
    """Image embeddings of most models; some return a list with one entry per image."""
    found = model.get_image_features(pixel_values=pixels).pooler_output
    return found if isinstance(found, Tensor) else torch.stack(list(found))


def _connected(model: Any, pixels: Tensor) -> Tensor:
    """Image embeddings without the model's own removal of blank images, which makes shapes depend on the data."""
    side = pixels.shape[-1] // model.config.vision_config.patch_size
    token_mask = torch.ones((len(pixels), side, side), dtype=torch.bool, device=pixels.device)
    return model.connector(model.vision_model(pixel_values=pixels, patch_attention_mask=token_mask).last_hidden_state)


def _in_patches(model: Any, pixels: Tensor) -> Tensor:
    return torch.stack(list(model.get_image_features(**_patches(model, pixels)).pooler_output))


def _patches(model: Any, pixels: Tensor) -> dict[str, Tensor]:
    """Patches (B * h * w, values), grouped by merged token; a still image is repeated along the time axis."""
    vision = model.config.vision_config
    patch, merge, times = vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size
    batch, colors, height, width = pixels.shape
    down, across = height // patch, width // patch
    cut = pixels.reshape(batch, colors, down // merge, merge, patch, across // merge, merge, patch)
    cut = cut.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(batch * down * across, colors, 1, patch, patch)
    grid = torch.tensor([[1, down, across]] * batch, device=pixels.device)
    return {"pixel_values": cut.expand(-1, -1, times, -1, -1).flatten(1), "image_grid_thw": grid}


def _whole_tokens(config: Any) -> int:
    return config.vision_config.patch_size * config.vision_config.spatial_merge_size


# arguments of a model's own forward


def _plain(_: Any, pixels: Tensor, __: Tensor) -> dict[str, Tensor]:
    return {"pixel_values": pixels}


def _all_one_kind(_: Any, pixels: Tensor, picture: Tensor) -> dict[str, Tensor]:
    return {"pixel_values": pixels, "token_type_ids": torch.zeros_like(picture, dtype=torch.int64)}


def _two_kinds(_: Any, pixels: Tensor, picture: Tensor) -> dict[str, Tensor]:
    return {"pixel_values": pixels, "token_type_ids": picture.long()}


def _several(_: Any, pixels: Tensor, __: Tensor) -> dict[str, Tensor]:
    return {"pixel_values": pixels[:, None]}


def _patched(model: Any, pixels: Tensor, picture: Tensor) -> dict[str, Tensor]:
    return {**_patches(model, pixels), "mm_token_type_ids": picture.long()}


# positions


def _in_time_and_plane(token_mask: Tensor, at: Place) -> Tensor:
    """Positions (3, B, T) in time, row and column (M-RoPE, Wang et al. 2024, 2409.12191); an image has one time."""
    count = at.end - at.start
    side = round(count**0.5)
    line = places(token_mask)
    # n x n image tokens advance the positions of later tokens by n
    line = torch.cat([line[:, : at.end], line[:, at.end :] - count + side], dim=1)
    within = torch.arange(count, device=token_mask.device)
    plane = torch.stack([torch.zeros_like(within), within // side, within % side]) + at.start
    axes = line.expand(3, -1, -1)
    inside = plane[:, None].expand(-1, len(token_mask), -1)
    return torch.cat([axes[..., : at.start], inside, axes[..., at.end :]], dim=2)


LLAVA = VlmFamily(_features, _plain, f"USER: {PICTURE}\n{ASKED} ASSISTANT:")
PALIGEMMA = VlmFamily(_features, _all_one_kind, f"{PICTURE}<bos>{{task}}\n", specials=False, together="prefix")
GEMMA3 = VlmFamily(
    _features,
    _two_kinds,
    f"<start_of_turn>user\n<start_of_image>{PICTURE}<end_of_image>{ASKED}<end_of_turn>\n<start_of_turn>model\n",
    together="picture",
)
IDEFICS = VlmFamily(
    _connected,
    _several,
    f"<|im_start|>User:<fake_token_around_image><global-img>{PICTURE}<fake_token_around_image>{ASKED}"
    "<end_of_utterance>\nAssistant:",
)
INTERNVL = VlmFamily(
    _features,
    _plain,
    f"<|im_start|>user\n<img>{PICTURE}</img>\n{ASKED}<|im_end|>\n<|im_start|>assistant\n",
)
QWEN = VlmFamily(
    _in_patches,
    _patched,
    f"<|im_start|>user\n<|vision_start|>{PICTURE}<|vision_end|>{ASKED}<|im_end|>\n<|im_start|>assistant\n",
    multiple=_whole_tokens,
    axes=_in_time_and_plane,
    graph=False,
)
FAMILIES: dict[str, VlmFamily] = {
    "gemma3": GEMMA3,
    "idefics3": IDEFICS,
    "internvl": INTERNVL,
    "llava": LLAVA,
    "paligemma": PALIGEMMA,
    "qwen2_5_vl": QWEN,
    "qwen2_vl": QWEN,
    "smolvlm": IDEFICS,
}
"""Families by the config's `model_type`."""
