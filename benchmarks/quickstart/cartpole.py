"""A newcomer's first run: `robotrl train gym-ppo --sim gym/CartPole-v1`, with an empty compile cache.

Each cell runs the whole command in a separate process, and measures from outside: time to the first output, time to the
end, and processor time. Then `robotrl eval` runs the run's best checkpoint on starts not used in training. The machine
must be idle.
"""

from __future__ import annotations

import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.kit.cells import OUT, Cell, CellResult
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_head, table_row
from robotrl.errors import DataError
from robotrl.run.logs import read_scalars
from robotrl.utils.files import dump_json, replace_file

DESCRIPTION = "robotrl train gym-ppo on CartPole-v1 as it stands, empty compile cache: return, time, first output"
PEERS: dict[str, str] = {}
TASK = "gym/CartPole-v1"
METHOD = "first_run"
SEEDS = (0, 1, 2, 3, 4)
EPISODES = 128
UNITS = {
    "return": ("return", f"mean over {EPISODES} starts of test; 500 is the most"),
    "wall_s": ("s", "the whole command, nothing compiled before"),
    "first_output_s": ("s", "from the start of the process to its first output"),
    "cpu_s": ("s", "processor's time of the command and what it started"),
    "env_steps": ("env steps", "until the run ended by itself"),
    "left_ratio": ("times", "the largest time left that was printed, over what was left in truth; 0 where none was"),
}
_LEFT = re.compile(r"(?:(\d+):)?(\d+):(\d\d) left")


def cells(quick: bool) -> list[Cell]:
    """Cells of the table: one run per seed; `quick` is seed 0 only."""
    return [_cell(seed) for seed in (SEEDS[:1] if quick else SEEDS)]


def _cell(seed: int) -> Cell:
    return Cell(METHOD, TASK, seed, ("python", "-m", "benchmarks.quickstart.cartpole", str(seed), OUT), "result.json")


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """Means over the seeds with the range, and the worst seed's return."""
    figures: dict[str, Figure] = {}
    for name, (unit, note) in UNITS.items():
        values = [float(cell["result"][name]) for cell in results if name in cell["result"]]
        if values:
            mean = statistics.fmean(values)
            figures[name] = Figure(mean, unit, runs=len(values), low=min(values), high=max(values), note=note)
    return figures


def table(document: Mapping[str, Any]) -> str:
    """Markdown table: one row per seed."""
    lines = table_head(("seed", "return", "whole command", "first output", "processor's time", "env steps"))
    for cell in sorted(document["cells"].values(), key=lambda cell: int(cell["seed"])):
        found = cell["result"]
        times = (f"{found[name]:.1f} s" for name in ("wall_s", "first_output_s", "cpu_s"))
        lines.append(table_row((str(cell["seed"]), f"{found['return']:.1f}", *times, f"{found['env_steps']:,.0f}")))
    return "\n".join(lines)


class Line(NamedTuple):
    """An output line of the command."""

    at_s: float
    """Seconds since the start of its process."""
    text: str


def main(seed: int, out: Path) -> None:
    """Run one cell and write `result.json` in `out`.

    Raises:
        DataError: a command failed.
    """
    run = out / "run"
    # an empty cache
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(out / "cache"), "PYTHONUNBUFFERED": "1"}
    (out / "cache").mkdir()
    argv = ["train", "gym-ppo", "--sim", TASK, "--seed", str(seed), "--run-dir", str(run)]
    busy = _children_s()
    lines, wall_s = _timed(argv, env)
    cpu_s = _children_s() - busy
    report = out / "eval.json"
    _timed(["eval", str(run), "--episodes", str(EPISODES), "--split", "test", "--report", str(report)], env)
    found = json.loads(report.read_bytes())
    result = {
        "return": found["mean_return"],
        "worst_return": min(episode["return"] for episode in found["episodes"]),
        "wall_s": wall_s,
        "first_output_s": lines[0].at_s,
        "cpu_s": cpu_s,
        "env_steps": read_scalars(run / "scalars.jsonl")[-1]["env_steps"],
        "left_ratio": left_ratio(lines, wall_s),
        "lines": [[round(line.at_s, 2), line.text.replace(str(out), "OUT")] for line in lines],
    }
    replace_file(out / "result.json", dump_json(result))


def left_ratio(lines: Sequence[Line], end_s: float) -> float:
    """Largest ratio of a printed remaining time to the true one; 0 if none was printed."""
    ratios = [0.0]
    for line in lines:
        for hours, minutes, seconds in _LEFT.findall(line.text):
            said = 3600 * int(hours or 0) + 60 * int(minutes) + int(seconds)
            # printed times are rounded to a second
            ratios.append(max(0.0, said - 0.5) / max(end_s - line.at_s, 0.5))
    return max(ratios)


def _timed(argv: list[str], env: Mapping[str, str]) -> tuple[list[Line], float]:
    """Run one of our commands; returns its timed output and its duration."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "robotrl.cli", *argv],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    lines = [Line(time.monotonic() - began, text.rstrip("\n")) for text in process.stdout]
    code = process.wait()
    wall_s = time.monotonic() - began
    print("\n".join(line.text for line in lines), flush=True)
    if code or not lines:
        raise DataError(f"robotrl {argv[0]} ended with code {code}: expected 0, and output")
    return lines, wall_s


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
