"""Messages as msgpack: packing, and strict unpacking of what a network sends.

A message is one msgpack map. What is unpacked is bounded in number, size and depth before it is used: a few bytes of
msgpack can stand for very many objects. An array is a map of `dtype`, `shape` and `data` (little-endian bytes in C
order). Nothing is ever unpickled, and no extension type of msgpack is accepted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

import msgpack
import numpy as np

from robotrl.errors import nearest, short

MAX_CONTAINERS = 512
"""Maximum number of maps and lists in one message."""
MAX_ENTRIES = 64
"""Maximum number of entries of one map or list."""
MAX_DEPTH = 8
MAX_DIMS = 8
MAX_TEXT_BYTES = 4096
DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name).newbyteorder("<")
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
}
"""Dtypes of arrays in messages, little-endian."""


class WireError(Exception):
    """A message is refused. Its text goes to the other side: one line, without paths or internals.

    Attributes:
        code: kind of the refusal, a row of `robotrl.deploy.remote.protocol.CODES`.
        text: what is wrong and what was expected.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = short(" ".join(text.split()), 300)


def malformed(text: str) -> WireError:
    """Error for a message that does not have the form of the protocol."""
    return WireError("malformed", text)


class _Bounds:
    """Counts the containers of one message while it is unpacked, and refuses repeated keys."""

    def __init__(self) -> None:
        self.containers = 0

    def mapping(self, pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        self._count()
        out = dict(pairs)
        if len(out) != len(pairs):
            raise malformed("a field appears twice")
        return out

    def sequence(self, items: list[Any]) -> list[Any]:
        self._count()
        return items

    def _count(self) -> None:
        self.containers += 1
        if self.containers > MAX_CONTAINERS:
            raise malformed(f"it holds more than {MAX_CONTAINERS} maps and lists")


def unpack(data: bytes) -> dict[Any, Any]:
    """Unpack one message; its keys and values are not checked yet.

    Raises:
        WireError: not one msgpack map within the bounds above; a repeated key, one that is no text, or an extension.
    """
    bounds = _Bounds()
    try:
        message = msgpack.unpackb(
            data,
            object_pairs_hook=bounds.mapping,
            list_hook=bounds.sequence,
            ext_hook=_no_extension,
            max_map_len=MAX_ENTRIES,
            max_array_len=MAX_ENTRIES,
            max_str_len=MAX_TEXT_BYTES,
            max_bin_len=len(data),
            max_ext_len=0,
        )
    # msgpack raises ValueError and its own classes, some without that base
    except (ValueError, TypeError, RecursionError, OverflowError, msgpack.UnpackException) as error:
        raise malformed("it is not msgpack within this protocol's bounds") from error
    if not isinstance(message, dict):
        raise malformed(f"it is a {type(message).__name__}: expected a map")
    _check_depth(cast("dict[Any, Any]", message), 1)
    return cast("dict[Any, Any]", message)


def _no_extension(code: int, data: bytes) -> NoReturn:
    raise malformed("it holds an extension type: none is accepted")


def _check_depth(value: Any, depth: int) -> None:
    if isinstance(value, dict | list):
        if depth > MAX_DEPTH:
            raise malformed(f"it is nested deeper than {MAX_DEPTH} levels")
        inner = cast("dict[Any, Any]", value).values() if isinstance(value, dict) else cast("list[Any]", value)
        for item in inner:
            _check_depth(item, depth + 1)


def pack(message: Mapping[str, Any]) -> bytes:
    """Pack a message of plain values, bytes and numpy arrays."""
    return cast("bytes", msgpack.packb(message, default=_packed))


def _packed(value: Any) -> dict[str, Any]:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{type(value).__name__} is no part of a message")
    array = cast("np.ndarray", value)
    dtype = DTYPES[array.dtype.name]
    data = np.ascontiguousarray(array, dtype).tobytes()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def fields(value: Any, what: str, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of a map.

    Raises:
        WireError: not a map, or a field that is unknown or missing.
    """
    if not isinstance(value, dict):
        raise malformed(f"{what} is {_kind(value)}: expected a map")
    given = cast("dict[Any, Any]", value)
    known = (*required, *optional)
    for name in given:
        if name not in known:
            close = nearest(name, known) if isinstance(name, str) else None
            hint = f"did you mean {close!r}? " if close else ""
            raise malformed(f"{what}: field {short(repr(name), 60)} is unknown: {hint}known: {', '.join(known)}")
    for name in required:
        if name not in given:
            raise malformed(f"{what}: field {name!r} is missing")
    return given


def whole(value: Any, what: str, low: int, high: int) -> int:
    """A whole number of a message, from `low` to `high`.

    Raises:
        WireError: it is none.
    """
    if type(value) is not int or not low <= value <= high:
        raise malformed(f"{what} is {_shown(value)}: expected a whole number from {low} to {high}")
    return value


def number(value: Any, what: str, low: float, high: float) -> float:
    """A number of a message, from `low` to `high`.

    Raises:
        WireError: it is none; NaN is refused.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise malformed(f"{what} is {_shown(value)}: expected a number from {low:g} to {high:g}")
    return float(value)


def text(value: Any, what: str) -> str:
    """A text of a message.

    Raises:
        WireError: it is none.
    """
    if not isinstance(value, str):
        raise malformed(f"{what} is {_kind(value)}: expected text")
    return value


def array(value: Any, what: str) -> np.ndarray:
    """An array of a message; read-only, of a dtype in `DTYPES`.

    Raises:
        WireError: not an array, another dtype, or a shape that does not fit the data.
    """
    given = fields(value, what, ("dtype", "shape", "data"))
    dtype = DTYPES.get(text(given["dtype"], f"{what}: dtype"))
    if dtype is None:
        raise malformed(f"{what}: dtype is {_shown(given['dtype'])}: expected one of {', '.join(DTYPES)}")
    return array_of(dtype, given["shape"], given["data"], what)


def array_of(dtype: np.dtype[Any], shape: Any, data: Any, what: str) -> np.ndarray:
    """An array from its parts.

    Raises:
        WireError: the shape is none, or does not fit the data.
    """
    if not isinstance(shape, list):
        raise malformed(f"{what}: shape is {_kind(shape)}: expected a list")
    sides = cast("list[Any]", shape)
    if len(sides) > MAX_DIMS:
        raise malformed(f"{what}: shape has {len(sides)} axes: expected at most {MAX_DIMS}")
    lengths = [whole(side, f"{what}: shape[{i}]", 0, 2**31 - 1) for i, side in enumerate(sides)]
    if not isinstance(data, bytes):
        raise malformed(f"{what}: data is {_kind(data)}: expected bytes")
    wanted = math.prod(lengths) * dtype.itemsize
    if len(data) != wanted:
        raise malformed(f"{what}: data has {len(data)} bytes: expected {wanted}, {dtype.name} of shape {lengths}")
    return np.frombuffer(data, dtype).reshape(lengths)


def not_finite(values: np.ndarray) -> tuple[int, ...] | None:
    """Index of the first element that is NaN or infinite; None if there is none."""
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return None
    return tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])


def _kind(value: Any) -> str:
    return "nil" if value is None else f"a {type(value).__name__}"


def _shown(value: Any) -> str:
    return repr(value)[:60] if isinstance(value, str | int | float | bool) else _kind(value)
