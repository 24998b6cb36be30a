"""Reading what others publish: JSON, safetensors and tokenizers, each fault named with its file."""

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
"""Of weights that mean what they say; others need scales."""
NAMED = 3
"""Tensors that a message names before it counts."""


def unreadable(path: Path, why: str, error: Exception | None = None) -> DataError:
    """The error for a file that is not what it should be; one that git-LFS left in its place is named as that.

    Args:
        path: the file.
        why: what is wrong, behind its name.
        error: what reading it said.
    """
    return not_fetched(path) or DataError(f"{path} {why}: {error}" if error else f"{path} {why}")


def read_json(path: Path, name: str) -> dict[str, Any]:
    """The object in a file of a directory.

    Raises:
        DataError: it is missing, cannot be read, or holds no object.
    """
    try:
        found = json.loads(read_plain(path / name, str(path / name)))
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable(path / name, "cannot be read", error) from error
    if not isinstance(found, dict):
        raise DataError(f"{path / name} holds {type(found).__name__}: expected an object")
    return found


def require(path: Path | str, data: Mapping[str, Any], name: str, kind: type) -> Any:
    """A field that must be there, of a kind.

    Raises:
        DataError: it is missing or of another kind.
    """
    if not isinstance(data.get(name), kind):
        raise wrong(path, name, data.get(name), kind.__name__)
    return data[name]


def check_merged(path: Path) -> None:
    """Refuse adapters that are not merged into the weights beside them; warn of those that a merged directory keeps.

    Raises:
        DataError: `adapter_config.json` or `adapter_model.*` lies in the directory.
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
    """All tensors of a safetensors file; of a network's weights, which have a matrix among them, checked ones.

    Raises:
        DataError: it is missing, cut short, or no such file; or weights that are not finite or need scales.
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
    """Refuse weights that are no finite numbers or need scales; warn of matrices of zeros. One pass over each tensor.

    Raises:
        DataError: the first such tensor.
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
    """Tell of matrices that are all zeros, if there are any."""
    if empty:
        more = f" and {len(empty) - NAMED} more" if len(empty) > NAMED else ""
        warnings.warn(
            f"{path}: all numbers are 0 of {', '.join(empty[:NAMED])}{more}: a layer that was trained away, or lost",
            stacklevel=4,
        )


def _is_matrix(value: Tensor) -> bool:
    """Whether more than one of its sizes is above 1: statistics of a picture's channels, (3, 1, 1), are none."""
    return sum(size > 1 for size in value.shape) > 1


def read_tokenizer_file(path: Path) -> tuple[str, int, int]:
    """A directory's `tokenizer.json`: its contents, its tokens without those added later, and with them.

    Raises:
        DataError: it is missing or none.
    """
    file = path / "tokenizer.json"
    try:
        stored = read_plain(file, str(file)).decode()
        loaded = read_tokenizer(stored)
    except (OSError, ValueError, ConfigError) as error:
        raise unreadable(file, "cannot be read", error) from error
    return stored, loaded.get_vocab_size(with_added_tokens=False), loaded.get_vocab_size(with_added_tokens=True)
