"""Trains a small CLIP model on pictures of a sim and captions from its own state, with nothing downloaded.

Every batch draws one wording of each class of each topic. A topic's classes exclude each other, so the loss of a topic
is the cross-entropy of a picture over its classes, and of a class over the pictures, where all pictures of which the
class is true are positives: the same caption in a batch is never a negative (Radford et al. 2021, arXiv 2103.00020,
with the true pairs instead of the diagonal).
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from robotrl.errors import ConfigError, check_count, check_number
from robotrl.fn.progress.metrics import separation
from robotrl.rewards.vlm.encoder import (
    CONFIG_FILE,
    SCHEMA,
    WEIGHTS_FILE,
    WORDS_FILE,
    ImageTextEncoder,
    Preprocessing,
    content_digest,
    prepared,
)
from robotrl.rewards.vlm.image_graph import GRAPH_FILE
from robotrl.rewards.vlm.scenes import CaptionedFrames
from robotrl.rewards.vlm.words import WholeWordTokenizer
from robotrl.run.tensors import write_weights
from robotrl.spec.captions import UNCLEAR, CaptionTopic
from robotrl.utils.files import dump_json, replace_file

MEAN, STD = (0.3, 0.3, 0.3), (0.25, 0.25, 0.25)


@dataclass(frozen=True)
class SmallClipCfg:
    """Size and training of a small CLIP model."""

    image_pixels: int = 64
    """Height and width of its images, pixels, a multiple of 32."""
    width: int = 16
    """Channels of the first stage of the image tower, a ResNet of four stages; each further one has twice as many."""
    blocks: int = 1
    """Residual blocks in each stage."""
    embedding: int = 64
    """Dimensions of the common space."""
    updates: int = 6000
    """Gradient steps."""
    batch: int = 128
    """Pictures in a minibatch; the classes of the first topic, and frames of no clear class, are drawn evenly."""
    lr: float = 2e-3
    """Learning rate of AdamW, after a warmup, with a cosine to 0."""
    text_updates: int = 2000
    """Gradient steps of the second stage, in which the text tower learns anew beside the frozen image tower."""
    word_dropout: float = 0.3
    """Chance of each word to be left out in the second stage."""
    seed: int = 0
    """Seeds weights and minibatches."""

    def check(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: a setting is out of range.
        """
        for name, value, low, high in (
            ("image_pixels", self.image_pixels, 32, 512),
            ("width", self.width, 4, 512),
            ("blocks", self.blocks, 1, 12),
            ("embedding", self.embedding, 8, 2048),
            ("updates", self.updates, 1, 10_000_000),
            ("batch", self.batch, 2, 65_536),
            ("text_updates", self.text_updates, 1, 10_000_000),
        ):
            check_count(f"clip.{name}", value, low, high)
        if self.image_pixels % STRIDE:
            more = self.image_pixels // STRIDE * STRIDE + STRIDE
            raise ConfigError(f"clip.image_pixels is {self.image_pixels}: expected a multiple of {STRIDE}, {more}")
        check_number("clip.lr", self.lr, 1e-6, 1.0)
        check_number("clip.word_dropout", self.word_dropout, 0.0, 0.9)


STRIDE, HEAD = 32, 32
"""Pixels that a cell of the last stage covers, and channels of an attention head."""
WARMUP = 100
WEIGHT_DECAY = 0.05
SHIFT_PIXELS = 2
"""Largest shift of a picture in training, as augmentation."""


class ClassScore(NamedTuple):
    """Separation of one class of a topic from the others, on held-out frames and wordings."""

    topic: str
    name: str
    frames: int
    """Frames of which it is true."""
    auc: float
    """Area under the ROC curve of the similarity to the class, less that to the most similar other class of the topic,
    against frames of which another class is true."""


class SmallClip(NamedTuple):
    """A trained model."""

    encoder: ImageTextEncoder
    config: dict[str, Any]
    """Its config for open_clip."""
    tokenizer: WholeWordTokenizer


