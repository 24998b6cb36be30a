"""Cached stages of a long cell: folders made from each other, each once, and resumed after a stop."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from robotrl.config import TrainCfg, to_json
from robotrl.training import resume, train
from robotrl.utils.files import dump_json, read_json, replace_file

SCHEMA_VERSION = 1


def have(path: Path, settings: dict[str, Any], before: str, make: Callable[[], Any]) -> str:
    """Make a folder from these settings and predecessor, unless it exists; returns its mark.

    A file beside the folder records settings and mark, under another name while the folder is being made. An
    interrupted folder with the same settings and predecessor is kept, so that `make` can continue it; any other folder
    is removed.

    Args:
        path: path of the folder.
        settings: JSON values.
        before: mark of the predecessor.
        make: makes or completes the folder.
    """
    whole, begun = path.with_suffix(".json"), path.with_suffix(".begun.json")
    wanted = {"schema_version": SCHEMA_VERSION, "settings": json.loads(dump_json(settings)), "before": before}
    mark = _mark(whole, wanted)
    if mark is not None:
        return mark
    mark = _mark(begun, wanted)
    if mark is None:
        mark = uuid.uuid4().hex
        whole.unlink(missing_ok=True)
        begun.unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(begun, dump_json(wanted | {"mark": mark}))
    make()
    begun.replace(whole)
    return mark


def have_run(path: Path, cfg: TrainCfg[Any, Any], before: str) -> str:
    """Train a run of this config to its end, unless it exists; see `have`.

    It is saved after every iteration, and resumes from there.
    """
    return have(path, to_json(cfg), before, lambda: _train(_always_saved(cfg), path))


def _always_saved(cfg: TrainCfg[Any, Any]) -> TrainCfg[Any, Any]:
    return replace(cfg, checkpoint_every=1, checkpoint_every_env_steps=None)


def _train(cfg: TrainCfg[Any, Any], path: Path) -> None:
    if (path / "config.json").is_file():
        resume(path)
    else:
        train(cfg, path)


def _mark(note: Path, wanted: dict[str, Any]) -> str | None:
    if not note.is_file():
        return None
    found = read_json(note, "stage", SCHEMA_VERSION)
    mark = str(found.pop("mark"))
    return mark if found == wanted else None
