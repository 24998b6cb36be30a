"""Weight files of a published directory: a single file, or the shards of an index, checked against it."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from robotrl.errors import DataError
from robotrl.importers.fields import mapped, wrong
from robotrl.importers.files import read_json, unreadable

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


def weight_files(path: Path) -> list[Path]:
    """Find the weight files; the headers of shards are compared with the index.

    Raises:
        DataError: both a single file and an index exist; a file is missing or cannot be read; or the index contradicts
            the files.
    """
    if not (path / INDEX).exists():
        return [path / SINGLE]
    if (path / SINGLE).exists():
        raise DataError(f"{path} has both {SINGLE} and {INDEX}: expected one of them; which has the weights is open")
    listed = mapped(path / INDEX, read_json(path, INDEX), "weight_map")
    if not listed:
        raise wrong(path / INDEX, "weight_map", listed, "files by tensor")
    for tensor, name in listed.items():
        if not isinstance(name, str) or Path(name).name != name:
            raise wrong(path / INDEX, f"weight_map of {tensor}", name, "the name of a file beside it")
    files = [path / name for name in sorted(set(listed.values()))]
    found: dict[str, Path] = {}
    for file in files:
        for tensor in _names(file):
            if (first := found.setdefault(tensor, file)) != file:
                raise DataError(f"{path}: tensor {tensor!r} is in {first.name} and {file.name}: expected it in one")
    for tensor, file in sorted(found.items()):
        if listed.get(tensor) != file.name:
            raise DataError(f"{file}: tensor {tensor!r} is not listed there by {INDEX}")
    if lost := listed.keys() - found.keys():
        raise DataError(f"{path / INDEX}: tensor {min(lost)!r} is in {listed[min(lost)]}: expected it there")
    return files


def _names(file: Path) -> list[str]:
    """Names of a file's tensors, from its header."""
    try:
        with safe_open(file, framework="pt") as opened:
            return list(opened.keys())
    except (OSError, SafetensorError) as error:
        raise unreadable(file, "cannot be read", error) from error