def topic_loss(logits: Tensor, classes: Tensor) -> Tensor:
    """Loss of one topic.

    Args:
        logits: (B, C) similarities of pictures and classes, times the scale.
        classes: (B,) class of each picture, or `UNCLEAR`, which is left out.
    """
    known = classes != UNCLEAR
    if not known.any():
        return logits.sum() * 0.0
    logits, classes = logits[known], classes[known].long()
    by_picture = F.cross_entropy(logits, classes)
    true = F.one_hot(classes, logits.shape[1]).bool()
    present = true.any(dim=0)
    own = torch.logsumexp(logits.masked_fill(~true, -torch.inf)[:, present], dim=0)
    by_class = (torch.logsumexp(logits[:, present], dim=0) - own).mean()
    return 0.5 * (by_picture + by_class)


def topics_loss(logits: Tensor, classes: Tensor, topics: Sequence[CaptionTopic]) -> Tensor:
    """Sum of the topics' losses.

    Args:
        logits: (B, C) similarities of pictures and the classes of all topics, times the scale.
        classes: (B, topics) see `topic_loss`.
        topics: the topics.
    """
    parts = logits.split([len(topic.classes) for topic in topics], dim=1)
    return torch.stack([topic_loss(part, classes[:, k]) for k, part in enumerate(parts)]).sum()


