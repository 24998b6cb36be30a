"""Vision-language models of `transformers` at toy size, in directories as they are published; made in code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForImageTextToText

from robotrl.sims.mujoco.tabletop.language import VOCABULARY

SIDE = 32
BINS = 256
MARKS = (
    "<image>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<fake_token_around_image>",
    "<global-img>",
    "<end_of_utterance>",
    "<img>",
    "</img>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<start_of_image>",
    "<end_of_image>",
)
"""Tokens added later, the picture's first."""
SAID = ("USER", "ASSISTANT", "User", "Assistant", "user", "assistant", "model", ":", "?", "What", "action", "should")
WORDS = dict.fromkeys([*SAID, "robot", "take", *(word for word in VOCABULARY if word)])
PLAIN = 3 + len(WORDS) + BINS
"""Tokens that were not added later: <unk>, <bos>, <eos>, words, and some that nobody says."""
IMAGE = PLAIN
ROWS = PLAIN + len(MARKS) + 8
TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": ROWS,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SEES: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "image_size": SIDE,
    "patch_size": 8,
}
SIGLIP = {"model_type": "siglip_vision_model", "vision_use_head": False, **SEES}
TURNS = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4}
QWEN_SEES = {"depth": 2, "num_heads": 4, "patch_size": 8}
MARKED = {"image_token_id": IMAGE, "vision_start_token_id": IMAGE + 3, "vision_end_token_id": IMAGE + 4}
CONFIGS: dict[str, dict[str, Any]] = {
    "llava": {
        "model_type": "llava",
        "text_config": {"model_type": "llama", **TEXT},
        "vision_config": {"model_type": "clip_vision_model", "projection_dim": 16, **SEES},
        "image_token_index": IMAGE,
    },
    "llava-qwen2": {
        "model_type": "llava",
        "text_config": {"model_type": "qwen2", **TEXT},
        "vision_config": SIGLIP,
        "vision_feature_select_strategy": "full",
        "vision_feature_layer": -1,
        "image_token_index": IMAGE,
    },
    "paligemma": {
        "model_type": "paligemma",
        "text_config": {"model_type": "gemma", "head_dim": 16, **TEXT},
        "vision_config": SIGLIP,
        "projection_dim": 64,
        "image_token_index": IMAGE,
    },
    "gemma3": {
        "model_type": "gemma3",
        "text_config": {"head_dim": 16, **TEXT},
        "vision_config": SIGLIP,
        "mm_tokens_per_image": 4,
        "image_token_index": IMAGE,
    },
    "smolvlm": {
        "model_type": "smolvlm",
        "text_config": {"model_type": "llama", **TEXT},
        "vision_config": SEES,
        "scale_factor": 2,
        "image_token_id": IMAGE,
    },
    "idefics3": {
        "model_type": "idefics3",
        "text_config": {"model_type": "llama", **TEXT},
        "vision_config": SEES,
        "scale_factor": 2,
        "image_token_id": IMAGE,
    },
    "internvl": {
        "model_type": "internvl",
        "text_config": {"model_type": "qwen2", **TEXT},
        "vision_config": {**SEES, "image_size": [SIDE, SIDE], "patch_size": [8, 8]},
        "image_token_id": IMAGE,
        "downsample_ratio": 0.5,
    },
    "qwen2_vl": {
        "model_type": "qwen2_vl",
        "text_config": {**TEXT, "rope_parameters": TURNS},
        "vision_config": {**QWEN_SEES, "embed_dim": 48, "hidden_size": 64, "mlp_ratio": 2},
        **MARKED,
    },
    "qwen2_5_vl": {
        "model_type": "qwen2_5_vl",
        "text_config": {**TEXT, "rope_parameters": TURNS},
        "vision_config": {
            **QWEN_SEES,
            "hidden_size": 48,
            "intermediate_size": 96,
            "out_hidden_size": 64,
            "window_size": 32,
            "fullatt_block_indexes": [1],
        },
        **MARKED,
    },
}
"""One for each family, some with another language model or other eyes."""


def tokenizer() -> Tokenizer:
    """A number for each word; what begins a text, what ends it, and pictures are marks."""
    plain = ["<unk>", "<bos>", "<eos>", *WORDS, *(f"rare{i}" for i in range(BINS))]
    assert len(plain) == PLAIN
    made: Any = Tokenizer(models.WordLevel({word: i for i, word in enumerate(plain)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(["<bos>", *MARKS])
    return made


def write(path: Path, family: str, seed: int = 0) -> Any:
    """A toy model's directory; gives the model. Weights are wide enough to be heard behind norms."""
    config = dict(CONFIGS[family])
    torch.manual_seed(seed)
    model: Any = AutoModelForImageTextToText.from_config(AutoConfig.for_model(config.pop("model_type"), **config))
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.15)
    model.eval().save_pretrained(path)
    tokenizer().save(str(path / "tokenizer.json"))
    said = {
        "image_mean": [0.4, 0.5, 0.6],
        "image_std": [0.2, 0.3, 0.25],
        "do_normalize": True,
        "rescale_factor": 1 / 255,
    }
    (path / "preprocessor_config.json").write_text(json.dumps(said))
    return model
