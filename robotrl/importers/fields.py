"""Typed access to fields of third-party JSON; errors name the file and the field.

`where` is the object's name in errors, e.g. "DIR/config.json". An absent field takes its default, if there is one; null
is refused like any other invalid value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from robotrl.errors import DataError, nearest

LONGEST = 100
"""Characters of a value in an error."""


def whole(
    where: Path | str, data: Mapping[str, Any], name: str, default: int | None = None, least: int | None = 1
) -> int:
    """An integer field, `least` or more.

    Raises:
        DataError: it is no integer, or smaller.
    """
    value = _found(where, data, name, default, kind := "a whole number")
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(where, name, value, kind)
    if least is not None and value < least:
        raise wrong(where, name, value, f"{least} or more")
    return value


def positive(where: Path | str, data: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A field with a finite number above 0.

    Raises:
        DataError: it is something else.
    """
    value = _found(where, data, name, default, kind := "a number above 0")
    if not is_number(value) or value <= 0:
        raise wrong(where, name, value, kind)
    return float(value)


def text(where: Path | str, data: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A string field.

    Raises:
        DataError: it is no string.
    """
    return _of_kind(where, data, name, default, str, "a text")


def listed(where: Path | str, data: Mapping[str, Any], name: str) -> list[Any]:
    """A list field.

    Raises:
        DataError: it is no list.
    """
    return _of_kind(where, data, name, None, list, "a list")


def mapped(
    where: Path | str, data: Mapping[str, Any], name: str, default: dict[str, Any] | None = None
) -> dict[str, Any]:
    """An object field.

    Raises:
        DataError: it is no object.
    """
    return _of_kind(where, data, name, default, dict, "an object")


def fixed(where: Path | str, data: Mapping[str, Any], table: Mapping[str, Any]) -> None:
    """Check that fields are absent or have the only supported value.

    Raises:
        DataError: a field has another value.
    """
    for name, wanted in table.items():
        if data.get(name, wanted) != wanted:
            raise wrong(where, name, data[name], repr(wanted))


def known(where: Path | str, data: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse unknown fields, since their settings would be ignored.

    Raises:
        DataError: there is an unknown field.
    """
    names = sorted(names)
    for name in data:
        if name not in names:
            close = nearest(name, names)
            hint = f"did you mean {close!r}? " if close else ""
            raise DataError(f"{where}: field {name!r} is unknown: {hint}known: {', '.join(names) or '(none)'}")


def numbers(where: Path | str, data: Mapping[str, Any], name: str) -> tuple[float, ...]:
    """A field with a list of finite numbers.

    Raises:
        DataError: it is something else.
    """
    found = listed(where, data, name)
    for column, value in enumerate(found):
        if not is_number(value):
            raise wrong(where, f"{name} of column {column}", value, "a finite number")
    return tuple(float(value) for value in found)


def is_number(value: object) -> TypeGuard[float]:
    """Tell whether a JSON value is a finite number; booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def wrong(where: Path | str, name: str, value: object, expected: str) -> DataError:
    """The error for an invalid field, with its value shortened."""
    said = repr(value)
    short = said if len(said) < LONGEST else f"{said[: LONGEST - 3]}..."
    return DataError(f"{where}: {name} is {short}: expected {expected}")


def _found(where: Path | str, data: Mapping[str, Any], name: str, default: Any, kind: str) -> Any:
    if name in data:
        return data[name]
    if default is None:
        raise DataError(f"{where}: {name} is missing: expected {kind}")
    return default


def _of_kind(where: Path | str, data: Mapping[str, Any], name: str, default: Any, kind: type, said: str) -> Any:
    value = _found(where, data, name, default, said)
    if not isinstance(value, kind):
        raise wrong(where, name, value, said)
    return value
