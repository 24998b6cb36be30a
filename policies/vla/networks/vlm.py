"""Autoregressive VLA on a vision-language model of `transformers`, of any family in `families`.

As in OpenVLA (Kim et al. 2024, 2406.09246), the last ids of the vocabulary are the action tokens. They are decoded one
at a time or, as in OpenVLA-OFT, all of a chunk at once. The model keeps its own parameter names, under `vlm.`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageTextToText

from robotrl.errors import ConfigError, check_count, unknown
from robotrl.policies.vla.networks.autoregressive import (
    NOWHERE,
    AutoregressiveVla,
    Decoding,
    Place,
    Prefix,
    attention,
    places,
)
from robotrl.policies.vla.networks.families import FAMILIES, VlmFamily
from robotrl.policies.vla.networks.openvla import StateProjector
from robotrl.policies.vla.resize import resize_with_pad


@dataclass(frozen=True)
class VlmCfg:
    """Config of a `Vlm`."""

    config: Mapping[str, Any]
    """The contents of `config.json`."""
    image: int
    """Side of an image, in pixels."""
    mean: tuple[float, float, float]
    """Mean of each color, subtracted from pixels in [0, 1] ..."""
    std: tuple[float, float, float]
    """... and std, by which the difference is divided."""
    end: int
    """One past the last action id: the size of the vocabulary without added tokens."""
    stop: int
    """Id of the end-of-text token."""
    bins: int = 256
    decoding: Decoding = "autoregressive"
    state: int = 0
    """Width of the measured state after the image; 0 for none."""
    queries: int = 0
    """See `OpenVlaCfg.queries`."""


class Vlm(AutoregressiveVla):
    """A vision-language model of `transformers` that predicts action tokens.

    Args:
        cfg: config of model, image and decoding.
        before: tokens of the prompt before the image.

    Raises:
        ConfigError: an unknown family, an unsupported image size, or inconsistent sizes.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, cfg: VlmCfg, before: int) -> None:
        made = read_config(cfg.config)
        text = made.get_text_config()
        super().__init__(cfg, int(text.hidden_size), cfg.end)
        check_vision_layer(made)
        check_image(made, cfg.image)
        self.cfg, self.family, self._before = cfg, family_of(made), before
        self.vlm: Any = AutoModelForImageTextToText.from_config(made)
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(getattr(cfg, name))[:, None, None], persistent=False)
        self._cap: float | None = getattr(text, "final_logit_softcapping", None)
        self.proprio_projector = StateProjector(cfg.state, self.width) if cfg.state else None
        self.add_queries()

    @property
    def stack(self) -> Any:
        """See `AutoregressiveVla`."""
        return stack_of(self.vlm)

    @property
    def stop(self) -> int:
        """See `AutoregressiveVla`."""
        return self.cfg.stop

    @property
    def patches(self) -> int:
        """See `AutoregressiveVla`."""
        blank = torch.zeros((1, self.cfg.image, self.cfg.image, 3), dtype=torch.uint8, device=self.mean.device)
        with torch.no_grad():
            return self.encode_images(blank).shape[1]

    def embed(self, ids: Tensor) -> Tensor:
        """See `AutoregressiveVla`."""
        return self.vlm.get_input_embeddings()(ids)

    def words(self) -> Tensor:
        """See `AutoregressiveVla`."""
        return self.vlm.get_output_embeddings().weight

    def pixels(self, pictures: Tensor) -> Tensor:
        """Resized and normalised pixels (B, 3, S, S) of images (B, h, w, 3), 0 to 255; see `resize_with_pad`."""
        pictures = resize_with_pad(pictures, self.cfg.image, centered=True)
        shares = pictures.permute(0, 3, 1, 2).to(self.mean.dtype) / 255
        return (shares - self.mean) / self.std

    def encode_images(self, pictures: Tensor) -> Tensor:
        """Image embeddings (B, P, D) of images (B, h, w, 3), 0 to 255."""
        return self.family.encode_images(self.vlm.model, self.pixels(pictures))

    def project(self, features: Tensor) -> Tensor:
        """Image features unchanged: they are embeddings already."""
        return features

    def vision_encoder(self) -> nn.Module:
        """A copy of the vision encoder."""
        return VlmVision(self)

    def prefix(self, patches: Tensor, ids: Tensor, token_mask: Tensor, state: Tensor | None = None) -> Prefix:
        """See `AutoregressiveVla`; the image replaces the prompt's image token."""
        at, words = self._before, self.embed(ids)
        middle = [patches.to(words.dtype)]
        if state is not None and self.proprio_projector is not None:
            middle.append(self.proprio_projector(state)[:, None])
        shown = torch.cat(middle, dim=1)
        always = torch.ones(shown.shape[:2], dtype=torch.bool, device=ids.device)
        return Prefix(
            torch.cat([words[:, :at], shown, words[:, at + 1 :]], dim=1),
            torch.cat([token_mask[:, :at], always, token_mask[:, at + 1 :]], dim=1),
            Place(at, at + patches.shape[1]),
        )

    def places(self, token_mask: Tensor, picture: Place) -> Tensor:
        """See `AutoregressiveVla`."""
        return places(token_mask) if self.family.axes is None else self.family.axes(token_mask, picture)

    def mask(self, token_mask: Tensor, dtype: torch.dtype, causal: bool, prefix: Prefix) -> Tensor:
        """See `AutoregressiveVla`."""
        together = {"nothing": NOWHERE, "picture": prefix.picture, "prefix": Place(0, prefix.token_mask.shape[1])}
        return attention(token_mask, dtype, causal, together[self.family.together])

    def head(self, hidden: Tensor) -> Tensor:
        """See `AutoregressiveVla`; with the soft cap on logits that some models have."""
        logits = super().head(hidden)
        return logits if self._cap is None else self._cap * torch.tanh(logits / self._cap)


