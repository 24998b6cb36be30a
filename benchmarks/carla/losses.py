"""A training run whose servers die, hang, answer late and show old frames, beside the same run without faults."""

from __future__ import annotations

import random
import time
import warnings
from pathlib import Path
from typing import NamedTuple

from benchmarks.carla.server import command
from benchmarks.carla.town import town
from robotrl.cli.main import main
from robotrl.errors import RobotrlError
from robotrl.run.logs import read_scalars
from robotrl.run.policy_checkpoint import load_policy

KINDS = ("die:tick", "hang:tick", "stale:tick", "stale=repeat:tick", "late=4:tick", "die:apply_control", "die:spawn")
LEAST_TICKS, MOST_TICKS = 60, 400
CLOCKS = ("_s", "per_s", "sim_share", "memory")
"""Ends of the names of scalars that are times."""


class Outlived(NamedTuple):
    """Result of the two runs."""

    losses: int
    """Servers that were started anew."""
    different_weights: int
    different_scalars: int
    rows: int
    """Rows of scalars compared."""
    slower: float
    """Time of the disturbed run relative to the other."""


def faults(count: int, seed: int) -> list[list[str]]:
    """One fault for each of so many servers, of all kinds in turn, at random ticks."""
    draw = random.Random(seed)
    found: list[list[str]] = []
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        after = 1 if kind.endswith("spawn") else draw.randint(LEAST_TICKS, MOST_TICKS)
        found.append([f"{kind}:{after}"])
    return found


def compare(count: int, env_steps: int, seed: int, work: Path) -> Outlived:
    """Train with and without faults.

    Args:
        count: number of faults.
        env_steps: env steps of each run.
        seed: seed of the runs and of the faults.
        work: folder of the runs.
    """
    path = work / "losses.xodr"
    path.write_text(town())
    plans: dict[str, list[list[str]]] = {"calm": [], "disturbed": faults(count, seed)}
    seconds: dict[str, float] = {}
    losses = 0
    for name, plan in plans.items():
        (work / name).mkdir(parents=True, exist_ok=True)
        server = command(work / name, [f"losses={path}"], plan)
        begun = time.monotonic()
        train(server, env_steps, seed, work / name / "run")
        seconds[name] = time.monotonic() - begun
        losses = len(list((work / name).glob("plan*.json.*"))) - 1
    weights = [load_policy(work / name / "run", "latest").state_dict() for name in plans]
    rows = [read_scalars(work / name / "run/scalars.jsonl") for name in plans]
    kept = [[{k: v for k, v in row.items() if not k.endswith(CLOCKS)} for row in one] for one in rows]
    return Outlived(
        losses,
        sum(int((weights[0][key] != weights[1][key]).sum()) for key in weights[0]),
        sum(a != b for one, other in zip(*kept, strict=True) for a, b in zip(one.items(), other.items(), strict=True)),
        len(kept[0]),
        seconds["disturbed"] / seconds["calm"],
    )


def train(server: str, env_steps: int, seed: int, out: Path) -> None:
    """Train with PPO on one server.

    Raises:
        RobotrlError: the run failed.
    """
    words = f"train --sim carla/losses --sim.vehicles 6 --sim.walkers 0 --sim.limit-s 6 --algo ppo --seed {seed}"
    words += f" --sim.timeout-s 2 --algo.env-steps {env_steps} --algo.num-steps 128 --algo.minibatch 64"
    words += f" --evaluation.episodes 0 --run-dir {out}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # one for each loss
        code = main([*words.split(), "--sim.server", server])
    if code:
        raise RobotrlError(f"robotrl train ended with code {code}")
