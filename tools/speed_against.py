"""Speed of this checkout against an earlier commit: `python tools/speed_against.py COMMIT [--json FILE]`.

Each workload runs in two processes, one per checkout, which alternate (A B A B ...), so that a busy machine slows both
alike. The ratio is this checkout's rate over the commit's, pair by pair: its median, and the median's 95 %
interval by the sign test. Comparisons with other libraries are in `robotrl bench`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from robotrl.utils.files import dump_json, read_json, replace_file

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.kit.figures import paired  # noqa: E402
from benchmarks.kit.machine import machine_info, package_versions  # noqa: E402
from benchmarks.ppo.worker import Worker  # noqa: E402

PARTS = ("sims", "policies", "deploy", "configs")
UNITS, PPO, OFF_POLICY = "speed_units", "benchmarks.ppo.methods", "benchmarks.offpolicy.methods"
PEG, CHEETAH = "mujoco/peg-insert", "mujoco/halfcheetah"
TARGET = 0.97


class Row(NamedTuple):
    """One workload."""

    bench: str
    methods: str
    method: str
    setting: str
    task: str
    threads: int
    count: int
    """Repetitions per run, about a second."""


ROWS = (
    Row("stepping", UNITS, "stepping", "64", CHEETAH, 1, 60),
    Row("stepping", UNITS, "stepping", "256", CHEETAH, 1, 16),
    Row("stepping", UNITS, "stepping", "64", PEG, 1, 30),
    Row("stepping", UNITS, "stepping", "256", PEG, 1, 8),
    Row("ppo", PPO, "robotrl", "mb64", CHEETAH, 1, 5),
    Row("ppo", PPO, "robotrl", "mb512", CHEETAH, 1, 8),
    Row("ppo", PPO, "robotrl", "wide", CHEETAH, 1, 5),
    Row("chain", UNITS, "chain", "reinflow", PEG, 1, 1),
    Row("chain", UNITS, "chain", "dppo", PEG, 1, 1),
    Row("offpolicy", OFF_POLICY, "sac", "float32", CHEETAH, 1, 64),
    Row("offpolicy", OFF_POLICY, "rlpd", "float32", CHEETAH, 1, 64),
)


def link_layout(checkout: Path, folder: Path) -> Path:
    """Folder of symlinks in the layout of the installed package, for the path of a worker."""
    package = folder / "robotrl"
    package.mkdir(parents=True)
    for entry in (checkout / "robotrl").iterdir():
        if entry.name != "__pycache__":
            (package / entry.name).symlink_to(entry)
    for part in PARTS:
        (package / part).symlink_to(checkout / part)
    (folder / "benchmarks").symlink_to(checkout / "benchmarks")
    return folder


def median_interval(values: list[float]) -> tuple[float, float, float]:
    """Median and the order statistics that enclose it with 95 % confidence (sign test)."""
    found = sorted(values)
    n = len(found)
    total, below, chance = 0.5**n, 0, 0.5**n
    # the k-th smallest and k-th largest value enclose the median, except with twice the chance of fewer than k on one
    # side
    while below + 1 < (n + 1) // 2:
        chance = chance * (n - below) / (below + 1)
        if 2 * (total + chance) > 0.05:
            break
        total, below = total + chance, below + 1
    middle = found[n // 2] if n % 2 else 0.5 * (found[n // 2 - 1] + found[n // 2])
    return middle, found[below], found[n - 1 - below]


def measure(row: Row, layouts: dict[str, Path], rounds: int, stack: ExitStack) -> dict[str, object]:
    """Time one workload in both checkouts, alternating."""
    routes = {}
    for name, layout in layouts.items():
        cache = stack.enter_context(tempfile.TemporaryDirectory())
        # the worker inherits this process's environment
        os.environ["PYTHONPATH"] = os.pathsep.join([str(layout), str(ROOT / "tools")])
        worker = Worker(row.method, row.setting, row.threads, row.task, cache, row.methods)
        stack.callback(worker.close)
        routes[name] = lambda worker=worker: worker.run(row.count)
    rates = paired(routes, rounds)
    now, before = rates.samples["now"], rates.samples["before"]
    middle, low, high = median_interval([a / b for a, b in zip(now, before, strict=True)])
    return {"ratio": middle, "low": low, "high": high, "now": now, "before": before, "reached": middle >= TARGET}


def main() -> int:
    """Run every workload; exit code 1 if a median ratio is below the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="units whose bench, method or task holds this text")
    parser.add_argument("--run", type=Path, help="a quickstart's fine-tuned run, for the unit of its evaluations")
    parser.add_argument("--json", type=Path, help="results; units that were measured before stay unless measured anew")
    args = parser.parse_args()
    rows = list(ROWS)
    if args.run is not None:
        rows.append(Row("evaluation", UNITS, "evaluation", str(args.run.resolve()), PEG, 1, 1))
    rows = [row for row in rows if args.only in f"{row.bench} {row.method} {row.setting} {row.task}"]
    os.environ["PYTHONSAFEPATH"] = "1"
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old"
        subprocess.run(["git", "-C", str(ROOT), "worktree", "add", "-q", "--detach", str(old), args.commit], check=True)
        try:
            layouts = {
                "before": link_layout(old, Path(folder) / "before"),
                "now": link_layout(ROOT, Path(folder) / "now"),
            }
            for row in rows:
                with ExitStack() as stack:
                    result = measure(row, layouts, args.rounds, stack)
                setting = "quickstart" if row.bench == "evaluation" else row.setting
                name = f"{row.bench} {row.method} {setting} {row.task}"
                found[name] = result
                print(f"{name}: {result['ratio']:.3f} ({result['low']:.3f} to {result['high']:.3f})", flush=True)
        finally:
            shutil.rmtree(old, ignore_errors=True)
            subprocess.run(["git", "-C", str(ROOT), "worktree", "prune"], check=True)
    if args.json is not None:
        commit = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", args.commit], capture_output=True, text=True, check=True
        ).stdout.strip()
        known = read_json(args.json, "speed", 1) if args.json.exists() else {"before": commit, "units": {}}
        if known["before"] != commit:
            raise SystemExit(f"{args.json} compares with {known['before']}, not {commit}: expected another file")
        text = {
            "schema_version": 1,
            "command": f"python tools/speed_against.py {args.commit} --rounds {args.rounds} --json {args.json.name}",
            "before": commit,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "machine": machine_info(),
            "versions": package_versions(),
            "units": {**known["units"], **found},
        }
        replace_file(args.json, dump_json(text))
    return 0 if all(result["reached"] for result in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
