"""Image normalization of a vision-language model, from its preprocessor files, which must agree."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from robotrl.errors import DataError
from robotrl.importers.fields import is_number
from robotrl.importers.files import read_json

PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
NESTED = "image_processor"
"""Entry in newer `PROCESSOR` files with the contents of the older `PREPROCESSOR` file."""
SHARES = 1 / 255
"""Scale of pixel values before normalization."""


class Pixels(NamedTuple):
    """Mean and std of each color, for pixels in [0, 1]."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def read_pixels(path: Path) -> Pixels:
    """Read the image normalization of a directory.

    Raises:
        DataError: no file has it, two files differ, or it is not three means and stds for pixels in [0, 1].
    """
    found = {where: _pixels(f"{path}/{where}", said) for where, said in _said(path).items() if "image_mean" in said}
    if not found:
        raise DataError(
            f"{path} has no image_mean in {PREPROCESSOR} or {PROCESSOR}: expected how pictures are normalised"
        )
    (first, pixels), *others = found.items()
    for where, other in others:
        for field, has, wanted in zip(Pixels._fields, other, pixels, strict=True):
            if has != wanted:
                raise DataError(
                    f"{path}/{where}: image_{field} is {list(has)}: expected {list(wanted)}, as {first} says; which of"
                    " the two holds is not known"
                )
    return pixels


def _said(path: Path) -> dict[str, Mapping[str, Any]]:
    """Image settings of each file."""
    found: dict[str, Mapping[str, Any]] = {}
    if (path / PREPROCESSOR).is_file():
        found[PREPROCESSOR] = read_json(path, PREPROCESSOR)
    if (path / PROCESSOR).is_file():
        whole = read_json(path, PROCESSOR)
        nested = whole.get(NESTED)
        if NESTED not in whole:
            found[PROCESSOR] = whole
        elif isinstance(nested, dict):
            # as in `transformers`: missing fields take the class's defaults, not the other file's values
            found[f"{PROCESSOR}: {NESTED}"] = {"image_mean": None, **nested}
        else:
            raise DataError(f"{path}/{PROCESSOR}: {NESTED} is {nested!r}: expected an object")
    return found


def _pixels(where: str, said: Mapping[str, Any]) -> Pixels:
    """Parse the image normalization of a file.

    Raises:
        DataError: pixels are not scaled to [0, 1], or means and stds are not three numbers each.
    """
    for field in ("do_rescale", "do_normalize"):
        if said.get(field, True) is not True:
            raise DataError(
                f"{where}: {field} is {said[field]!r}: expected true, pictures as shares of 255, normalised"
            )
    factor = said.get("rescale_factor", SHARES)
    if not is_number(factor) or abs(factor / SHARES - 1) > 1e-3:
        raise DataError(
            f"{where}: rescale_factor is {factor!r}: expected {SHARES:.6f}, pictures as shares of 255, normalised"
        )
    mean, std = (_three(where, field, said.get(field)) for field in ("image_mean", "image_std"))
    if min(std) <= 0:
        raise DataError(f"{where}: image_std is {list(std)}: expected three numbers above 0")
    return Pixels(mean, std)


def _three(where: str, field: str, value: Any) -> tuple[float, float, float]:
    row: list[Any] = value if isinstance(value, list) else []
    if len(row) != 3 or not all(is_number(x) for x in row):
        raise DataError(f"{where}: {field} is {value!r}: expected three numbers")
    return float(row[0]), float(row[1]), float(row[2])
