"""`robotrl train ... --seeds N`: the same training with several seeds, each a run of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from robotrl.errors import check_count

MOST = 1000


def train_seeds(count: int, first: int, argv: Sequence[str], folder: Path, score: str) -> int:
    """Train runs `FOLDER/seed-N` for `count` seeds; existing ones are resumed, finished ones are left as they are.

    As many run at the same time as there are pairs of cores. Ctrl-C and SIGTERM stop all of them; each is saved.

    Args:
        count: number of seeds.
        first: the first seed.
        argv: arguments of `robotrl train` without --seeds, --seed and --run-dir.
        folder: directory of the runs.
        score: what the runs are compared by, "success" or "return".

    Returns:
        The exit code: 0, that of the first run that failed, or 130 after a signal.

    Raises:
        ConfigError: a number out of range.
    """
    from robotrl.jobs.local import LocalPlace
    from robotrl.jobs.training_runs import TrainingRun, parallel_runs, train_runs
    from robotrl.run.locking import StopSignals
    from robotrl.run.sessions.record import has_finished

    check_count("--seeds", count, 1, MOST)
    seeds = range(first, first + count)
    runs = [TrainingRun(f"seed {seed}", folder / f"seed-{seed}", (*argv, "--seed", str(seed))) for seed in seeds]
    missing = [run for run in runs if not has_finished(run.path)]
    signals = StopSignals()
    signals.install()
    try:
        # the others have the same config: what one fails by, all do
        title, done = f"train {folder.name}", count - len(missing)
        failed = train_runs(missing, LocalPlace(parallel_runs()), signals, title=title, done=done, go_on=False)
    finally:
        signals.restore()
    if signals.received is not None:
        return 130
    print(summary(folder, seeds, score))
    return max(failed[0].code, 1) if failed else 0


def summary(folder: Path, seeds: Sequence[int], score: str) -> str:
    """Table of the best evaluation of each seed, and their mean with its 95 % interval."""
    import numpy as np

    from robotrl.fn.stats import student_t
    from robotrl.run.logs import read_scalars

    column, unit = ("eval_success", " %") if score == "success" else ("eval_return", "")
    lines, found = list[str](), list[float]()
    for seed in seeds:
        log = folder / f"seed-{seed}" / "scalars.jsonl"
        rows = read_scalars(log) if log.exists() else []
        scored = [row[column] for row in rows if column in row]
        if not scored:
            lines.append(f"seed {seed}: not evaluated")
            continue
        value = max(scored) * (100 if unit else 1)
        found.append(value)
        lines.append(f"seed {seed}: best {score} {value:.1f}{unit}")
    if len(found) > 1:
        middle = student_t(np.array(found))
        interval = f"Student's 95 % interval {middle.low:.1f} to {middle.high:.1f}"
        lines.append(f"mean {middle.value:.1f}{unit} ({interval}) over {len(found)} seeds")
    paths = " ".join(str(folder / f"seed-{seed}") for seed in seeds)
    return "\n".join([*lines, f"curves: robotrl compare {paths} --out compare.html"])
