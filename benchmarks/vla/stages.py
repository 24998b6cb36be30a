"""What comes before fine-tuning on the tabletop, made once for each kind of policy and seed.

Cells that start from the same clone find it in one folder, which has the demonstrations and a run for each stage. A
run that a stop cut short goes on; what was made with other settings is made again, and so is what follows from it.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.kit.stages import have, have_run
from benchmarks.vla.bench import DEMOS, NOISE, SIM, Clone, Stages
from robotrl.config import TrainCfg, sim_options
from robotrl.engine.autocast import pays_in_bf16
from robotrl.registry import PRESETS
from robotrl.rollout.demos import collect_demos
from robotrl.run.logs import read_scalars

LOOK, READ = "look", "read"
Cfg = TrainCfg[Any, Any]


class Made(NamedTuple):
    """A clone that is there."""

    path: Path
    """Of its run."""
    mark: str
    """Another one if it is ever made again; see `kept.have`."""


def prepare(stages: Stages, wanted: Clone, seed: int, folder: Path, frames: int = DEMOS) -> Made:
    """The run of a clone, and all before it, made where it is not there.

    Args:
        stages: which.
        wanted: the clone.
        seed: of demonstrations and of every stage.
        folder: where all of it is.
        frames: demonstrations to look at and to read in.
    """
    look, read, clone = configs(stages, wanted, seed, folder, frames)
    seen, shown = (_demos(folder, count, seed, clone) for count in (frames, wanted.demos))
    looked = have_run(folder / LOOK, look, seen)
    has_read = have_run(folder / READ, read, looked)
    path = folder / clone_name(wanted)
    return Made(path, have_run(path, clone, f"{has_read} {shown}"))


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
    return replace(cfg, algo=replace(cfg.algo, bf16=bf16 and pays_in_bf16()))


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
    path = folder / demos_name(episodes)
    return have(path, data, "", lambda: _record(path, data))


def _record(path: Path, data: dict[str, Any]) -> None:
    shutil.rmtree(path, ignore_errors=True)  # of episodes there is no going on
    options = data["options"]
    collect_demos(SIM, path, episodes=data["episodes"], noise=data["noise"], seed=data["seed"], sim_options=options)
