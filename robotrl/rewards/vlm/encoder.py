"""Image and text encoders of CLIP kind, from `open-clip-torch`.

A model is named in one of these ways:

- a directory that `robotrl reward train clip` has written;
- a directory with `open_clip_config.json` and weights, as open_clip saves it;
- `hf-hub:ORGANISATION/NAME`, a model on the Hugging Face hub;
- `MODEL@CHECKPOINT`: a model of `open_clip.list_models()`, with a file of weights or one of its pretrained tags.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robotrl.errors import ConfigError, DataError, short, unknown
from robotrl.policies.steered import weights_sha256
from robotrl.rewards.vlm.image_graph import GRAPH_FILE, ImageTower, tower_of_graph
from robotrl.rewards.vlm.words import WholeWordTokenizer
from robotrl.utils.files import read_json

HUB, LOCAL = "hf-hub:", "local-dir:"
CONFIG_FILE, WEIGHTS_FILE = "open_clip_config.json", "open_clip_model.safetensors"
WORDS_FILE, SCHEMA = "robotrl_clip.json", 1
BATCH = 64
"""Images encoded at a time."""


class Preprocessing(NamedTuple):
    """Size and normalization of a model's images."""

    size: tuple[int, int]
    """Height and width, pixels."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    squash: bool
    """True to change the aspect ratio; else the shorter side is fitted and the center is cut out."""


class ImageTextEncoder:
    """Encodes images and sentences into one space of unit vectors; frozen, in evaluation mode.

    Args:
        model: a model of open_clip.
        tokenize: token ids (n, L) of n sentences.
        preprocessing: see `Preprocessing`.
        name: the name that it was loaded by.
    """

    def __init__(
        self, model: nn.Module, tokenize: Callable[[list[str]], Tensor], preprocessing: Preprocessing, name: str
    ) -> None:
        self.model: Any = model.eval().requires_grad_(False)
        self.name = name
        self.preprocessing = preprocessing
        self.identity = hashlib.sha256(f"{weights_sha256(model)} {tuple(preprocessing)!r}".encode()).hexdigest()
        """Hexadecimal SHA-256 of weights and preprocessing."""
        self._tokenize = tokenize
        self.image_tower: ImageTower = self.model.encode_image
        """Computes the vectors of images; may be replaced by another form of the same tower."""
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype

    @torch.no_grad()
    def images(self, pictures: Tensor) -> Tensor:
        """Unit vectors (n, D) float32 of pictures (n, height, width, 3) uint8."""
        parts = [
            self.image_tower(prepared(part.to(self.device), self.preprocessing).to(self.dtype))
            for part in pictures.split(BATCH)
        ]
        return F.normalize(torch.cat(parts).float(), dim=-1)

    @torch.no_grad()
    def texts(self, sentences: Sequence[str]) -> Tensor:
        """Unit vectors (n, D) float32 of n sentences.

        Raises:
            ConfigError: no sentence, or one that the model cannot read.
        """
        if not sentences or not all(sentence.strip() for sentence in sentences):
            raise ConfigError(f"prompts are {list(sentences)!r}: expected one sentence or more, each with words")
        tokens = self._tokenize(list(sentences)).to(self.device)
        return F.normalize(self.model.encode_text(tokens).float(), dim=-1)


def prepared(pictures: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Normalized images (n, 3, h, w) float32 of pictures (n, height, width, 3) uint8."""
    x = pictures.movedim(-1, 1).float() / 255.0
    height, width = preprocessing.size
    if x.shape[-2:] != preprocessing.size:
        scale = max(height / x.shape[-2], width / x.shape[-1])
        fitted = (height, width)
        if not preprocessing.squash:
            fitted = (max(round(x.shape[-2] * scale), height), max(round(x.shape[-1] * scale), width))
        x = F.interpolate(x, fitted, mode="bicubic", align_corners=False, antialias=True).clamp(0.0, 1.0)
        top, left = (fitted[0] - height) // 2, (fitted[1] - width) // 2
        x = x[..., top : top + height, left : left + width]
    mean, std = (torch.tensor(v, device=x.device).view(1, 3, 1, 1) for v in (preprocessing.mean, preprocessing.std))
    return (x - mean) / std


