"""Action tokens on a vision-language model of `transformers`, of any family in `families`.

As OpenVLA does it with a Llama (Kim et al. 2024, 2406.09246): the last ids of the vocabulary mean actions, said one
after the other, or, as OpenVLA-OFT does it, all of a chunk at once. The model keeps its own parameter names, under
`vlm.`.
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
from robotrl.policies.vla.resize import fit


@dataclass(frozen=True)
class VlmCfg:
    """What a `Vlm` is made from, weights apart."""

    config: Mapping[str, Any]
    """The contents of `config.json`."""
    image: int
    """Pixels of a picture's side."""
    mean: tuple[float, float, float]
    """Pixels, as shares of 255, less this ..."""
    std: tuple[float, float, float]
    """... and over this are what it sees."""
    end: int
    """One past the last id of the vocabulary that may mean an action: its tokens without those added later."""
    stop: int
    """Id of the end of a text."""
    bins: int = 256
    decoding: Decoding = "autoregressive"
    state: int = 0
    """Width of the measured state that follows the picture; 0 for none."""
    queries: int = 0
    """See `OpenVlaCfg.queries`."""


class Vlm(AutoregressiveVla):
    """The network.

    Args:
        cfg: what it is made from.
        before: tokens of the prompt before the picture.

    Raises:
        ConfigError: an unknown family, pictures that it does not take, or sizes that do not fit each other.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, cfg: VlmCfg, before: int) -> None:
        made = read_config(cfg.config)
        text = made.get_text_config()
        super().__init__(cfg, int(text.hidden_size), cfg.end)
        check_eyes(made)
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
            return self.sight(blank).shape[1]

    def embed(self, ids: Tensor) -> Tensor:
        """See `AutoregressiveVla`."""
        return self.vlm.get_input_embeddings()(ids)

    def words(self) -> Tensor:
        """See `AutoregressiveVla`."""
        return self.vlm.get_output_embeddings().weight

    def pixels(self, pictures: Tensor) -> Tensor:
        """(B, 3, S, S), normalised, of pictures (B, h, w, 3), 0 to 255; see `fit`."""
        pictures = fit(pictures, self.cfg.image, centred=True)
        shares = pictures.permute(0, 3, 1, 2).to(self.mean.dtype) / 255
        return (shares - self.mean) / self.std

    def sight(self, pictures: Tensor) -> Tensor:
        """Embeddings (B, P, D) of pictures (B, h, w, 3), 0 to 255."""
        return self.family.see(self.vlm.model, self.pixels(pictures))

    def seen(self, sight: Tensor) -> Tensor:
        """What eyes made, as it is."""
        return sight

    def eye(self) -> nn.Module:
        """A copy of what sees."""
        return VlmVision(self)

    def prefix(self, patches: Tensor, ids: Tensor, there: Tensor, state: Tensor | None = None) -> Prefix:
        """See `AutoregressiveVla`; the picture takes the place of the prompt's one token for it."""
        at, words = self._before, self.embed(ids)
        middle = [patches.to(words.dtype)]
        if state is not None and self.proprio_projector is not None:
            middle.append(self.proprio_projector(state)[:, None])
        shown = torch.cat(middle, dim=1)
        always = torch.ones(shown.shape[:2], dtype=torch.bool, device=ids.device)
        return Prefix(
            torch.cat([words[:, :at], shown, words[:, at + 1 :]], dim=1),
            torch.cat([there[:, :at], always, there[:, at + 1 :]], dim=1),
            Place(at, at + patches.shape[1]),
        )

    def places(self, there: Tensor, picture: Place) -> Tensor:
        """See `AutoregressiveVla`."""
        return places(there) if self.family.axes is None else self.family.axes(there, picture)

    def mask(self, there: Tensor, dtype: torch.dtype, causal: bool, prefix: Prefix) -> Tensor:
        """See `AutoregressiveVla`."""
        together = {"nothing": NOWHERE, "picture": prefix.picture, "prefix": Place(0, prefix.there.shape[1])}
        return attention(there, dtype, causal, together[self.family.together])

    def head(self, hidden: Tensor) -> Tensor:
        """See `AutoregressiveVla`; some models bend large logits."""
        logits = super().head(hidden)
        return logits if self._cap is None else self._cap * torch.tanh(logits / self._cap)


class VlmVision(nn.Module):
    """What sees of a `Vlm`, apart from it.

    Args:
        net: of which this is a copy.
    """

    def __init__(self, net: Vlm) -> None:
        super().__init__()
        # neither what reads nor what speaks is copied
        reads = {id(part): nn.Identity() for part in (net.stack, net.vlm.get_output_embeddings())}
        self.net = copy.deepcopy(net, reads)

    def forward(self, pictures: Tensor) -> Tensor:
        """Embeddings (B, P, D) of pictures (B, h, w, 3), 0 to 255."""
        return self.net.sight(pictures)


def stack_of(vlm: Any) -> Any:
    """The language model inside, from embeddings to hidden states."""
    inner = vlm.model
    return inner.text_model if hasattr(inner, "text_model") else inner.language_model


def read_config(config: Mapping[str, Any]) -> Any:
    """The config of `transformers` that a `config.json` describes.

    Raises:
        ConfigError: an unknown family, or fields that it does not take.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise unknown("model_type", str(kind), FAMILIES)
    rest = {key: value for key, value in config.items() if key != "model_type"}
    try:
        return AutoConfig.for_model(kind, **copy.deepcopy(rest))
    # each family checks its fields by itself, and a field of a field again; what they raise has no class in common
    except Exception as error:
        raise ConfigError(f"config of a {kind}: {' '.join(str(error).split())[:300]}") from error


def family_of(config: Any) -> VlmFamily:
    """How a model of this config is used."""
    return FAMILIES[config.model_type]


def image_of(config: Any) -> int | None:
    """Pixels of a picture's side that a config says, or None where any multiple goes."""
    if family_of(config).multiple is not None:
        return None
    size = config.vision_config.image_size
    return int(size if isinstance(size, int) else size[0])


def check_eyes(config: Any) -> None:
    """Refuse eyes of which a layer is wanted that they do not have.

    Raises:
        ConfigError: `vision_feature_layer` is none of their hidden states, counted from either end.
    """
    wanted = getattr(config, "vision_feature_layer", None)
    depth = getattr(config.vision_config, "num_hidden_layers", None)
    if wanted is not None and isinstance(depth, int):
        for layer in wanted if isinstance(wanted, list | tuple) else [wanted]:
            check_count("vision_feature_layer", layer, -depth - 1, depth)


def check_image(config: Any, image: int) -> None:
    """Refuse pictures that a model does not take.

    Raises:
        ConfigError: another side than the config's, or no multiple of what one token sees.
    """
    fixed, multiple = image_of(config), family_of(config).multiple
    if fixed is not None and image != fixed:
        raise ConfigError(f"image is {image}: expected {fixed}, the side of the pictures of {config.model_type}")
    if multiple is not None and image % multiple(config):
        least = multiple(config)
        raise ConfigError(f"image is {image}: expected a multiple of {least}, e.g. {-(-image // least) * least}")
