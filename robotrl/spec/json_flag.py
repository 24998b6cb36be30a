"""Command-line flag of a config field that takes a JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tyro


def _parsed(words: list[str]) -> dict[str, Any] | None:
    if words[0] == "None":
        return None
    try:
        value = json.loads(words[0])
    except (ValueError, RecursionError) as error:  # RecursionError: thousands of nested brackets
        raise ValueError('expected a JSON object, e.g. {"size": 5}') from error
    if not isinstance(value, dict):
        raise ValueError('expected a JSON object, e.g. {"size": 5}')
    return value  # pyright: ignore[reportUnknownVariableType]


JSON_FLAG = tyro.constructors.PrimitiveConstructorSpec[Any](
    nargs=1,
    metavar="JSON",
    instance_from_str=_parsed,
    is_instance=lambda value: value is None or isinstance(value, Mapping),
    str_from_instance=lambda value: ["None" if value is None else json.dumps(value)],
)
"""Annotation of such a field: `Annotated[Mapping[str, Any] | None, JSON_FLAG]`."""
