"""The filter of GR-RL on planted mistakes: `python -m benchmarks.improve.retries NAME TASK SEED OUT`.

In a third of the expert's demonstrations some steps are undone, and the expert does them again: such a retry succeeds,
and its undone steps are a mistake. The filter is the label `keep` of RECAP's value. Three policies are cloned: from all
frames, without those that the filter drops, and without as many random ones.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

import robotrl
from benchmarks.finetune.bench import DEFAULTS, METHODS, TASKS, Task
from benchmarks.finetune.cell import base_cfg, sim_of
from benchmarks.improve.cell import BASE, ENVS
from benchmarks.improve.clones import Clone, rate
from benchmarks.improve.plan import FILTER, FILTER_ARMS
from benchmarks.kit.stages import have, have_run
from robotrl.cli.commands.train import config_of
from robotrl.datasets.reader import Dataset, read_dataset
from robotrl.datasets.writer import DatasetWriter
from robotrl.errors import DataError, unknown
from robotrl.fn.evidence.critic_quality import held_out
from robotrl.fn.progress.metrics import rank_correlation, separation
from robotrl.labels.sidecar import labels_path, read_label, write_labels
from robotrl.registry import make_sim
from robotrl.rollout.demos import add_recorded, integer_rate_hz, plain_name
from robotrl.rollout.evaluate import Episode, ExpertActor, Turn, run_episodes
from robotrl.run.policy_checkpoint import load_policy
from robotrl.spec import Arrays
from robotrl.utils.files import dump_json, replace_file

NOISE, EPISODE_NOISE = 0.15, 0.3
"""Noise of the expert: less than in the table of fine-tuning, where it solves a fifth of the starts."""
LIMIT_S = 8.0
"""Time limit of a demonstration, in which undone steps can be done again."""
UNDONE_STEPS = 15
EARLIEST, LATEST = UNDONE_STEPS, 22
"""Steps of an episode between which the undoing begins; the expert needs some 25."""
SHARE = 3
"""One of so many starts has a mistake."""
TRIED = 3
"""Starts for each demonstration that is kept."""
FIRST, COUNT = "undone_first", "undone_count"
"""Columns of the episodes table: first undone frame (-1 without any), and their number."""
RANDOM = "random"


class FilterSizes(NamedTuple):
    """FilterSizes of a cell."""

    demos: int = 300
    clone_updates: int = 3_000
    value_updates: int = 3_000
    keep_delta: float = 0.04
    """Loss of progress within the next chunk above which the filter drops a frame. A chunk of four undone steps loses
    four steps and has to do them again: eight hundredths of an episode of a hundred steps."""


WHOLE = FilterSizes()

# demonstrations with planted mistakes


class RetryActor:
    """An expert whose last steps are undone in the episodes of some starts, once, after which it goes on.

    An action of these sims is a displacement of the hand, so that the opposite actions in the opposite order undo it.

    Args:
        expert: the expert.
        begins: step at which the undoing begins, by start.
        steps: number of undone steps.
        num_envs: N.
    """

    def __init__(self, expert: ExpertActor, begins: dict[int, int], steps: int, num_envs: int) -> None:
        self._expert, self._begins, self._steps = expert, begins, steps
        self._at = np.zeros(num_envs, np.int64)
        self._past: list[list[Tensor]] = [[] for _ in range(num_envs)]

    def act(self, obs: Arrays, turn: Turn) -> Tensor:
        """Actions (N, A)."""
        actions = self._expert.act(obs, turn).clone()
        starts, fresh = turn.start.tolist(), turn.started.tolist()
        for env, start in enumerate(starts):
            if fresh[env]:
                self._at[env] = 0
                self._past[env].clear()
            since = self._at[env] - self._begins.get(start, self._at[env] + 1)
            if 0 <= since < self._steps:
                actions[env] = -self._past[env][-1 - since]
            else:
                self._past[env].append(actions[env].clone())
        self._at += 1
        return actions


def record(task: Task, seed: int, out: Path, count: int) -> None:
    """Record successful demonstrations, every third start with a mistake, as a dataset that marks them.

    Raises:
        DataError: the expert succeeds too rarely.
    """
    options = {**task.options, "limit_s": LIMIT_S}
    sim: Any = make_sim(task.sim, num_envs=min(ENVS, count), seed=seed, **options)
    try:
        starts = random.Random(f"retries {seed}").sample(sim.state_ids("train"), TRIED * count)
        draw = random.Random(f"mistakes {seed}")
        begins = {start: draw.randint(EARLIEST, LATEST) for start in starts[::SHARE]}
        expert = ExpertActor(sim.make_expert(NOISE, EPISODE_NOISE, None, seed))
        actor = RetryActor(expert, begins, UNDONE_STEPS, sim.num_envs)
        found = run_episodes(actor, sim, starts, record=True, description="demonstrations with retries")
        won = [episode for episode in found if episode.success][:count]
        if len(won) < count:
            raise DataError(f"the expert solved {len(won)} of {len(starts)} starts: expected {count} successes")
        with DatasetWriter(
            out,
            fps=integer_rate_hz(sim.control_dt_s),
            observation_spec=sim.observation_spec,
            action_spec=sim.action_spec,
            robot_type=task.sim,
            provenance={"sim": task.sim, "seed": seed, "robotrl": robotrl.__version__},
        ) as writer:
            for episode in won:
                add_recorded(writer, episode, plain_name(task.sim), marks(episode, begins))
            writer.finish()
    finally:
        sim.close()


def marks(episode: Episode, begins: dict[int, int]) -> dict[str, int]:
    """Columns that mark the undone frames of an episode."""
    first = begins.get(episode.state_id, episode.length)
    count = max(0, min(UNDONE_STEPS, episode.length - first))
    return {FIRST: first if count else -1, COUNT: count}


def planted_frames(dataset: Dataset) -> NDArray[np.bool_]:
    """(F,) True for the undone frames."""
    out = np.zeros(dataset.num_frames, np.bool_)
    columns = (dataset.offsets[:-1], dataset.episodes[FIRST], dataset.episodes[COUNT])
    for offset, first, count in zip(*(column.tolist() for column in columns), strict=True):
        out[offset + first : offset + first + count] = count > 0
    return out


# what the filter finds


def losses(progress: NDArray[np.float64], offsets: NDArray[np.int64], horizon: int) -> NDArray[np.float64]:
    """(F,) largest loss of progress within the next chunk of the same episode."""
    out = np.zeros(len(progress))
    for first, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        for frame in range(first, end):
            out[frame] = progress[frame] - progress[frame : min(frame + horizon + 1, end)].min()
    return out


def time_rank(progress: NDArray[np.float64], offsets: NDArray[np.int64], chosen: Sequence[int]) -> float | None:
    """Mean rank correlation of progress with time over the episodes chosen; None without any."""
    rows = [progress[offsets[one] : offsets[one + 1]] for one in chosen]
    found = [rank_correlation(row, np.arange(len(row), dtype=np.float64)) for row in rows]
    return float(np.mean(found)) if found else None


# the cell


def main(name: str, task: str, seed: int, out: Path) -> None:
    """Run one cell in this process.

    Raises:
        ConfigError: name or task are unknown.
    """
    if name != FILTER:
        raise unknown("cell", name, (FILTER,))
    if task not in TASKS:
        raise unknown("task", task, TASKS)
    replace_file(out / "result.json", dump_json(run_cell(TASKS[task], seed, out)))


def run_cell(task: Task, seed: int, out: Path, sizes: FilterSizes = WHOLE, starts: int = 256) -> dict[str, Any]:
    """Record retries, label their frames, and clone with and without the filter.

    Args:
        task: a task of the table of fine-tuning, whose actions are displacements.
        seed: seed of everything.
        out: folder of the cell, which may hold what a stopped one left.
        sizes: sizes of the cell.
        starts: starts of split `test` that judge.
    """
    demos, whole = out / "demos", out / "all"
    settings = {"sim": task.sim, "demos": sizes.demos, "seed": seed}

    def again() -> None:
        shutil.rmtree(demos, ignore_errors=True)
        record(task, seed, demos, sizes.demos)

    mark = have(demos, settings, "", again)
    cfg = base_cfg(METHODS[BASE], task, seed, demos)
    # no checkpoint is chosen, so none is evaluated
    cfg = replace(
        cfg,
        algo=replace(cfg.algo, updates=sizes.clone_updates),
        evaluation=replace(cfg.evaluation, episodes=0),
    )
    mark = have_run(whole, cfg, mark)
    labeled(task, seed, out, sizes, mark)
    dataset = read_dataset(demos)
    path, planted = labels_path(demos, FILTER), planted_frames(dataset)
    progress, keep = (read_label(path, name, demos, dataset.num_frames) for name in ("progress", "keep"))
    progress = progress.astype(np.float64)
    by_chance = np.random.default_rng(seed).permutation(keep)
    write_labels(demos, RANDOM, {"keep": by_chance}, {"bench": "improve", "seed": seed})
    runs = {"all": whole}
    for arm, name in (("filtered", FILTER), (RANDOM, RANDOM)):
        runs[arm] = out / arm
        have_run(runs[arm], replace(cfg, algo=replace(cfg.algo, labels=str(labels_path(demos, name)))), mark)
    clone = Clone(task, seed, out, whole, demos, mark, starts)
    lost = losses(progress, dataset.offsets, load_policy(whole).horizon)
    held = held_out(np.ones(dataset.num_episodes, np.bool_), dataset.num_episodes, 0.2, seed)
    plain = np.flatnonzero(held & (dataset.episodes[COUNT] == 0)).tolist()
    return {
        **{arm: rate(clone.success(runs[arm])) for arm in FILTER_ARMS},
        "auc": separation(lost[planted], lost[~planted]),
        "dropped": float(1 - keep.mean()),
        "found": float((~keep)[planted].mean()),
        "planted": float(planted.mean()),
        "time_rank": time_rank(progress, dataset.offsets, plain),
        "frames": dataset.num_frames,
    }


def labeled(task: Task, seed: int, out: Path, sizes: FilterSizes, before: str) -> None:
    """Train RECAP's value on the demonstrations, and store its labels beside them."""
    cfg = config_of(f"{DEFAULTS} recap")
    algo = replace(
        cfg.algo,
        value_updates=sizes.value_updates,
        updates=0,
        keep_delta=sizes.keep_delta,
        labels=FILTER,
        held_out=0.2,
        # what the value is worth is measured here, by planted frames
        least_rank=-1.0,
    )
    demos = str(out / "demos")
    cfg = replace(cfg, sim=sim_of(cfg, task), algo=algo, init_from=str(out / "all"), dataset=demos, seed=seed)
    cfg = replace(cfg, evaluation=replace(cfg.evaluation, episodes=0))
    have_run(out / "value", cfg, before)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]).resolve())
