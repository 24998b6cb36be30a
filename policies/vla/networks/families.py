"""Vision-language models of `transformers` that can say actions: how each takes a picture, and where it stands.

What a family does otherwise than a Llama behind a vision tower is here and nowhere else. That a model computes through
it what it computes by itself is looked at when one is imported (`robotrl.importers.vlm.directory`).
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
    """How one kind of model is used."""

    see: Callable[[Any, Tensor], Tensor]
    """From the model without its head and pixels (B, 3, S, S), normalised, to embeddings (B, P, D)."""
    own: Callable[[Any, Tensor, Tensor], dict[str, Tensor]]
    """Pixels, and which tokens (B, T) stand for them, as arguments of the model's own forward."""
    template: str
    """The prompt around {picture} and {task}."""
    specials: bool = True
    """Whether the tokenizer adds its own beginning to the prompt."""
    together: Together = "nothing"
    """Which tokens before the actions see each other both ways; the others see those before them."""
    multiple: Callable[[Any], int] | None = None
    """Sides are multiples of so many pixels, by the config, where it does not say how many there are."""
    axes: Callable[[Tensor, Place], Tensor] | None = None
    """Positions (n, B, T) of what is there (B, T) around a picture, if there are several axes."""
    graph: bool = True
    """Whether what it does is the same for all pictures, so that it can be written down as a graph."""


# pixels


def _features(model: Any, pixels: Tensor) -> Tensor:
    """As most take them; some give the pictures one by one."""
    found = model.get_image_features(pixel_values=pixels).pooler_output
    return found if isinstance(found, Tensor) else torch.stack(list(found))


def _connected(model: Any, pixels: Tensor) -> Tensor:
    """Of models that take several pictures and leave out grey ones, on which shapes must not depend here."""
    side = pixels.shape[-1] // model.config.vision_config.patch_size
    there = torch.ones((len(pixels), side, side), dtype=torch.bool, device=pixels.device)
    return model.connector(model.vision_model(pixel_values=pixels, patch_attention_mask=there).last_hidden_state)


def _in_patches(model: Any, pixels: Tensor) -> Tensor:
    return torch.stack(list(model.get_image_features(**_patches(model, pixels)).pooler_output))


def _patches(model: Any, pixels: Tensor) -> dict[str, Tensor]:
    """Patches (B * h * w, values), those that become one token side by side; a still picture is seen twice in time."""
    vision = model.config.vision_config
    patch, merge, times = vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size
    batch, colours, height, width = pixels.shape
    down, across = height // patch, width // patch
    cut = pixels.reshape(batch, colours, down // merge, merge, patch, across // merge, merge, patch)
    cut = cut.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(batch * down * across, colours, 1, patch, patch)
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


def _in_time_and_plane(there: Tensor, at: Place) -> Tensor:
    """(3, B, T): a picture takes one moment; what follows comes behind its side (Wang et al. 2024, 2409.12191)."""
    count = at.end - at.start
    side = round(count**0.5)
    line = places(there)
    # n x n tokens take n places
    line = torch.cat([line[:, : at.end], line[:, at.end :] - count + side], dim=1)
    within = torch.arange(count, device=there.device)
    plane = torch.stack([torch.zeros_like(within), within // side, within % side]) + at.start
    axes = line.expand(3, -1, -1)
    inside = plane[:, None].expand(-1, len(there), -1)
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
"""By the config's `model_type`."""
