"""The clone that a long cell begins with, kept over stops, and success on the starts that judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.finetune.bench import METHODS, Task
from benchmarks.finetune.cell import base_cfg, demos_of
from benchmarks.improve.cell import BASE, ENVS, STARTS
from benchmarks.kit.stages import have, have_run
from robotrl.fn.stats import wilson
from robotrl.registry import make_sim
from robotrl.rollout.evaluate import evaluate
from robotrl.run.policy_checkpoint import load_policy


class Clone(NamedTuple):
    """A clone in a cell's folder."""

    task: Task
    seed: int
    out: Path
    """Folder of the cell."""
    run: Path
    demos: Path | None
    """Demonstrations that it was cloned from; None if there are none."""
    mark: str
    """Mark of its stage, see `benchmarks.kit.stages`."""
    starts: int = STARTS
    """Starts of split `test` that judge."""

    def success(self, policy: Any) -> NDArray[np.bool_]:
        """Success (n,) of a policy, or of that of a run, on the starts that judge."""
        sim = make_sim(self.task.sim, num_envs=min(ENVS, self.starts), seed=self.seed, **dict(self.task.options))
        try:
            driven = load_policy(policy) if isinstance(policy, Path) else policy
            return evaluate(driven, sim, episodes=self.starts, seed=self.seed).success
        finally:
            sim.close()


def cloned(task: Task, seed: int, out: Path, starts: int = STARTS) -> Clone:
    """Record demonstrations and clone them, unless a stopped cell has."""
    demos = out / "demos"
    settings = {**task._asdict(), "updates": dict(task.updates), "options": dict(task.options), "seed": seed}
    mark = have(demos, settings, "", lambda: demos_of(task, seed, out))
    mark = have_run(out / "base", base_cfg(METHODS[BASE], task, seed, demos), mark)
    return Clone(task, seed, out, out / "base", demos, mark, starts)


def rate(success: NDArray[np.bool_]) -> dict[str, float]:
    """Share of successes with its interval, as JSON values."""
    return wilson(int(success.sum()), len(success))._asdict()
