"""Strict conversion between JSON and frozen dataclasses; errors name an unknown, missing or mistyped field.

Supported field types: str, int, float, bool, `X | None`, `Literal[...]`, `tuple[X, ...]`, `dict[str, X]`, nested
dataclasses and `TransformGroup`. Numbers keep full precision (Python writes the shortest text that reads back equal).
"""

from __future__ import annotations

import json
import math
import reprlib
import types
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from robotrl.errors import DataError, nearest, short
from robotrl.transforms import TransformGroup

T = TypeVar("T")
MAX_DEPTH = 32
_REPR = reprlib.Repr()
"""Shortens values in errors: their start and a few levels, since a file's values may be long or deep."""
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 60


def loads(text: bytes, what: str) -> dict[str, Any]:
    """Parse one JSON object.

    Args:
        text: UTF-8 JSON.
        what: name of the document in errors ("manifest.json").

    Raises:
        DataError: not JSON, not an object, a repeated key, or a NaN or infinite number.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, value in pairs:
            if key in out:
                raise DataError(f"{what}: field {short(repr(key))} appears twice")
            out[key] = value
        return out

    def constant(name: str) -> Any:
        raise DataError(f"{what}: number {name} is not allowed: expected finite numbers (null stands for 'no bound')")

    try:
        data = json.loads(text.decode("utf-8"), object_pairs_hook=unique, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{what}: not readable as JSON: {short(str(error))}") from error
    if not isinstance(data, dict):
        raise DataError(f"{what}: holds a {type(data).__name__}: expected an object")
    return cast("dict[str, Any]", data)


def dumps(value: Any) -> bytes:
    """Write a dataclass as indented UTF-8 JSON, keys in the order of its fields, ending in a newline."""
    return (json.dumps(to_json(value), indent=1, allow_nan=False) + "\n").encode()


def canonical(data: dict[str, Any]) -> bytes:
    """Canonical text of a JSON object, for hashing: sorted keys, no spaces."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def to_json(value: Any) -> Any:
    """Plain JSON values of a dataclass, or of any supported field value."""
    if isinstance(value, TransformGroup):
        return to_json(value.to_json())
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in cast("list[Any]", value)]
    return value


def from_json(cls: type[T], data: Any, where: str) -> T:
    """Build an instance of dataclass `cls` from plain JSON values.

    Args:
        cls: a dataclass whose fields are of the supported types.
        data: result of `loads`.
        where: dotted path of this value, for errors.

    Raises:
        DataError: a field is unknown (the nearest valid name is given), missing, or of the wrong type.
    """
    return _dataclass(cls, data, where, 0)


def _dataclass(cls: type[T], data: Any, where: str, depth: int) -> T:
    if not isinstance(data, dict):
        raise _mistyped(where, data, "an object")
    given = cast("dict[str, Any]", data)
    known = {field.name: field for field in fields(cast("Any", cls))}
    for name in given:
        if name not in known:
            close = nearest(name, known)
            hint = f"did you mean {close!r}? " if close else ""
            raise DataError(f"{where}: field {short(repr(name))} is unknown: {hint}known: {', '.join(known)}")
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for name, field in known.items():
        if name in given:
            values[name] = _value(hints[name], given[name], f"{where}.{name}", depth + 1)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise DataError(f"{where}: field {name!r} is missing")
    return cls(**values)


def _value(kind: Any, data: Any, where: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise DataError(f"{where}: nested deeper than {MAX_DEPTH} levels")
    origin = get_origin(kind)
    if kind is TransformGroup:
        return _transforms(data, where)
    if is_dataclass(kind):
        return _dataclass(cast("type[Any]", kind), data, where, depth)
    if origin in (Union, types.UnionType):
        if data is None and type(None) in get_args(kind):
            return None
        (inner,) = (option for option in get_args(kind) if option is not type(None))
        return _value(inner, data, where, depth)
    if origin is Literal:
        return _choice(get_args(kind), data, where)
    if origin is tuple:
        if not isinstance(data, list):
            raise _mistyped(where, data, "a list")
        items = cast("list[Any]", data)
        return tuple(_value(get_args(kind)[0], item, f"{where}[{i}]", depth + 1) for i, item in enumerate(items))
    if origin is dict:
        if not isinstance(data, dict):
            raise _mistyped(where, data, "an object")
        entries = cast("dict[str, Any]", data)
        return {
            name: _value(get_args(kind)[1], item, f"{where}[{short(repr(name))}]", depth + 1)
            for name, item in entries.items()
        }
    return _scalar(kind, data, where)


def _scalar(kind: Any, data: Any, where: str) -> Any:
    # bool is a subclass of int, and people write 1 for 1.0: convert neither by accident.
    if kind is float and isinstance(data, int | float) and not isinstance(data, bool):
        try:
            number = float(data)
        except OverflowError as error:
            raise DataError(f"{where} is too large for a number") from error
        if not math.isfinite(number):
            raise DataError(f"{where} is {_short(data)}: expected a finite number")
        return number
    if kind is not float and type(data) is kind:
        return data
    names = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}
    raise _mistyped(where, data, names[kind])


def _choice(options: tuple[Any, ...], data: Any, where: str) -> Any:
    if isinstance(data, str) and data in options:
        return data
    close = nearest(data, [str(option) for option in options]) if isinstance(data, str) else None
    hint = f"did you mean {close!r}? " if close else ""
    raise DataError(f"{where} is {_short(data)}: {hint}expected one of {', '.join(map(str, options))}")


def _transforms(data: Any, where: str) -> TransformGroup:
    if not isinstance(data, dict):
        raise _mistyped(where, data, "an object")
    given = cast("dict[str, Any]", data)
    for name in given:
        if name not in ("inputs", "outputs"):
            raise DataError(f"{where}: field {short(repr(name))} is unknown: known: inputs, outputs")
    for side in ("inputs", "outputs"):
        items = given.get(side)
        if not isinstance(items, list):
            raise DataError(f"{where}: field {side!r} is missing or not a list")
        for i, item in enumerate(cast("list[Any]", items)):
            _check_transform(item, f"{where}.{side}[{i}]")
    try:
        return TransformGroup.from_json(given)
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{where}: {short(str(error), 240)}") from error


def _check_transform(item: Any, where: str) -> None:
    if not isinstance(item, dict):
        raise _mistyped(where, item, "an object")
    given = cast("dict[str, Any]", item)
    widths: set[int] = set()
    for name, value in given.items():
        if name in ("scale", "offset", "low", "high"):
            if not isinstance(value, list):
                raise _mistyped(f"{where}.{short(name)}", value, "a list")
            numbers = [_scalar(float, v, f"{where}.{name}[{i}]") for i, v in enumerate(cast("list[Any]", value))]
            widths.add(len(numbers))
        elif name == "where":
            _choice(("graph", "host"), value, f"{where}.where")
        elif not isinstance(value, str):
            raise _mistyped(f"{where}.{short(name)}", value, "a string")
    if len(widths) > 1:
        raise DataError(f"{where}: its lists differ in length: {sorted(widths)}")


def _mistyped(where: str, data: Any, expected: str) -> DataError:
    return DataError(f"{where} is {_short(data)}: expected {expected}")


def _short(data: Any) -> str:
    return short(_REPR.repr(data), 60)
