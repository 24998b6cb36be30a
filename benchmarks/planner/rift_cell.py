"""One cell of RIFT's table: clone the rule-based traffic, fine-tune it towards a style, measure it.

`python -m benchmarks.planner.rift_cell ARM SEED OUT` writes OUT/result.json.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks.planner.rift import ARMS, REFERENCE, REVISION
from robotrl.cli.main import main as robotrl
from robotrl.errors import RobotrlError, unknown
from robotrl.traffic.measuring import measure_traffic
from robotrl.traffic.realism import character, realism
from robotrl.utils.files import dump_json, replace_file

STEPS, NUM_ENVS = 300, 96
"""Steps of each env of a measurement, and its envs, each with another test start."""
RULES, CLONED = "rift-rules", "rift-cloned"


def main(
    name: str,
    seed: int,
    out: Path,
    steps: int = STEPS,
    num_envs: int = NUM_ENVS,
    clone: tuple[str, ...] = (),
    tune: tuple[str, ...] = (),
) -> None:
    """Run one cell in this process.

    Args:
        name: the arm.
        seed: seed of the training and number of the block of test starts.
        out: folder of the cell, WORK/attempt-KEY/out; the clone of the seed goes to WORK/rift-....
        steps: steps of each env of a measurement.
        num_envs: its envs.
        clone: further flags of the cloning, for a short run.
        tune: further flags of the fine-tuning, for a short run.

    Raises:
        ConfigError: the arm is unknown.
        RobotrlError: a command failed.
    """
    if name not in ARMS:
        raise unknown("arm", name, ARMS)
    began = time.perf_counter()
    traffic = REFERENCE if name == RULES else (str(trained(name, seed, out, clone, tune)),)
    train_s = time.perf_counter() - began
    reference, sample = (measure_traffic(one, steps, num_envs, seed) for one in (REFERENCE, traffic))
    result = realism(sample, reference) | character(sample) | {"train_s": train_s}
    replace_file(out / "result.json", dump_json(result))


def trained(name: str, seed: int, out: Path, clone: tuple[str, ...], tune: tuple[str, ...]) -> Path:
    """Folder of an arm's network. The cells of a seed share the clone: it is trained unless it is there."""
    base = out.parents[1] / f"rift-{REVISION}-{seed}"
    if not base.exists():
        _run("clone", "--out", str(base), "--seed", str(seed), "--populations", *REFERENCE, *clone)
    if name == CLONED:
        return base
    folder, style = out / "traffic", name.removeprefix("rift-")
    _run("rift", str(base), "--out", str(folder), "--style", style, "--seed", str(seed), *tune)
    return folder


def _run(*words: str) -> None:
    code = robotrl(["traffic", *words])
    if code:
        raise RobotrlError(f"robotrl traffic {words[0]} ended with code {code}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
