"""Reading what others publish: JSON, safetensors and tokenizers, each fault named with its file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from robotrl.errors import ConfigError, DataError
from robotrl.policies.vla.pretrained import read_tokenizer


def read_json(path: Path, name: str) -> dict[str, Any]:
    """The object in a file of a directory.

    Raises:
        DataError: it is missing, cannot be read, or holds no object.
    """
    try:
        found = json.loads((path / name).read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path / name} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"{path / name} holds {type(found).__name__}: expected an object")
    return found


def require(path: Path, data: Mapping[str, Any], name: str, kind: type) -> Any:
    """A field that must be there, of a kind.

    Raises:
        DataError: it is missing or of another kind.
    """
    if not isinstance(data.get(name), kind):
        raise DataError(f"{path}: {name} is {data.get(name)!r}: expected {kind.__name__}")
    return data[name]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file.

    Raises:
        DataError: it is missing, cut short, or no such file.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def read_tokenizer_file(path: Path) -> tuple[str, int, int]:
    """A directory's `tokenizer.json`: its contents, its tokens without those added later, and with them.

    Raises:
        DataError: it is missing or none.
    """
    try:
        stored = (path / "tokenizer.json").read_text()
        loaded = read_tokenizer(stored)
    except (OSError, ValueError, ConfigError) as error:
        raise DataError(f"{path}/tokenizer.json cannot be read: {error}") from error
    return stored, loaded.get_vocab_size(with_added_tokens=False), loaded.get_vocab_size(with_added_tokens=True)
