"""A small CLIP model with the vocabulary of the driving sim's captions, of actions too, and fresh weights."""

from __future__ import annotations

from pathlib import Path

from robotrl.rewards.vlm.actions import action_topics
from robotrl.rewards.vlm.encoder import ImageTextEncoder, Preprocessing
from robotrl.rewards.vlm.small_clip import MEAN, STD, SmallClip, SmallClipCfg, new_model, save_small_clip
from robotrl.rewards.vlm.words import WholeWordTokenizer
from robotrl.sims.driving.action_captions import ACTIONS
from robotrl.sims.driving.captions import TOPICS

CFG = SmallClipCfg(image_pixels=32, width=4, embedding=16)
GOOD = ("the road is clear and safe", "there is no danger")
BAD = ("a car is about to hit us from the left", "a car is about to hit us from the front")


def fresh_clip(seed: int = 0) -> SmallClip:
    tokenizer = WholeWordTokenizer.of(
        text
        for topic in (*TOPICS, *action_topics(ACTIONS))
        for one in topic.classes
        for text in (*one.train, *one.test)
    )
    cfg = SmallClipCfg(image_pixels=32, width=4, embedding=16, seed=seed)
    model, config = new_model(cfg, tokenizer)
    size = (cfg.image_pixels, cfg.image_pixels)
    return SmallClip(
        ImageTextEncoder(model, tokenizer, Preprocessing(size, MEAN, STD, True), "fresh"), config, tokenizer
    )


def stored_clip(path: Path, seed: int = 0) -> Path:
    path.mkdir(parents=True)
    save_small_clip(path, fresh_clip(seed), {"sim": "bev/drive"})
    return path