def optimize(
    loss_of: Callable[[], Tensor],
    parameters: Sequence[Tensor],
    logit_scale: Tensor,
    lr: float,
    updates: int,
    progress: Callable[[float], None] | None,
) -> None:
    """Gradient steps of AdamW, which decays matrices alone, with a warmup and then a cosine to 0.

    Args:
        loss_of: loss of a new minibatch.
        parameters: those that learn.
        logit_scale: logarithm of the scale of similarities, which is kept within 0 and log 100.
        lr: largest learning rate.
        updates: number of steps.
        progress: called with the loss of each step.
    """
    decayed = [p for p in parameters if p.ndim > 1]
    others = [p for p in parameters if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=lr)

    def share(update: int) -> float:
        return min(1.0, (update + 1) / WARMUP) * 0.5 * (1.0 + float(np.cos(np.pi * update / updates)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    for _ in range(updates):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            logit_scale.clamp_(0.0, float(np.log(100.0)))
        if progress is not None:
            progress(loss.item())


def frame_groups(scenes: CaptionedFrames) -> list[NDArray[np.int64]]:
    """Frames of each class of the first topic, and of none."""
    of_first = scenes.classes[:, 0]
    return [np.flatnonzero(of_first == value) for value in np.unique(of_first)]


def new_model(cfg: SmallClipCfg, tokenizer: WholeWordTokenizer) -> tuple[Any, dict[str, Any]]:
    """A model with fresh weights, and its config for open_clip."""
    module: Any = importlib.import_module("open_clip.model")  # untyped
    config: dict[str, Any] = {
        "embed_dim": cfg.embedding,
        "vision_cfg": {
            "image_size": cfg.image_pixels,
            "layers": [cfg.blocks] * 4,
            "width": cfg.width,
            "head_width": HEAD,
        },
        "text_cfg": {
            "context_length": tokenizer.context_length,
            "vocab_size": tokenizer.vocab_size,
            "width": 96,
            "heads": 3,
            "layers": 2,
        },
    }
    torch.manual_seed(cfg.seed)
    # convolutions of few channels are half as fast again in this layout
    return module.CLIP(**config).to(memory_format=torch.channels_last), config


def draw_frames(rows: Sequence[NDArray[np.int64]], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Frames (count,), from groups of frames in equal parts."""
    drawn = rng.integers(0, len(rows), count)
    return np.array([rows[k][rng.integers(len(rows[k]))] for k in drawn])


def train_small_clip(
    scenes: CaptionedFrames,
    topics: Sequence[CaptionTopic],
    cfg: SmallClipCfg,
    progress: Callable[[float], None] | None = None,
) -> SmallClip:
    """Train a model: the first stage, in which both towers learn together; `fit_text_tower` is the second.

    Args:
        scenes: frames to train on.
        topics: their topics.
        cfg: settings.
        progress: called with the loss of each update.

    Raises:
        ConfigError: a setting is out of range.
    """
    cfg.check()
    sentences = [text for topic in topics for one in topic.classes for text in (*one.train, *one.test)]
    tokenizer = WholeWordTokenizer.of(sentences)
    model, config = new_model(cfg, tokenizer)
    rng = np.random.default_rng(cfg.seed)
    shifts = torch.Generator().manual_seed(cfg.seed)
    preprocessing = Preprocessing((cfg.image_pixels, cfg.image_pixels), MEAN, STD, squash=True)
    groups = frame_groups(scenes)
    model.train()

    def loss() -> Tensor:
        rows = draw_frames(groups, cfg.batch, rng)
        images = _shifted(prepared(torch.from_numpy(scenes.pictures[rows]), preprocessing), shifts)
        images = images.contiguous(memory_format=torch.channels_last)
        wordings = [one.train[rng.integers(len(one.train))] for topic in topics for one in topic.classes]
        image = F.normalize(model.encode_image(images), dim=-1)
        text = F.normalize(model.encode_text(tokenizer(wordings)), dim=-1)
        logits = model.logit_scale.exp() * image @ text.T
        return topics_loss(logits, torch.from_numpy(scenes.classes[rows]), topics)

    optimize(loss, list(model.parameters()), model.logit_scale, cfg.lr, cfg.updates, progress)
    return SmallClip(ImageTextEncoder(model, tokenizer, preprocessing, "small"), config, tokenizer)


def _shifted(images: Tensor, rng: torch.Generator) -> Tensor:
    right, down = torch.randint(-SHIFT_PIXELS, SHIFT_PIXELS + 1, (2,), generator=rng).tolist()
    return torch.roll(images, (down, right), dims=(2, 3))


def class_scores(
    encoder: ImageTextEncoder,
    scenes: CaptionedFrames,
    topics: Sequence[CaptionTopic],
    wordings: Literal["train", "test"] = "test",
) -> list[ClassScore]:
    """Area under the curve of each class, with the mean of its wordings as prompt.

    Args:
        encoder: the model.
        scenes: held-out frames.
        topics: their topics.
        wordings: wordings of the classes to use.
    """
    images = encoder.images(torch.from_numpy(scenes.pictures))
    out: list[ClassScore] = []
    for k, topic in enumerate(topics):
        known = scenes.classes[:, k] != UNCLEAR
        sentences = [one.test if wordings == "test" else one.train for one in topic.classes]
        similarity = torch.stack([(images @ encoder.texts(some).T).mean(dim=1) for some in sentences], dim=1)
        for number, one in enumerate(topic.classes):
            others = [other for other in range(len(topic.classes)) if other != number]
            best = similarity[:, others].max(dim=1).values if others else 0.0
            score = (similarity[:, number] - best).double().numpy()
            true = scenes.classes[:, k] == number
            above, below = score[known & true], score[known & ~true]
            auc = separation(above, below) if len(above) and len(below) else float("nan")
            out.append(ClassScore(topic.name, one.name, int(true.sum()), auc))
    return out


def save_small_clip(path: Path, trained: SmallClip, about: dict[str, Any], graph: bytes | None = None) -> None:
    """Write a model in the layout of open_clip's local directories, with its vocabulary beside it.

    Args:
        path: an existing directory.
        trained: the model.
        about: JSON values to store with the vocabulary.
        graph: ONNX file of its image tower, see `robotrl.rewards.vlm.image_graph`; None: scored by torch.
    """
    encoder, tokenizer = trained.encoder, trained.tokenizer
    preprocess = {
        "mean": list(encoder.preprocessing.mean),
        "std": list(encoder.preprocessing.std),
        "interpolation": "bicubic",
        "resize_mode": "squash",
    }
    config = {"model_cfg": trained.config, "preprocess_cfg": preprocess}
    write_weights(path / WEIGHTS_FILE, {k: v.detach().contiguous() for k, v in encoder.model.state_dict().items()})
    replace_file(path / CONFIG_FILE, dump_json(config))
    if graph is not None:
        replace_file(path / GRAPH_FILE, graph)
    known = {
        "words": list(tokenizer.words),
        "longest": tokenizer.longest,
        "sha256": content_digest(encoder, tokenizer),
        "graph_sha256": None if graph is None else hashlib.sha256(graph).hexdigest(),
    }
    replace_file(path / WORDS_FILE, dump_json({"schema_version": SCHEMA, **known, **about}))
