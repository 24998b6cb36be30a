"""Readers of published files: JSON, safetensors and tokenizers; errors name the file."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robotrl.errors import ConfigError, DataError
from robotrl.importers.fields import wrong
from robotrl.policies.vla.pretrained import read_tokenizer
from robotrl.utils.files import not_fetched, read_plain

PRECISIONS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Supported dtypes of weights; others are quantized and need scales."""
NAMED = 3
"""Number of tensors that a message names; the others are counted."""


def unreadable(path: Path, why: str, error: Exception | None = None) -> DataError:
    """The error for an invalid file; a git-LFS pointer gets a message of its own.

    Args:
        path: the file.
        why: the problem, after the file's name.
        error: the error of reading it.
    """
    return not_fetched(path) or DataError(f"{path} {why}: {error}" if error else f"{path} {why}")


def read_json(path: Path, name: str) -> dict[str, Any]:
    """Read the object in a directory's JSON file.

    Raises:
        DataError: the file is missing, cannot be read, or holds no object.
    """
    try:
        found = json.loads(read_plain(path / name, str(path / name)))
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable(path / name, "cannot be read", error) from error
    if not isinstance(found, dict):
        raise DataError(f"{path / name} holds {type(found).__name__}: expected an object")
    return found


def require(path: Path | str, data: Mapping[str, Any], name: str, kind: type) -> Any:
    """A required field of a type.

    Raises:
        DataError: it is missing or of another type.
    """
    if not isinstance(data.get(name), kind):
        raise wrong(path, name, data.get(name), kind.__name__)
    return data[name]


def check_merged(path: Path) -> None:
    """Refuse directories with unmerged adapters; warn about a kept `lora_adapter` folder.

    Raises:
        DataError: the directory contains `adapter_config.json` or `adapter_model.*`.
    """
    if found := sorted([*path.glob("adapter_config.json"), *path.glob("adapter_model.*")]):
        raise DataError(
            f"{found[0]} is of an adapter, without which the policy says something else: expected one network; merge"
            " the adapter into the base first (peft's merge_and_unload) and save that"
        )
    if (path / "lora_adapter").exists():
        warnings.warn(
            f"{path}/lora_adapter is not read: expected the weights beside it to be merged with it already",
            stacklevel=2,
        )


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file; checked by `check_weights` if there is a matrix among them.

    Raises:
        DataError: the file is missing, truncated, or no safetensors; or weights are not finite or quantized.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise unreadable(path, "cannot be read", error) from error
    if any(_is_matrix(value) for value in found.values()):
        check_weights(path, found)
    return found


def check_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Refuse weights that are not finite or quantized; warn about matrices of zeros. One pass over each tensor.

    Raises:
        DataError: names the first invalid tensor.
    """
    empty: list[str] = []
    for name, value in weights.items():
        if value.dtype not in PRECISIONS:
            if _is_matrix(value):
                raise DataError(
                    f"{path}: weight {name!r} is {str(value.dtype).removeprefix('torch.')}: expected float32, float16"
                    " or bfloat16; quantised weights are not read, their scales would be missing"
                )
            continue
        if not value.numel():
            continue
        low, high = (float(x) for x in torch.aminmax(value))
        if not (math.isfinite(low) and math.isfinite(high)):
            raise DataError(f"{path}: weight {name!r} is not finite everywhere: expected numbers")
        if low == high == 0 and _is_matrix(value):
            empty.append(name)
    warn_of_zeros(path, empty)


def warn_of_zeros(path: Path, empty: Sequence[str]) -> None:
    """Warn about matrices that are all zeros, if there are any."""
    if empty:
        more = f" and {len(empty) - NAMED} more" if len(empty) > NAMED else ""
        warnings.warn(
            f"{path}: all numbers are 0 of {', '.join(empty[:NAMED])}{more}: a layer that was trained away, or lost",
            stacklevel=4,
        )


def _is_matrix(value: Tensor) -> bool:
    """Tell whether two or more axes are longer than 1; image statistics of shape (3, 1, 1) are no matrix."""
    return sum(size > 1 for size in value.shape) > 1


def read_tokenizer_file(path: Path) -> tuple[str, int, int]:
    """Read a directory's `tokenizer.json`: its contents, and the vocabulary's size without and with added tokens.

    Raises:
        DataError: it is missing or invalid.
    """
    file = path / "tokenizer.json"
    try:
        stored = read_plain(file, str(file)).decode()
        loaded = read_tokenizer(stored)
    except (OSError, ValueError, ConfigError) as error:
        raise unreadable(file, "cannot be read", error) from error
    return stored, loaded.get_vocab_size(with_added_tokens=False), loaded.get_vocab_size(with_added_tokens=True)