def load_encoder(name: str, device: str = "cpu") -> ImageTextEncoder:
    """Load the model that `name` names, see the module's text.

    Raises:
        ConfigError: an unknown model or tag.
        DataError: files are missing, damaged, or not those of such a model.
    """
    open_clip: Any = importlib.import_module("open_clip")  # untyped
    path = Path(name)
    if name.startswith(HUB):
        return _opened(name, name, None, device)
    if path.is_file():
        raise ConfigError(f"model {name!r} is a file: expected MODEL@FILE for a file of weights, or a directory")
    if path.is_dir():
        if not (path / CONFIG_FILE).is_file():
            raise DataError(
                f"{path} has no {CONFIG_FILE}: expected a directory of `robotrl reward train clip` or open_clip"
            )
        words = path / WORDS_FILE
        return (
            _of_words(name, path, words, device) if words.is_file() else _opened(name, f"{LOCAL}{path}", None, device)
        )
    model, at, checkpoint = name.partition("@")
    if not at:
        known = [f"{HUB}ORGANISATION/NAME", *(f"{known}@CHECKPOINT" for known in open_clip.list_models())]
        raise unknown("model", name, known)
    if model not in open_clip.list_models():
        raise unknown("model", model, open_clip.list_models())
    tags = open_clip.list_pretrained_tags_by_model(model)
    if not Path(checkpoint).is_file() and checkpoint not in tags:
        raise unknown(f"checkpoint of {model}, no file and no tag,", checkpoint, tags)
    return _opened(name, model, checkpoint, device)


def _opened(
    name: str, model_name: str, pretrained: str | None, device: str, tokenizer: WholeWordTokenizer | None = None
) -> ImageTextEncoder:
    from safetensors import SafetensorError

    open_clip: Any = importlib.import_module("open_clip")
    try:
        # without this it would answer with random weights
        model: Any = open_clip.create_model(model_name, pretrained=pretrained, device=device, require_pretrained=True)
        tokenize: Any = _whole(open_clip.get_tokenizer(model_name)) if tokenizer is None else tokenizer
    except (RuntimeError, OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise DataError(f"model {name!r} cannot be loaded: {short(' '.join(str(error).split()), 300)}") from error
    visual: Any = model.visual
    size = visual.image_size
    cfg: dict[str, Any] = dict(visual.preprocess_cfg)
    preprocessing = Preprocessing(
        (size, size) if isinstance(size, int) else (int(size[0]), int(size[1])),
        tuple(cfg["mean"]),
        tuple(cfg["std"]),
        cfg.get("resize_mode") == "squash",
    )
    for key, value in model.state_dict().items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise DataError(f"model {name!r}: weights {key} are not finite")
    encoder = ImageTextEncoder(model, tokenize, preprocessing, name)
    if tokenizer is None:
        try:
            encoder.texts(["a"])
        except (IndexError, RuntimeError) as error:
            raise DataError(f"model {name!r} does not fit its tokenizer: {short(str(error))}") from error
    return encoder


def _whole(tokenize: Callable[[list[str]], Tensor]) -> Callable[[list[str]], Tensor]:
    """The tokenizer, refusing sentences that open_clip would cut off without a word."""

    def ids(sentences: list[str]) -> Tensor:
        tokens, longer = tokenize(sentences), tokenize([f"{sentence} a" for sentence in sentences])
        for sentence, own, other in zip(sentences, tokens, longer, strict=True):
            if torch.equal(own, other):
                raise ConfigError(
                    f"prompt {short(repr(sentence))} is longer than the model reads: expected fewer words"
                )
        return tokens

    return ids


def content_digest(encoder: ImageTextEncoder, tokenizer: WholeWordTokenizer) -> str:
    """Hexadecimal SHA-256 of a small model: weights, preprocessing and vocabulary."""
    return hashlib.sha256(f"{encoder.identity} {tokenizer.words!r} {tokenizer.longest}".encode()).hexdigest()


def _of_words(name: str, path: Path, file: Path, device: str) -> ImageTextEncoder:
    """A model with a vocabulary of its own."""
    found = read_json(file, "vocabulary", SCHEMA)
    words, longest = found.get("words"), found.get("longest")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words) or not isinstance(longest, int):
        raise DataError(f"vocabulary {file} has no words and longest: expected what `robotrl reward train clip` writes")
    tokenizer = WholeWordTokenizer(cast("list[str]", words), longest)
    encoder = _opened(name, f"{LOCAL}{path}", None, device, tokenizer)
    graph = path / GRAPH_FILE
    content = graph.read_bytes() if graph.is_file() else None
    digest = None if content is None else hashlib.sha256(content).hexdigest()
    if (found.get("sha256"), found.get("graph_sha256")) != (content_digest(encoder, tokenizer), digest):
        raise DataError(
            f"model {name!r} was changed since it was trained: expected its own weights, config, {file.name} and, if"
            f" it had one, {GRAPH_FILE}"
        )
    if content is not None and encoder.device.type == "cpu":
        encoder.image_tower = tower_of_graph(content, graph)
    return encoder
