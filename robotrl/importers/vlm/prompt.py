"""Check that a tokenizer knows all parts of a prompt: special tokens, the image token and the sim's words."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from robotrl.errors import DataError
from robotrl.policies.vla.networks.families import FAMILIES
from robotrl.policies.vla.pretrained import read_tokenizer
from robotrl.policies.vla.pretrained_vlm import VlmPolicy
from robotrl.policies.vla.prompt import unread

MARK = re.compile(r"<[^<>{}\s]+>")
"""Special tokens in a template, e.g. <|im_start|>."""


def check_prompt(policy: VlmPolicy, kind: str, picture: int, path: Path) -> None:
    """Check that the tokenizer represents a policy's prompt.

    Args:
        policy: the policy; its weights are not needed.
        kind: the config's `model_type`.
        picture: id of the image token.
        path: the directory, for messages.

    Raises:
        DataError: a special token of the template is not one added token; the image token is a piece of text; part of
            the prompt is unknown; or two words of the sim have the same ids.
    """
    loaded: Any = read_tokenizer(policy.cfg.tokenizer)
    added: dict[int, Any] = loaded.get_added_tokens_decoder()
    if picture not in added:
        raise DataError(
            f"{path}/config.json: image_token_id is {picture}, which is {loaded.id_to_token(picture)!r} in"
            " tokenizer.json: expected a token that was added, no piece of a text"
        )
    unknown, template = _unknown(policy.cfg.tokenizer, loaded), policy.cfg.template or FAMILIES[kind].template
    where = f"{path}/tokenizer.json"
    for mark in MARK.findall(template):
        ids = loaded.encode(mark, add_special_tokens=False).ids
        if len(ids) != 1 or ids[0] not in added or ids[0] == unknown:
            raise DataError(
                f"{where} makes {ids} of {mark!r}, a mark of the prompt {template!r}: expected one token that was added"
            )
    pieces = policy.prompt.pieces
    if unknown in (*pieces.before, *pieces.after):
        raise DataError(f"{where} does not know all of the prompt {template!r}: expected no unknown token in it")
    wrong = unread(pieces, unknown)
    if wrong is not None:
        raise DataError(f"{where} {wrong}")


def _unknown(stored: str, loaded: Any) -> int | None:
    """Id of the tokenizer's unknown token, if there is one."""
    model = json.loads(stored)["model"]
    token = model.get("unk_token")
    return model.get("unk_id") if token is None else loaded.token_to_id(token)
