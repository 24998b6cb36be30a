"""Second stage of a small CLIP model: its text tower learns to read words, beside a frozen image tower.

A text tower that sees a few dozen sentences whole knows each by heart, and takes a new wording for whichever known one
it resembles: "a crash from behind is near" for one from the front. Here each word of a sentence is left out at random
(word dropout, Iyyer et al. 2015), so that the words have to be read. The pictures are encoded once, so this takes a
minute or two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from robotrl.errors import ConfigError
from robotrl.fn.text.words import words_in
from robotrl.rewards.vlm.encoder import ImageTextEncoder
from robotrl.rewards.vlm.scenes import CaptionedFrames
from robotrl.rewards.vlm.small_clip import (
    SmallClip,
    SmallClipCfg,
    draw_frames,
    frame_groups,
    new_model,
    optimize,
    topics_loss,
)
from robotrl.rewards.vlm.words import WholeWordTokenizer
from robotrl.spec.captions import CaptionTopic

BATCH = 256
"""Pictures in a minibatch: they cost nothing here."""


def fit_text_tower(
    scenes: CaptionedFrames,
    topics: Sequence[CaptionTopic],
    image_tower: ImageTextEncoder,
    cfg: SmallClipCfg,
    progress: Callable[[float], None] | None = None,
) -> SmallClip:
    """Train a new text tower on the embeddings of an image tower.

    Args:
        scenes: frames to train on.
        topics: their topics.
        image_tower: a small model, of which the image tower and the scale of similarities are taken.
        cfg: settings; size and image tower agree.
        progress: called with the loss of each update.

    Raises:
        ConfigError: a setting is out of range, or the image tower has another size.
    """
    cfg.check()
    sentences = [text for topic in topics for one in topic.classes for text in (*one.train, *one.test)]
    tokenizer = WholeWordTokenizer.of(sentences)
    model, config = new_model(cfg, tokenizer)
    taken: Any = image_tower.model
    try:
        model.visual.load_state_dict(taken.visual.state_dict())
    except RuntimeError:
        raise ConfigError(
            f"image tower {image_tower.name!r} has another size than image_pixels {cfg.image_pixels},"
            f" width {cfg.width}, blocks {cfg.blocks} and embedding {cfg.embedding}: expected the same"
        ) from None
    model.visual.requires_grad_(False)
    with torch.no_grad():
        model.logit_scale.copy_(taken.logit_scale)
    images = image_tower.images(torch.from_numpy(scenes.pictures))
    learning = [p for p in model.parameters() if p.requires_grad]
    rng = np.random.default_rng(cfg.seed)
    groups = frame_groups(scenes)
    model.train()

    def loss() -> Tensor:
        rows = draw_frames(groups, BATCH, rng)
        wordings = [
            drop_words(one.train[rng.integers(len(one.train))], cfg.word_dropout, rng)
            for topic in topics
            for one in topic.classes
        ]
        text: Tensor = F.normalize(model.encode_text(tokenizer(wordings)), dim=-1)
        logits = model.logit_scale.exp() * images[torch.from_numpy(rows)] @ text.T
        return topics_loss(logits, torch.from_numpy(scenes.classes[rows]), topics)

    optimize(loss, learning, model.logit_scale, cfg.lr, cfg.text_updates, progress)
    return SmallClip(ImageTextEncoder(model, tokenizer, image_tower.preprocessing, "small"), config, tokenizer)


def drop_words(sentence: str, share: float, rng: np.random.Generator) -> str:
    """The sentence without each word with probability `share`; whole if none would be left."""
    words = words_in(sentence)
    kept = [word for word, left_out in zip(words, rng.random(len(words)) < share, strict=True) if not left_out]
    return " ".join(kept or words)
