"""Inputs of a Gymnasium environment that a run records: modules, model files and vocabulary files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym

from robotrl.sims.gymnasium_sim.env_factory import bare, known_id
from robotrl.spec import Input

LARGEST_XML = 1 << 26
"""Largest MuJoCo XML, in bytes, that is searched for referenced files."""
MOST_FILES = 1000
"""Maximum number of files recorded for one model."""
_NAMED = re.compile(rb"""\bfile\w*\s*=\s*["']([^"']+)["']""")
_FOLDER = re.compile(rb"""\b(?:assetdir|meshdir|texturedir)\s*=\s*["']([^"']+)["']""")


def inputs_of(
    env_id: str, wrappers: Sequence[str], vocabulary: Sequence[str], kwargs: Mapping[str, Any] | None
) -> list[Input]:
    """Modules that register, define and wrap the environment, and files named in its options.

    Args:
        env_id: "Hopper-v5", or "module:ID".
        wrappers: "MODULE:CALLABLE" texts.
        vocabulary: words, or one "@FILE".
        kwargs: keyword arguments of the environment.
    """
    modules = {(module, "") for module in (env_id.rpartition(":")[0], _entry(env_id)) if module}
    modules |= {(name.strip().partition(":")[0], "wrapper") for name in wrappers}
    found = [Input(field, "module", module) for module, field in sorted(modules)]
    found += [
        Input("vocabulary", "file", str(Path(word[1:]).expanduser())) for word in vocabulary if word.startswith("@")
    ]
    for text in _texts(kwargs):
        found += [Input("kwargs", "file", str(path)) for path in _files(text)]
    return found


def _entry(env_id: str) -> str:
    """Module that defines an environment; "" for Gymnasium's own, since a run records Gymnasium's version."""
    entry = gym.spec(bare(known_id(env_id))).entry_point
    module = entry.partition(":")[0] if isinstance(entry, str) else entry.__module__ if entry is not None else ""
    return "" if module.split(".")[0] == "gymnasium" else module


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():  # pyright: ignore[reportUnknownVariableType]
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _texts(item)


def _files(text: str) -> list[Path]:
    """The file at path `text`, if it exists, and all files that it references if it is a MuJoCo model."""
    found: dict[Path, None] = {}
    pending = [Path(text).expanduser()]
    while pending and len(found) < MOST_FILES:
        path = pending.pop()
        if path in found or not _is_file(path):
            continue
        found[path] = None
        if path.suffix == ".xml" and path.stat().st_size <= LARGEST_XML:
            model = path.read_bytes()
            folders = [path.parent, *(path.parent / _path(name) for name in _FOLDER.findall(model))]
            pending += [folder / _path(name) for name in _NAMED.findall(model) for folder in folders]
    return sorted(found)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # not a valid path
        return False


def _path(name: bytes) -> str:
    return name.decode(errors="replace")
