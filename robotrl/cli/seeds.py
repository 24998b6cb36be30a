"""`robotrl train ... --seeds N`: the same training with several seeds, each a run of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from robotrl.errors import check_count

MOST = 1000
CORES_PER_RUN, POLL_S = 2, 0.2
"""Cores of a run: one for the physics or the simulator, one for torch."""


def train_seeds(count: int, first: int, argv: Sequence[str], folder: Path, score: str) -> int:
    """Train runs `FOLDER/seed-N` for `count` seeds; existing ones are resumed, finished ones are left as they are.

    As many run at the same time as there are pairs of cores. Ctrl-C stops all of them; each is saved.

    Args:
        count: number of seeds.
        first: the first seed.
        argv: arguments of `robotrl train` without --seeds, --seed and --run-dir.
        folder: directory of the runs.
        score: what the runs are compared by, "success" or "return".

    Returns:
        The exit code: 0, or that of the first run that failed.

    Raises:
        ConfigError: a number out of range.
    """
    from robotrl.utils.hardware import usable_cores

    check_count("--seeds", count, 1, MOST)
    folder.mkdir(parents=True, exist_ok=True)
    waiting = list(range(first, first + count))
    parallel_runs = max(1, usable_cores() // CORES_PER_RUN)
    running: dict[int, subprocess.Popen[bytes]] = {}
    codes: dict[int, int] = {}
    try:
        while waiting or running:
            while waiting and len(running) < parallel_runs:
                seed = waiting.pop(0)
                print(f"seed {seed}: {folder / f'seed-{seed}'}", file=sys.stderr, flush=True)
                running[seed] = subprocess.Popen(_command(argv, seed, folder / f"seed-{seed}"))
            seed = next(iter(running))
            time.sleep(POLL_S)
            for seed in [seed for seed, process in running.items() if process.poll() is not None]:
                codes[seed] = int(running.pop(seed).returncode)
                if codes[seed]:
                    waiting.clear()
    except KeyboardInterrupt:
        # the runs got the signal, too, and save themselves
        codes |= {seed: process.wait() for seed, process in running.items()}
        raise
    print(summary(folder, range(first, first + count), score))
    return next((code for code in codes.values() if code), 0)


def _command(argv: Sequence[str], seed: int, path: Path) -> list[str]:
    begin = [sys.executable, "-m", "robotrl.cli", "train"]
    if (path / "config.json").exists():
        return [*begin, "--resume", str(path)]
    return [*begin, *argv, "--seed", str(seed), "--run-dir", str(path)]


def summary(folder: Path, seeds: Sequence[int], score: str) -> str:
    """Table of the best evaluation of each seed, and their mean with its 95 % interval."""
    import numpy as np

    from robotrl.fn.stats import student_t
    from robotrl.run.logs import read_scalars

    column, unit = ("eval_success", " %") if score == "success" else ("eval_return", "")
    lines, found = list[str](), list[float]()
    for seed in seeds:
        rows = read_scalars(folder / f"seed-{seed}" / "scalars.jsonl")
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
