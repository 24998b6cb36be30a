"""One method in log-only mode, from a budget of episodes: `python -m benchmarks.improve.log_only NAME TASK SEED OUT`.

Nobody chooses starts, and success is told at the end of an episode. A method learns from the clone's episodes, or from
its own while it learns; then the sim's reward, which is that success, is shown.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.finetune.bench import TASKS
from benchmarks.finetune.cell import sim_of
from benchmarks.improve.cell import ENVS, verdict
from benchmarks.improve.clones import Clone, cloned, rate
from benchmarks.improve.plan import EPISODES, LOG_ONLY, LogOnlyMethod, Rounds, Way, log_only_method
from benchmarks.improve.rounds import in_rounds
from benchmarks.kit.stages import have, have_run
from robotrl.cli.commands.train import config_of
from robotrl.config import EvalCfg, TrainCfg
from robotrl.datasets.merging import merge
from robotrl.datasets.reader import read_dataset
from robotrl.errors import CapabilityError, unknown
from robotrl.improve.collecting import collect
from robotrl.improve.pieces import write_episodes
from robotrl.improve.target import read_target
from robotrl.run.logs import read_scalars
from robotrl.training import train
from robotrl.utils.files import dump_json, replace_file

CHECKPOINT_EVERY = 8
"""Iterations between two checkpoints of a method that learns while it drives: the last one before the budget is used up
is judged."""
LONGEST_STEPS = 1_000
"""More steps than any episode has."""


class Learned(NamedTuple):
    """Result of a method."""

    run: Path
    seconds: float
    """Time of collecting, where the method does it, and learning."""


def main(name: str, task: str, seed: int, out: Path) -> None:
    """Run one cell in this process.

    Raises:
        ConfigError: name or task are unknown.
    """
    methods = {log_only_method(method): method for method in LOG_ONLY}
    if name not in methods:
        raise unknown("method in log-only mode", name, methods)
    if task not in TASKS:
        raise unknown("task", task, TASKS)
    found = run_cell(LOG_ONLY[methods[name]], cloned(TASKS[task], seed, out))
    replace_file(out / "result.json", dump_json(found))


def run_cell(method: LogOnlyMethod, clone: Clone, episodes: int = EPISODES, changes: str = "") -> dict[str, Any]:
    """Let a method learn from a budget of episodes, and judge it beside the clone outside of log-only mode.

    Args:
        method: the method.
        clone: the clone.
        episodes: the budget.
        changes: further arguments of `robotrl train`, for methods that it trains.
    """
    if method.way == "improve":
        learned = by_improve(method, clone, episodes)
    else:
        learned = _WAYS[method.way](method, clone, episodes, changes)
    base, success = clone.success(clone.run), clone.success(learned.run)
    return {
        "base": rate(base),
        "success": rate(success),
        "verdict": verdict(success, base),
        "episodes": episodes,
        "learn_s": learned.seconds,
    }


def by_improve(method: LogOnlyMethod, clone: Clone, episodes: int) -> Learned:
    """One round of `robotrl improve`; where the gate refuses the candidate, the clone stays."""
    plan = Rounds(method.label, method.name, 1, episodes, (), method.settings)
    improved = in_rounds(plan, clone, {"log_only": {"episodes": episodes}})
    return Learned(Path(improved.state.policy), sum(improved.seconds.values()))


def offline(method: LogOnlyMethod, clone: Clone, episodes: int, changes: str) -> Learned:
    """Train on episodes of the clone, and the demonstrations."""
    logs, both = clone.out / "logs", clone.out / "logs-and-demos"

    def drive() -> None:
        target = read_target(clone.run, options={"log_only": {"episodes": episodes}})
        write_episodes(logs, collect(clone.run, target, episodes, clone.seed, min(ENVS, episodes)).episodes, target)

    def join() -> None:
        shutil.rmtree(both, ignore_errors=True)
        merge([read_dataset(logs), read_dataset(str(clone.demos))], both)

    mark = have(logs, {"episodes": episodes}, clone.mark, drive)
    mark = have(both, {}, mark, join)
    cfg = replace(cfg_of(method, clone, changes), dataset=str(both))
    run = clone.out / "learned"
    have_run(run, replace(cfg, sim=sim_of(cfg, clone.task)), mark)
    return Learned(run, learn_s(run))


def online(method: LogOnlyMethod, clone: Clone, episodes: int, changes: str) -> Learned:
    """Train while it drives, until the budget is used up; a stopped training begins anew, with its budget."""
    options = {**clone.task.options, "log_only": {"episodes": episodes, "shows_reward": True}}
    cfg = cfg_of(method, clone, changes)
    cfg = replace(
        cfg,
        sim=sim_of(cfg, clone.task._replace(options=options)),
        dataset=str(clone.demos) if method.demos else None,
        # no episode is as long as all of them together: the budget ends it
        algo=replace(cfg.algo, env_steps=episodes * LONGEST_STEPS),
        checkpoint_every=CHECKPOINT_EVERY,
        checkpoint_every_env_steps=None,
    )
    run = clone.out / "learned"

    def learn() -> None:
        shutil.rmtree(run, ignore_errors=True)
        until_used_up(cfg, run)

    have(run, {"method": method.name, "episodes": episodes}, clone.mark, learn)
    return Learned(run, learn_s(run))


def until_used_up(cfg: TrainCfg[Any, Any], run: Path) -> None:
    """Train until no episode of the budget is left.

    Raises:
        CapabilityError: the training cannot be done in log-only mode.
    """
    try:
        train(cfg, run)
    except CapabilityError as error:
        if "used up" not in str(error):
            raise


def cfg_of(method: LogOnlyMethod, clone: Clone, changes: str) -> TrainCfg[Any, Any]:
    """Training config of a method, without evaluations: by none of them may anything be chosen."""
    flags = " ".join(f"--{path.replace('_', '-')} {value}" for path, value in method.settings.items())
    words = f"{method.name} {flags} {changes}"
    print(f"robotrl train {words}", flush=True)
    return replace(
        config_of(words),
        init_from=str(clone.run) if method.begins else None,
        evaluation=EvalCfg(every=0, episodes=0, animation=0),
        seed=clone.seed,
    )


def learn_s(run: Path) -> float:
    """Seconds that a run learned, without its beginning."""
    return float(read_scalars(run / "scalars.jsonl")[-1]["learn_s"])


_WAYS: dict[Way, Callable[[LogOnlyMethod, Clone, int, str], Learned]] = {"offline": offline, "online": online}

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]).resolve())
