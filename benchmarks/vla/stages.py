"""Stages before fine-tuning on the tabletop, made once per kind of policy and seed.

Cells that start from the same clone share one folder with the demonstrations and a run per stage. An interrupted run is
resumed; a stage with changed settings is made again, with all later stages.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.kit.stages import have, have_run
from benchmarks.vla.bench import DEMOS, NOISE, SIM, Clone, Stages
from robotrl.cli.commands.train import config_of
from robotrl.config import TrainCfg, changed_options
from robotrl.engine.autocast import pays_in_bf16
from robotrl.rollout.demos import collect_demos
from robotrl.run.logs import read_scalars

LOOK, READ = "look", "read"
Cfg = TrainCfg[Any, Any]
_FLOW = "--policy flow-vla --policy.deploy-noise 0"
_SRPO = "tabletop-grpo --algo.progress embedding --algo.keep-by reward"
RECIPES = {
    "look": "tabletop-vision",
    "look-flow": f"tabletop-vision {_FLOW}",
    "read": "tabletop-grounding",
    "read-flow": f"tabletop-grounding {_FLOW}",
    "bc-token": "tabletop-bc-token",
    "bc-flow": "tabletop-bc-flow",
    "grpo": "tabletop-grpo",
    "grpo-return": "tabletop-grpo --sim.reward shaped --algo.iterations 80 --algo.progress return"
    " --algo.keep-by reward",
    "srpo": _SRPO,
    "srpo-places": f"{_SRPO} --algo.encoder places:state,meant --algo.embed end",
    "opd": "tabletop-grpo --algo opd --algo.iterations 100 --algo.lr 2e-4 --algo.muon 2.5 --algo.ema 0.98",
    "flow-grpo": "tabletop-flow-grpo",
    "reinflow": "tabletop-reinflow",
}
"""Stage or method to the arguments of `robotrl train`."""


class Made(NamedTuple):
    """A finished clone."""

    path: Path
    """Directory of its run."""
    mark: str
    """Mark that changes if the clone is made again; see `benchmarks.kit.stages.have`."""


def prepare(stages: Stages, wanted: Clone, seed: int, folder: Path, frames: int = DEMOS) -> Made:
    """Make a clone and all stages before it, unless they exist; returns its run.

    Args:
        stages: the stages.
        wanted: the clone.
        seed: seed of demonstrations and of every stage.
        folder: folder of all stages.
        frames: number of demonstrations for the pretraining stages.
    """
    look, read, clone = configs(stages, wanted, seed, folder, frames)
    seen, shown = (_demos(folder, count, seed, clone) for count in (frames, wanted.demos))
    looked = have_run(folder / LOOK, look, seen)
    has_read = have_run(folder / READ, read, looked)
    path = folder / clone_name(wanted)
    return Made(path, have_run(path, clone, f"{has_read} {shown}"))


def configs(stages: Stages, wanted: Clone, seed: int, folder: Path, frames: int = DEMOS) -> tuple[Cfg, Cfg, Cfg]:
    """Configs of the stages: vision pretraining, grounding, cloning; see `prepare`."""
    common: dict[str, Any] = {"dataset": str(folder / demos_name(frames)), "seed": seed}
    look, read, clone = (preset(name, stages.bf16) for name in (stages.look, stages.read, stages.clone))
    look = replace(look, **common)
    read = replace(read, init_from=str(folder / LOOK), **common)
    shown = str(folder / demos_name(wanted.demos))
    clone = replace(clone, dataset=shown, init_from=str(folder / READ), seed=seed)
    return look, read, replace(clone, algo=replace(clone.algo, updates=wanted.updates))


def preset(name: str, bf16: bool = False) -> Cfg:
    """Config of a stage or method, with or without bfloat16; never with it where it is slow."""
    cfg: Cfg = config_of(RECIPES[name])
    return replace(cfg, algo=replace(cfg.algo, bf16=bf16 and pays_in_bf16()))


def clone_name(wanted: Clone) -> str:
    """Folder name of a clone's run."""
    return f"clone-{wanted.demos}-{wanted.updates}"


def demos_name(episodes: int) -> str:
    """Folder name of a set of demonstrations."""
    return f"demos-{episodes}"


def spent_s(clone: Path) -> float:
    """Training time of a clone and all stages before it, s."""
    runs = (clone.parent / LOOK, clone.parent / READ, clone)
    return sum(read_scalars(run / "scalars.jsonl")[-1]["learn_s"] for run in runs)


def _demos(folder: Path, episodes: int, seed: int, cfg: Cfg) -> str:
    """Record demonstrations unless they exist; returns their mark."""
    data = {"episodes": episodes, "noise": NOISE, "seed": seed, "options": changed_options(cfg.sim)}
    path = folder / demos_name(episodes)
    return have(path, data, "", lambda: _record(path, data))


def _record(path: Path, data: dict[str, Any]) -> None:
    shutil.rmtree(path, ignore_errors=True)  # recording cannot be resumed
    options = data["options"]
    collect_demos(SIM, path, episodes=data["episodes"], noise=data["noise"], seed=data["seed"], sim_options=options)
