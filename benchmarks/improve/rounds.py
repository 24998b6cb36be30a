"""One cell of rounds through `robotrl improve`: `python -m benchmarks.improve.rounds NAME TASK SEED OUT`.

In each round the policy of that round drives further training starts, a candidate is fitted to all episodes so far, and
the gate of `robotrl improve` decides on it. A stopped cell goes on where it was.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.finetune.bench import TASKS
from benchmarks.improve.cell import ENVS, verdict
from benchmarks.improve.clones import Clone, cloned, rate
from benchmarks.improve.condition import condition_arms
from benchmarks.improve.plan import DEMOS, ROUNDS, Rounds
from robotrl.errors import unknown
from robotrl.improve.rounds import ImproveSettings, improve
from robotrl.improve.state import ImproveState, Stage
from robotrl.utils.files import dump_json, read_json, replace_file

SCHEMA_VERSION = 1


def main(name: str, task: str, seed: int, out: Path) -> None:
    """Run one cell in this process.

    Raises:
        ConfigError: name or task are unknown.
    """
    if name not in ROUNDS:
        raise unknown("rounds", name, ROUNDS)
    if task not in TASKS:
        raise unknown("task", task, TASKS)
    replace_file(out / "result.json", dump_json(run_cell(ROUNDS[name], cloned(TASKS[task], seed, out))))


def run_cell(plan: Rounds, clone: Clone) -> dict[str, Any]:
    """Improve a clone in rounds, and judge the policies of all rounds on the same starts."""
    improved = in_rounds(plan, clone)
    seen: dict[str, NDArray[np.bool_]] = {}

    def success(path: str) -> NDArray[np.bool_]:
        if path not in seen:
            seen[path] = clone.success(Path(path))
        return seen[path]

    rounds: list[dict[str, Any]] = []
    for record in improved.state.rounds:
        stays = record.candidate if record.accepted and record.candidate else record.policy
        rounds.append(
            {
                "episodes": record.episodes,
                "logged_successes": record.successes,
                "accepted": record.accepted,
                "why": record.why,
                "critic": record.critic,
                "before": rate(success(record.policy)),
                "candidate": None if record.candidate is None else rate(success(record.candidate)),
                "policy": rate(success(stays)),
                "seconds": improved.seconds.get(str(record.number), 0.0),
            }
        )
    last, base = success(improved.state.policy), success(str(clone.run))
    result: dict[str, Any] = {
        "base": rate(base),
        "success": rate(last),
        "verdict": verdict(last, base),
        "rounds": rounds,
        "stopped": improved.stopped,
        "command": improved.command,
    }
    if plan.condition:
        result["condition"] = condition_arms(improved.state, clone)
    return result


class Improved(NamedTuple):
    """Result of `robotrl improve`."""

    state: ImproveState
    seconds: Mapping[str, float]
    """Time of each round by its number, as text; stages that were stopped count from their new beginning."""
    stopped: int
    """Number of stages that were stopped on the way."""
    command: str
    """The same as a command."""


def in_rounds(plan: Rounds, clone: Clone, options: Mapping[str, Any] | None = None) -> Improved:
    """Improve a clone in rounds, or go on; prints the command.

    Args:
        plan: method and sizes.
        clone: the clone.
        options: options of the sim that override those of the clone's training.
    """
    out = clone.out / "improved"
    given = {name: str(clone.demos) if value == DEMOS else value for name, value in plan.settings.items()}
    settings = ImproveSettings(
        policy=clone.run,
        out=out,
        method=plan.method,
        rounds=plan.rounds,
        collect_episodes=plan.episodes,
        options=dict(options or {}),
        settings=given,
        seed=clone.seed,
        num_envs=min(ENVS, plan.episodes),
    )
    command = command_of(settings)
    print(command, flush=True)
    clock = StageClock(clone.out / "seconds.json")
    state, _ = improve(settings, clock)
    clock.finish()
    return Improved(state, clock.seconds, clock.stopped, command)


def command_of(settings: ImproveSettings) -> str:
    """The command that does the same."""
    words = ["robotrl", "improve", str(settings.policy), "--method", settings.method, "--out", str(settings.out)]
    words += ["--rounds", str(settings.rounds), "--collect-episodes", str(settings.collect_episodes)]
    words += ["--seed", str(settings.seed), "--num-envs", str(settings.num_envs)]
    for name, value in settings.options.get("log_only", {}).items():
        words += [f"--sim.log-only.{name.replace('_', '-')}", str(value)]
    if settings.settings:
        words += ["--set", *(f"{name}={value}" for name, value in settings.settings.items())]
    return shlex.join(words)


class StageClock:
    """Seconds of each round over all processes of a cell, called before each stage.

    Args:
        path: file that keeps them.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seconds: dict[str, float] = {}
        self.stopped = 0
        self._round: str | None = None
        if path.is_file():
            found = read_json(path, "seconds of rounds", SCHEMA_VERSION)
            self.seconds, self.stopped = found["seconds"], found["stopped"] + (found["open"] is not None)
        self._began = time.perf_counter()

    def __call__(self, number: int, stage: Stage) -> None:
        """End the stage of before, and begin one of this round."""
        del stage
        self._begin(str(number))

    def finish(self) -> None:
        """End the last stage."""
        self._begin(None)

    def _begin(self, number: str | None) -> None:
        now = time.perf_counter()
        if self._round is not None:
            self.seconds[self._round] = self.seconds.get(self._round, 0.0) + now - self._began
        self._round, self._began = number, now
        state = {"seconds": self.seconds, "open": number, "stopped": self.stopped}
        replace_file(self._path, dump_json({"schema_version": SCHEMA_VERSION, **state}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]).resolve())
