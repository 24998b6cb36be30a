"""Chat completions protocol: body of a request, and what is read of a response. Pure functions."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from robotrl.errors import ConfigError, DataError
from robotrl.rewards.endpoint.cfg import EndpointCfg
from robotrl.rewards.endpoint.replies import ReplySchema, schema_text
from robotrl.rewards.scoring.cache import KEY_BYTES
from robotrl.utils.files import parse_json


class Usage(NamedTuple):
    """Tokens that a response was charged for."""

    prompt: int
    answer: int


class Completion(NamedTuple):
    """Read part of a response."""

    text: str | None
    """Text of the first choice; None where the response has another form."""
    usage: Usage | None
    """None where the response does not say."""


def request_body(cfg: EndpointCfg, reply: ReplySchema, prompt: str, shown: NDArray[np.uint8] | None) -> bytes:
    """JSON body of a request.

    Args:
        cfg: settings.
        reply: form of the answer, which the prompt's end describes.
        prompt: text.
        shown: RGB picture (h, w, 3), or a clip (T, h, w, 3), the oldest frame first; each is a PNG in a data URL.
    """
    text = f"{prompt.rstrip()}\n{reply.instruction()}"
    content: list[dict[str, Any]] = [{"type": "text", "text": text}]
    if shown is not None:
        frames = shown[None] if shown.ndim == 3 else shown
        content += [{"type": "image_url", "image_url": {"url": data_url(frame)}} for frame in frames]
    body: dict[str, Any] = {
        "model": cfg.model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": cfg.max_tokens,
        "temperature": cfg.temperature,
        "stream": False,
    }
    if cfg.reply_format == "json_schema":
        schema = {"name": "reply", "strict": True, "schema": reply.json_schema()}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif cfg.reply_format == "json_object":
        body["response_format"] = {"type": "json_object"}
    return json.dumps(body).encode()


def data_url(picture: NDArray[np.uint8]) -> str:
    """Data URL of a picture (h, w, 3) as a PNG."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def read_completion(body: bytes) -> Completion:
    """Read a response strictly; anything of another form is None."""
    try:
        data = parse_json(body, "response")
    except DataError:
        return Completion(None, None)
    if not isinstance(data, dict):
        return Completion(None, None)
    found: dict[str, Any] = data  # pyright: ignore[reportUnknownVariableType]
    usage = _usage(found.get("usage"))
    try:
        text = found["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        return Completion(None, usage)
    return Completion(text if isinstance(text, str) else None, usage)


def _usage(found: Any) -> Usage | None:
    if not isinstance(found, dict):
        return None
    table: dict[str, Any] = found  # pyright: ignore[reportUnknownVariableType]
    counts = (table.get("prompt_tokens"), table.get("completion_tokens"))
    if not all(type(count) is int and 0 <= count < 2**53 for count in counts):
        return None
    return Usage(int(counts[0] or 0), int(counts[1] or 0))


def identity_of(cfg: EndpointCfg, reply: ReplySchema) -> str:
    """Text that differs between endpoints whose answers may differ."""
    settings = (cfg.base_url, cfg.model, cfg.max_tokens, cfg.temperature, cfg.reply_format, schema_text(reply))
    return json.dumps(["chat completions", *settings])


def request_key(prompt: str, shown: NDArray[np.uint8] | None) -> bytes:
    """Hash of a request to one endpoint; see `request_body` for the pictures."""
    digest = hashlib.sha256(json.dumps([prompt, None if shown is None else shown.shape]).encode())
    if shown is not None:
        digest.update(shown.data)
    return digest.digest()[:KEY_BYTES]


def check_shown(shown: NDArray[np.uint8]) -> None:
    """Check that a picture or clip can be sent.

    Raises:
        ConfigError: it is not uint8 of shape (h, w, 3) or (T, h, w, 3).
    """
    if shown.dtype != np.uint8 or shown.ndim not in (3, 4) or shown.shape[-1] != 3 or not shown.size:
        expected = "uint8 of shape (h, w, 3), or (T, h, w, 3) for a clip"
        raise ConfigError(f"picture is {shown.dtype} of shape {shown.shape}: expected {expected}")