class VlmVision(nn.Module):
    """The vision encoder of a `Vlm` alone.

    Args:
        net: the network whose vision encoder is copied.
    """

    def __init__(self, net: Vlm) -> None:
        super().__init__()
        # neither the language model nor its head is copied
        reads = {id(part): nn.Identity() for part in (net.stack, net.vlm.get_output_embeddings())}
        self.net = copy.deepcopy(net, reads)

    def forward(self, pictures: Tensor) -> Tensor:
        """Image embeddings (B, P, D) of images (B, h, w, 3), 0 to 255."""
        return self.net.encode_images(pictures)


def stack_of(vlm: Any) -> Any:
    """The language model's layers, from embeddings to hidden states."""
    inner = vlm.model
    return inner.text_model if hasattr(inner, "text_model") else inner.language_model


def read_config(config: Mapping[str, Any]) -> Any:
    """Build the config of `transformers` from the contents of a `config.json`.

    Raises:
        ConfigError: an unknown family, or invalid fields.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise unknown("model_type", str(kind), FAMILIES)
    rest = {key: value for key, value in config.items() if key != "model_type"}
    try:
        return AutoConfig.for_model(kind, **copy.deepcopy(rest))
    # the families' own checks of fields raise errors without a common class
    except Exception as error:
        raise ConfigError(f"config of a {kind}: {' '.join(str(error).split())[:300]}") from error


def family_of(config: Any) -> VlmFamily:
    """Family of a config."""
    return FAMILIES[config.model_type]


def image_of(config: Any) -> int | None:
    """Side of an image in pixels from the config, or None if any multiple is allowed."""
    if family_of(config).multiple is not None:
        return None
    size = config.vision_config.image_size
    return int(size if isinstance(size, int) else size[0])


def check_vision_layer(config: Any) -> None:
    """Check that the vision encoder has the layer that the config selects.

    Raises:
        ConfigError: `vision_feature_layer` is none of its hidden states, counted from either end.
    """
    wanted = getattr(config, "vision_feature_layer", None)
    depth = getattr(config.vision_config, "num_hidden_layers", None)
    if wanted is not None and isinstance(depth, int):
        for layer in wanted if isinstance(wanted, list | tuple) else [wanted]:
            check_count("vision_feature_layer", layer, -depth - 1, depth)


def check_image(config: Any, image: int) -> None:
    """Check that a model supports an image size.

    Raises:
        ConfigError: the side differs from the config's, or is no multiple of the pixels per token.
    """
    fixed, multiple = image_of(config), family_of(config).multiple
    if fixed is not None and image != fixed:
        raise ConfigError(f"image is {image}: expected {fixed}, the side of the pictures of {config.model_type}")
    if multiple is not None and image % multiple(config):
        least = multiple(config)
        raise ConfigError(f"image is {image}: expected a multiple of {least}, e.g. {-(-image // least) * least}")
