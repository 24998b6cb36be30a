"""One cell of the fine-tuning table: demonstrations, base policy, fine-tuning, and the results.

`python -m benchmarks.finetune.cell METHOD TASK SEED OUT` writes OUT/result.json.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.finetune.bench import DEFAULTS, METHODS, TASKS, VAL, Method, Task
from benchmarks.kit.judging import curve, judge
from robotrl.cli.commands.train import config_of
from robotrl.config import EvalCfg, SimCfg, TrainCfg, changed_options
from robotrl.errors import unknown
from robotrl.fn.stats import Interval
from robotrl.rollout.demos import DemoReport, collect_demos
from robotrl.run.logs import read_scalars
from robotrl.training import train
from robotrl.utils.files import dump_json, replace_file
from robotrl.utils.peak_memory import PeakMemory

WEAK_UPDATES = 60
"""Gradient steps of the clone that hardly ever succeeds."""
EPISODES = 256
POINTS = 32
"""Approximate number of evaluations of a curve."""
ENOUGH = 0.99
"""Success rate that ends a run when two evaluations in a row reach it."""
EVALUATIONS = ("acting_evaluations", "update_evaluations")
"""Logged counts of rows through the policy's network; methods that use other networks have none."""


def main(method: str, task: str, seed: int, out: Path) -> None:
    """Run one cell in this process.

    Raises:
        ConfigError: the method or the task is unknown.
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if task not in TASKS:
        raise unknown("task", task, TASKS)
    replace_file(out / "result.json", dump_json(run_cell(METHODS[method], TASKS[task], seed, out)))


def run_cell(method: Method, task: Task, seed: int, out: Path, episodes: int = EPISODES) -> dict[str, Any]:
    """Result of one cell.

    Args:
        method: a row of the table.
        task: sizes and settings of the task.
        seed: seed of demonstrations, clone and fine-tuning.
        out: an empty folder for demonstrations and runs.
        episodes: held-out starts of the final evaluation.
    """
    began = time.perf_counter()
    demos = demos_of(task, seed, out)
    base: Interval | None = None
    if method.base is not None:
        train(base_cfg(method, task, seed, demos.path), out / "base")
        base = judge(out / "base", "latest", task.sim, seed, episodes)
    with PeakMemory() as memory:
        train(tune_cfg(method, task, seed, out), out / "tuned")
    log = read_scalars(out / "tuned" / "scalars.jsonl")
    last = log[-1]
    return {
        "base": None if base is None else base._asdict(),
        "success": judge(out / "tuned", "best", task.sim, seed, episodes)._asdict(),
        "curve": curve(log),
        "env_steps": last["env_steps"],
        "train_s": last["learn_s"],
        "compile_s": last.get("compile_s", 0.0),
        "sim_share": last.get("sim_share"),
        "network_evaluations": sum(row.get(name, 0.0) for row in log for name in EVALUATIONS) or None,
        "peak_memory_mib": memory.mib,
        "wall_s": time.perf_counter() - began,
    }


def demos_of(task: Task, seed: int, out: Path) -> DemoReport:
    """Record the demonstrations of a task in `out/demos`."""
    return collect_demos(
        task.sim,
        out / "demos",
        episodes=task.demos,
        noise=task.noise,
        episode_noise=task.episode_noise,
        seed=seed,
        sim_options=dict(task.options),
    )


def base_cfg(method: Method, task: Task, seed: int, dataset: Path) -> TrainCfg[Any, Any]:
    """Cloning config of the base policy."""
    kind = str(method.base)
    cfg = config_of(f"{DEFAULTS} bc --policy {kind}")
    cfg = replace(cfg, algo=replace(cfg.algo, updates=WEAK_UPDATES if method.edge else task.updates[kind]))
    if method.denoising_steps is not None:
        cfg = replace(cfg, policy=replace(cfg.policy, denoising_steps=method.denoising_steps))
    return replace(cfg, sim=sim_of(cfg, task), dataset=str(dataset), seed=seed)


def tune_cfg(method: Method, task: Task, seed: int, out: Path) -> TrainCfg[Any, Any]:
    """Fine-tuning config: the recipe with the cell's sim, budget and evaluations."""
    cfg = config_of(method.tune)
    alone = method.base is None
    if method.clip_coef is not None:
        cfg = replace(cfg, algo=replace(cfg.algo, clip_coef=method.clip_coef))
    cfg = replace(
        cfg,
        sim=sim_of(cfg, task),
        algo=replace(cfg.algo, env_steps=round(method.budget * task.env_steps)),
        init_from=None if alone else str(out / "base"),
        # off-policy methods without a base learn from the same demonstrations, unless they test learning without
        dataset=str(out / "demos") if method.demos or (alone and not method.edge) else None,
        seed=seed,
        stop_at_success=ENOUGH,
    )
    return replace(cfg, evaluation=EvalCfg(every=every(cfg, task), episodes=VAL, animation=0))


def sim_of(cfg: TrainCfg[Any, Any], task: Task) -> SimCfg:
    """A recipe's sim config, with the task's sim."""
    return replace(cfg.sim, name=task.sim, options={**changed_options(cfg.sim), **task.options})


def every(cfg: TrainCfg[Any, Any], task: Task) -> int:
    """Iterations between two evaluations, so that a curve over a task's whole budget has about `POINTS`."""
    return max(1, round(task.env_steps / (cfg.algo.num_steps * cfg.sim.num_envs) / POINTS))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
