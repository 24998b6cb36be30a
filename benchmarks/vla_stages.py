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

from robotrl.algos.half import SLOW, slowdown_in_bf16
from robotrl.benchmarks.vla import DEMOS, NOISE, SIM, Clone, Stages
from robotrl.config import TrainCfg, sim_options, to_json
from robotrl.data.demos import collect_demos
from robotrl.files import dump_json, read_json, replace_file
from robotrl.logs import read_scalars
from robotrl.registry import PRESETS
from robotrl.train import train

SCHEMA_VERSION = 1
LOOK, READ = "look", "read"
Cfg = TrainCfg[Any, Any]


def prepare(stages: Stages, wanted: Clone, seed: int, folder: Path, frames: int = DEMOS) -> Path:
    """The run of a clone, and all before it, made where it is not there.

    Args:
        stages: which.
        wanted: the clone.
        seed: of demonstrations and of every stage.
        folder: where all of it is.
        frames: demonstrations to look at and to read in.
    """
    folder.mkdir(parents=True, exist_ok=True)
    look, read, clone = configs(stages, wanted, seed, folder, frames)
    seen, shown = (_demos(folder, count, seed, clone) for count in (frames, wanted.demos))
    looked = _have(folder / LOOK, to_json(look), seen, partial(train, look))
    has_read = _have(folder / READ, to_json(read), looked, partial(train, read))
    name = clone_name(wanted)
    _have(folder / name, to_json(clone), f"{has_read} {shown}", partial(train, clone))
    return folder / name


def configs(stages: Stages, wanted: Clone, seed: int, folder: Path, frames: int = DEMOS) -> tuple[Cfg, Cfg, Cfg]:
    """How a policy looks, reads and is cloned; see `prepare`."""
    common: dict[str, Any] = {"dataset": str(folder / demos_name(frames)), "seed": seed}
    look, read, clone = (preset(name, stages.bf16) for name in (stages.look, stages.read, stages.clone))
    look = replace(look, **common)
    read = replace(read, init_from=str(folder / LOOK), **common)
    shown = str(folder / demos_name(wanted.demos))
    clone = replace(clone, dataset=shown, init_from=str(folder / READ), seed=seed)
    return look, read, replace(clone, algo=replace(clone.algo, updates=wanted.updates))


def preset(name: str, bf16: bool = False) -> Cfg:
    """A preset of the tabletop by the end of its name, learning in bfloat16 or not; never where that is slow."""
    cfg: Cfg = PRESETS.load(f"tabletop-{name}")()
    return replace(cfg, algo=replace(cfg.algo, bf16=bf16 and slowdown_in_bf16() <= SLOW))


def clone_name(wanted: Clone) -> str:
    """Of a clone's run."""
    return f"clone-{wanted.demos}-{wanted.updates}"


def demos_name(episodes: int) -> str:
    """Of a set of demonstrations."""
    return f"demos-{episodes}"


def spent_s(clone: Path) -> float:
    """Seconds that a clone and all before it learned."""
    runs = (clone.parent / LOOK, clone.parent / READ, clone)
    return sum(read_scalars(run / "scalars.jsonl")[-1]["learn_s"] for run in runs)


def _demos(folder: Path, episodes: int, seed: int, cfg: Cfg) -> str:
    """The mark of recorded demonstrations."""
    data = {"episodes": episodes, "noise": NOISE, "seed": seed, "options": sim_options(cfg.sim.options)}
    return _have(folder / demos_name(episodes), data, "", partial(_record, data=data))


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
