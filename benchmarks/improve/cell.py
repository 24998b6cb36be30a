"""One cell of the table of improvement: `python -m benchmarks.improve.cell TASK SEED OUT`."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import robotrl
from benchmarks.finetune.bench import DEFAULTS, METHODS, TASKS, Method, Task
from benchmarks.finetune.cell import base_cfg, demos_of, sim_of
from benchmarks.improve.bench import DETECT, ROLLOUTS
from robotrl.algos.pa_rl import PaRlCfg
from robotrl.cli.commands.train import config_of
from robotrl.config import TrainCfg
from robotrl.datasets.merging import merge
from robotrl.datasets.reader import read_dataset
from robotrl.datasets.writer import DatasetWriter
from robotrl.errors import unknown
from robotrl.fn.evidence.sequential import PairedTest, decide, interval
from robotrl.fn.stats import wilson
from robotrl.learners.critics.stored import with_critic
from robotrl.registry import make_sim
from robotrl.rollout.demos import add_recorded, integer_rate_hz, plain_name
from robotrl.rollout.evaluate import Episode, actor_for, evaluate, run_episodes
from robotrl.run.logs import read_scalars
from robotrl.run.policy_checkpoint import load_policy
from robotrl.spec import VecSim
from robotrl.training import train
from robotrl.utils.files import dump_json, replace_file

BASE = "reinflow"
"""Row of the table of fine-tuning whose clone is improved."""
STARTS = 256
"""Starts of split `test` that judge."""
ENVS = 64


class Sizes(NamedTuple):
    """Sizes of a cell."""

    rollouts: int = ROLLOUTS
    starts: int = STARTS
    algo: PaRlCfg = PaRlCfg()
    """Settings of PA-RL; the clone of successes gets as many updates."""


WHOLE = Sizes()


def main(task: str, seed: int, out: Path) -> None:
    """Run one cell in this process.

    Raises:
        ConfigError: the task is unknown.
    """
    if task not in TASKS:
        raise unknown("task", task, TASKS)
    replace_file(out / "result.json", dump_json(run_cell(TASKS[task], seed, out)))


def run_cell(task: Task, seed: int, out: Path, sizes: Sizes = WHOLE, base: Method = METHODS[BASE]) -> dict[str, Any]:
    """Clone, record, improve, and judge all policies on the same starts.

    Args:
        task: a task of the table of fine-tuning.
        seed: seed of everything.
        out: an empty folder for datasets and runs.
        sizes: sizes of the cell.
        base: row of the table of fine-tuning whose clone is improved.
    """
    began = time.perf_counter()
    demos = demos_of(task, seed, out).path
    cloning = base_cfg(base, task, seed, demos)
    train(cloning, out / "base")
    sim: Any = make_sim(task.sim, num_envs=min(ENVS, sizes.rollouts), seed=seed, **dict(task.options))
    episodes = rollouts(out / "base", task, seed, sim, sizes.rollouts)
    write(episodes, task, seed, sim, out / "logs")
    good = demos
    if won := [episode for episode in episodes if episode.success]:
        write(won, task, seed, sim, out / "won")
        good = merge([read_dataset(out / "won"), read_dataset(demos)], out / "good").path
    again = replace(cloning.algo, updates=sizes.algo.updates)
    train(replace(cloning, algo=again, init_from=str(out / "base"), dataset=str(good)), out / "successes")
    improving = time.perf_counter()
    train(improve_cfg(task, seed, out, sizes.algo), out / "improved")
    improve_s = time.perf_counter() - improving
    chooser: Any = with_critic(load_policy(out / "base", "latest"), out / "improved", sizes.algo.candidates)
    arms = {
        "base": load_policy(out / "base", "latest"),
        "successes": load_policy(out / "successes", "latest"),
        "best_of": chooser,
        "pa_rl": load_policy(out / "improved", "latest"),
    }
    found = {arm: evaluate(policy, sim, episodes=sizes.starts, seed=seed).success for arm, policy in arms.items()}
    last = read_scalars(out / "improved" / "scalars.jsonl")[-1]
    return {
        **{arm: wilson(int(success.sum()), len(success))._asdict() for arm, success in found.items()},
        "verdict": verdict(found["pa_rl"], found["successes"]),
        "heldout_rank": last.get("critic/heldout_rank"),
        "heldout_auc": last.get("critic/heldout_auc"),
        "logged_successes": len(won),
        "logged_frames": sum(episode.length for episode in episodes),
        "improve_s": improve_s,
        "wall_s": time.perf_counter() - began,
    }


def verdict(candidate: NDArray[np.bool_], baseline: NDArray[np.bool_]) -> dict[str, Any]:
    """Paired verdict on two policies on the same starts, in their order."""
    apart = candidate.astype(np.float64) - baseline.astype(np.float64)
    test = PairedTest(DETECT)
    low, high = interval(apart, test.detect, test.alpha)
    return {**decide(apart, test)._asdict(), "difference": float(apart.mean()), "low": low, "high": high}


def improve_cfg(task: Task, seed: int, out: Path, algo: PaRlCfg) -> TrainCfg[Any, Any]:
    """Training config of PA-RL on the cell's logs, with its demonstrations beside them."""
    cfg = config_of(f"{DEFAULTS} pa-rl")
    return replace(
        cfg,
        sim=sim_of(cfg, task),
        # success pays, whatever else the task's sim pays
        algo=replace(algo, demos=str(out / "demos"), rewards="success"),
        init_from=str(out / "base"),
        dataset=str(out / "logs"),
        seed=seed,
    )


def rollouts(run: Path, task: Task, seed: int, sim: Any, episodes: int) -> list[Episode]:
    """Rollouts of a run's policy on training starts, as it was trained: by samples."""
    ids = random.Random(f"rollouts {seed}").sample(sim.state_ids("train"), episodes)
    actor = actor_for(load_policy(run, "latest"), sim, "sample", seed)
    return run_episodes(actor, sim, ids, record=True, description=f"rollouts of {plain_name(task.sim)}")


def write(episodes: Sequence[Episode], task: Task, seed: int, sim: VecSim, out: Path) -> Path:
    """Write episodes as a dataset; returns its path."""
    with DatasetWriter(
        out,
        fps=integer_rate_hz(sim.control_dt_s),
        observation_spec=sim.observation_spec,
        action_spec=sim.action_spec,
        robot_type=task.sim,
        provenance={"sim": task.sim, "sim_options": dict(task.options), "seed": seed, "robotrl": robotrl.__version__},
    ) as writer:
        for episode in episodes:
            add_recorded(writer, episode, plain_name(task.sim), {})
        return writer.finish()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]).resolve())
