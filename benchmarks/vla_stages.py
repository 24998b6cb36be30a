"""What comes before fine-tuning on the tabletop, made once for each kind of policy and seed.

Cells that start from the same clone find it in one folder, which has the demonstrations and a run for each stage. What
a stop cut short, or what was made with other settings, is made again, and so is what follows from it.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from robotrl.benchmarks.vla import DEMOS, NOISE, SIM, Stages
from robotrl.config import TrainCfg, sim_options, to_json
from robotrl.data.demos import collect_demos
from robotrl.files import dump_json, read_json, replace_file
from robotrl.logs import read_scalars
from robotrl.registry import PRESETS
from robotrl.train import train

SCHEMA_VERSION = 1
LOOK, READ, DATA = "look", "read", "demos"
Cfg = TrainCfg[Any, Any]


def prepare(stages: Stages, updates: int, seed: int, folder: Path, demos: int = DEMOS) -> Path:
    """The run of a clone, and all before it, made where it is not there.

    Args:
        stages: which.
        updates: gradient steps of the clone.
        seed: of demonstrations and of every stage.
        folder: where all of it is.
        demos: episodes to clone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    look, read, clone = configs(stages, updates, seed, folder)
    data = {"episodes": demos, "noise": NOISE, "seed": seed, "options": sim_options(clone.sim.options)}
    before = _have(folder / DATA, data, "", lambda path: _record(path, data))
    for name, cfg in ((LOOK, look), (READ, read), (clone_name(updates), clone)):
        before = _have(folder / name, to_json(cfg), before, partial(train, cfg))
    return folder / clone_name(updates)


def configs(stages: Stages, updates: int, seed: int, folder: Path) -> tuple[Cfg, Cfg, Cfg]:
    """How a policy looks, reads and is cloned."""
    common: dict[str, Any] = {"dataset": str(folder / DATA), "seed": seed}
    look = replace(preset(stages.look), **common)
    read = replace(preset(stages.read), init_from=str(folder / LOOK), **common)
    clone = replace(preset(stages.clone), init_from=str(folder / READ), **common)
    return look, read, replace(clone, algo=replace(clone.algo, updates=updates))


def preset(name: str) -> Cfg:
    """A preset of the tabletop by the end of its name."""
    return PRESETS.load(f"tabletop-{name}")()


def clone_name(updates: int) -> str:
    """Of a clone's run."""
    return f"clone-{updates}"


def spent_s(clone: Path) -> float:
    """Seconds that a clone and all before it learned."""
    runs = (clone.parent / LOOK, clone.parent / READ, clone)
    return sum(read_scalars(run / "scalars.jsonl")[-1]["learn_s"] for run in runs)


def _record(path: Path, data: dict[str, Any]) -> None:
    options = data["options"]
    collect_demos(SIM, path, episodes=data["episodes"], noise=data["noise"], seed=data["seed"], sim_options=options)


def _have(path: Path, settings: dict[str, Any], before: str, make: Callable[[Path], Any]) -> str:
    """Have a folder that was made with these settings from what bears this mark; the mark that it bears itself.

    A file beside it says so, and is written when the folder is whole.
    """
    note = path.with_suffix(".json")
    wanted = {"schema_version": SCHEMA_VERSION, "settings": json.loads(dump_json(settings)), "before": before}
    if note.is_file():
        found = read_json(note, "stage", SCHEMA_VERSION)
        mark = str(found.pop("mark"))
        if found == wanted:
            return mark
    note.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
    make(path)
    mark = uuid.uuid4().hex
    replace_file(note, dump_json(wanted | {"mark": mark}))
    return mark
