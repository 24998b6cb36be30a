"""One cell of the VLA table: a clone, its fine-tuning, and the results.

`python -m benchmarks.vla.cell METHOD SEED OUT` writes OUT/result.json.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.kit.judging import curve, judge
from benchmarks.kit.stages import have_run
from benchmarks.vla.bench import DEMOS, METHODS, SIM, VAL, Method
from benchmarks.vla.stages import prepare, preset, spent_s
from robotrl.config import EvalCfg, TrainCfg, changed_options
from robotrl.errors import unknown
from robotrl.run.logs import read_scalars
from robotrl.utils.files import dump_json, replace_file
from robotrl.utils.peak_memory import PeakMemory

EPISODES = 256
ENOUGH = 0.97


def main(method: str, seed: int, out: Path) -> None:
    """Run one cell in this process.

    Raises:
        ConfigError: the method is unknown.
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    # beside the folders of all cells
    kept = out.parents[1] / "stages"
    replace_file(out / "result.json", dump_json(run_cell(METHODS[method], seed, out, kept)))


def run_cell(
    method: Method, seed: int, out: Path, kept: Path, frames: int = DEMOS, episodes: int = EPISODES
) -> dict[str, Any]:
    """Result of one cell.

    Args:
        method: a row of the table.
        seed: seed of demonstrations, clone and fine-tuning.
        out: a folder for the run, empty or with an interrupted run.
        kept: folder of the stages before fine-tuning, shared by all cells.
        frames: number of demonstrations for the pretraining stages.
        episodes: held-out starts of each evaluation.
    """
    began = time.perf_counter()
    folder = kept / f"{method.stages.label}-{seed}"
    base = prepare(method.stages, method.clone, seed, folder, frames)
    teaches = None if method.teacher is None else prepare(method.stages, method.teacher, seed, folder, frames)
    cfg = tune_cfg(method, seed, base.path, None if teaches is None else teaches.path)
    before = base.mark if teaches is None else f"{base.mark} {teaches.mark}"
    options = changed_options(cfg.sim)
    held_out = {**options, "compositions": "held-out"}
    with PeakMemory() as memory:
        have_run(out / "tuned", cfg, before)
    log = read_scalars(out / "tuned" / "scalars.jsonl")
    return {
        "base": judge(base.path, "latest", SIM, seed, episodes, options)._asdict(),
        "held_out_base": judge(base.path, "latest", SIM, seed, episodes, held_out)._asdict(),
        "teacher": None if teaches is None else judge(teaches.path, "latest", SIM, seed, episodes, options)._asdict(),
        "success": judge(out / "tuned", "best", SIM, seed, episodes, options)._asdict(),
        "held_out_success": judge(out / "tuned", "best", SIM, seed, episodes, held_out)._asdict(),
        "curve": curve(log),
        "env_steps": log[-1]["env_steps"],
        "train_s": log[-1]["learn_s"],
        "clone_s": spent_s(base.path),
        "ratio_error": max((row["ratio_error"] for row in log if "ratio_error" in row), default=None),
        "peak_memory_mib": memory.mib,
        "wall_s": time.perf_counter() - began,
    }


def tune_cfg(method: Method, seed: int, base: Path, teaches: Path | None) -> TrainCfg[Any, Any]:
    """Fine-tuning config of a clone: the preset, evaluated as deployed."""
    cfg = preset(method.tune)
    cfg = replace(cfg, algo=replace(cfg.algo, lr_end=method.lr_end))
    if teaches is not None:
        cfg = replace(cfg, algo=replace(cfg.algo, teacher=str(teaches)))
    return replace(
        cfg,
        init_from=str(base),
        init_changes=method.changes,
        seed=seed,
        stop_at_success=ENOUGH,
        evaluation=EvalCfg(every=5, episodes=VAL, num_envs=96, animation=0),
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
