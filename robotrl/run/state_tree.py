"""State trees, split into plain JSON that keeps the structure and arrays that the JSON refers to by name.

A tree is nested dicts, lists and tuples whose leaves are tensors, numpy arrays or JSON values. It is restored exactly:
types, dtypes, shapes (0-d and empty too), big integers, NaN, tuples, integer keys. So `optimizer.state_dict()`,
`random.getstate()` and `generator.bit_generator.state` can be stored unchanged. Tensors come back on the CPU and
without gradients; dict subclasses come back as dicts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from robotrl.errors import ConfigError

if TYPE_CHECKING:
    import torch

Leaf: TypeAlias = "torch.Tensor | np.ndarray | np.generic | int | float | str | bool | None"
Tree: TypeAlias = "Mapping[str, Tree] | Mapping[int, Tree] | list[Tree] | tuple[Tree, ...] | Leaf"
Array: TypeAlias = "torch.Tensor | np.ndarray"

EXACT_INT = 2**53
"""Integers beyond this are written as hexadecimal text, because other JSON readers hold numbers as doubles."""


def pack(tree: Any) -> tuple[Any, dict[str, Array]]:
    """Split a tree into JSON and arrays.

    Args:
        tree: a `Tree`.

    Returns:
        The JSON half, in which `{"$torch": name}` and the like stand for arrays, and the arrays by name ("a/b/0").
        The arrays are the caller's own, not copies.

    Raises:
        ConfigError: a leaf or a key is of a type that cannot be saved; its place is named.
    """
    arrays: dict[str, Array] = {}
    return _pack(tree, "", arrays), arrays


def unpack(data: Any, take: Callable[[str, str], Any]) -> Any:
    """Rebuild a tree from its two halves.

    Args:
        data: the JSON half.
        take: called as `take(kind, name)` with kind "torch", "numpy" or "scalar"; returns that array, or for "scalar"
            the single numpy number in it.

    Raises:
        ValueError: `pack` does not write such JSON.
    """
    if isinstance(data, list):
        items: list[Any] = data  # pyright: ignore[reportUnknownVariableType]
        return [unpack(item, take) for item in items]
    if not isinstance(data, dict):
        return data
    table: dict[str, Any] = data  # pyright: ignore[reportUnknownVariableType]
    tags = [key for key in table if key.startswith("$")]
    if not tags:
        return {key: unpack(value, take) for key, value in table.items()}
    if len(table) != 1:
        raise ValueError(f"the object with {tags[0]!r} has other keys beside it")
    tag, value = tags[0], table[tags[0]]
    if tag in ("$torch", "$numpy", "$scalar"):
        return take(tag[1:], value)
    if tag == "$tuple":
        return tuple(unpack(item, take) for item in value)
    if tag == "$map":
        return {key: unpack(item, take) for key, item in value}
    if tag == "$int":
        return int(value, 16)
    if tag == "$float":
        return float(value)
    raise ValueError(f"the tag {tag!r} is unknown")


def _pack(value: Any, name: str, arrays: dict[str, Array]) -> Any:
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        return value if -EXACT_INT <= value <= EXACT_INT else {"$int": hex(value)}
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):  # pyright: ignore[reportUnknownArgumentType]
        sequence: list[Any] | tuple[Any, ...] = value
        packed = [_pack(item, f"{name}/{i}", arrays) for i, item in enumerate(sequence)]
        return packed if type(sequence) is list else {"$tuple": packed}
    if isinstance(value, Mapping):
        return _pack_mapping(value, name, arrays)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, np.generic):
        return {"$scalar": _store(np.asarray(value), name, arrays)}
    if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
        return {"$numpy": _store(cast("Array", value), name, arrays)}
    if _is_tensor(value):
        return {"$torch": _store(cast("Array", value), name, arrays)}
    raise ConfigError(
        f"checkpoint leaf {name[1:] or '(root)'!r} is a {type(value).__name__}: "
        "expected a tensor, an array, a dict, list or tuple, or a JSON value"
    )


def _pack_mapping(value: Mapping[Any, Any], name: str, arrays: dict[str, Array]) -> Any:
    for key in value:
        if type(key) not in (str, int):
            raise ConfigError(f"checkpoint key {name[1:]}/{key!r} is a {type(key).__name__}: expected str or int")
    pairs = [(key, _pack(item, f"{name}/{_escape(str(key))}", arrays)) for key, item in value.items()]
    if all(type(key) is str and not key.startswith("$") for key, _ in pairs):
        return dict(pairs)
    return {"$map": [[key, item] for key, item in pairs]}


def _escape(key: str) -> str:
    # Escaped as in JSON pointers, so that a key with a slash and a nested key never share a name; "_" would collide
    # with
    # the reserved name of the safetensors header, "__metadata__".
    escaped = key.replace("~", "~0").replace("/", "~1")
    return "~2" + escaped[1:] if escaped.startswith("_") else escaped


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # a tensor exists only if torch is loaded; numpy state does not load it
    return torch is not None and isinstance(value, torch.Tensor)


def _store(array: Array, name: str, arrays: dict[str, Array]) -> str:
    label = name[1:] or "root"
    while label in arrays:  # the keys 1 and "1" of one dict would be equal in JSON
        label += "~"
    arrays[label] = array
    return label
