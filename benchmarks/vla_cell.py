"""One cell of the table of vision-language-action policies: demonstrations, clone, fine-tuning, and what came of it.

`python -m robotrl.benchmarks.vla_cell METHOD SEED OUT` leaves OUT/result.json.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from robotrl.benchmarks.judging import curve, judge
from robotrl.benchmarks.vla import DEMOS, METHODS, NOISE, SIM, Method
from robotrl.config import EvalCfg, TrainCfg, sim_options
from robotrl.data.demos import collect_demos
from robotrl.errors import unknown
from robotrl.files import dump_json, replace_file
from robotrl.fn.stats import Interval
from robotrl.logs import read_scalars
from robotrl.memory import PeakMemory
from robotrl.registry import PRESETS
from robotrl.train import train

EPISODES = 256
VAL = 192
"""Starts of each evaluation on the way, all at once."""
ENOUGH = 0.97


def main(method: str, seed: int, out: Path) -> None:
    """Run one cell in this process.

    Raises:
        ConfigError: the method is unknown.
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    replace_file(out / "result.json", dump_json(run_cell(METHODS[method], seed, out)))


def run_cell(method: Method, seed: int, out: Path, demos: int = DEMOS, episodes: int = EPISODES) -> dict[str, Any]:
    """The result of one cell.

    Args:
        method: a row of the table.
        seed: of demonstrations, clone and fine-tuning alike.
        out: an empty folder for demonstrations and runs.
        demos: episodes to clone.
        episodes: held-out starts of each judgement.
    """
    began = time.perf_counter()
    options = sim_options(preset(method.clone).sim.options)
    collect_demos(SIM, out / "demos", episodes=demos, noise=NOISE, seed=seed, sim_options=options)
    cloned = time.perf_counter()
    train(look_cfg(method.look, seed, out), out / "look")
    train(clone_cfg(method.clone, method.updates, seed, out), out / "base")
    clone_s = time.perf_counter() - cloned
    teacher: Interval | None = None
    if method.teacher_updates:
        train(clone_cfg(method.clone, method.teacher_updates, seed, out), out / "teacher")
        teacher = judge(out / "teacher", "latest", SIM, seed, episodes, options)
    with PeakMemory() as memory:
        train(tune_cfg(method, seed, out), out / "tuned")
    log = read_scalars(out / "tuned" / "scalars.jsonl")
    held_out = {**options, "compositions": "held-out"}
    return {
        "base": judge(out / "base", "latest", SIM, seed, episodes, options)._asdict(),
        "held_out_base": judge(out / "base", "latest", SIM, seed, episodes, held_out)._asdict(),
        "teacher": None if teacher is None else teacher._asdict(),
        "success": judge(out / "tuned", "best", SIM, seed, episodes, options)._asdict(),
        "held_out_success": judge(out / "tuned", "best", SIM, seed, episodes, held_out)._asdict(),
        "curve": curve(log),
        "env_steps": log[-1]["env_steps"],
        "train_s": log[-1]["learn_s"],
        "clone_s": clone_s,
        "ratio_error": max((row["ratio_error"] for row in log if "ratio_error" in row), default=None),
        "peak_memory_mib": memory.mib,
        "wall_s": time.perf_counter() - began,
    }


def preset(name: str) -> TrainCfg[Any, Any]:
    """A preset of the tabletop by the end of its name."""
    return PRESETS.load(f"tabletop-{name}")()


def look_cfg(name: str, seed: int, out: Path) -> TrainCfg[Any, Any]:
    """How a policy learns to look."""
    return replace(preset(name), dataset=str(out / "demos"), seed=seed)


def clone_cfg(name: str, updates: int, seed: int, out: Path) -> TrainCfg[Any, Any]:
    """How it is cloned."""
    cfg = preset(name)
    return replace(
        cfg,
        algo=replace(cfg.algo, updates=updates),
        init_from=str(out / "look"),
        dataset=str(out / "demos"),
        seed=seed,
    )


def tune_cfg(method: Method, seed: int, out: Path) -> TrainCfg[Any, Any]:
    """How it is fine-tuned: the preset, evaluated as deployed."""
    cfg = preset(method.tune)
    if method.teacher_updates:
        cfg = replace(cfg, algo=replace(cfg.algo, teacher=str(out / "teacher")))
    return replace(
        cfg,
        init_from=str(out / "base"),
        seed=seed,
        stop_at_success=ENOUGH,
        evaluation=EvalCfg(every=5, episodes=VAL, num_envs=96, animation=0),
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
