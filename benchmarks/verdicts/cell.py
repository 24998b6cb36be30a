"""One cell of the table of verdicts: `python -m benchmarks.verdicts.cell TASK SEED OUT`."""

from __future__ import annotations

import math
import sys
from collections import Counter
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.finetune.bench import METHODS, TASKS
from benchmarks.finetune.cell import base_cfg, demos_of
from benchmarks.verdicts.bench import KINDS, OUTCOMES, POINTS
from robotrl.api.judging.judge import MOST_OF_PLAN
from robotrl.errors import CapabilityError, unknown
from robotrl.fn.evidence.sequential import PairedTest, decide, fixed_plan
from robotrl.registry import make_sim
from robotrl.rollout.evaluate import ExpertActor, evaluate
from robotrl.run.policy_checkpoint import load_policy
from robotrl.spec import HasExpert, VecSim
from robotrl.training import train
from robotrl.utils.files import dump_json, replace_file

STARTS = 2048
"""Starts of split `test` that are driven; each pair takes some of them in an order of its own."""
PAIRS = 200
"""Planted pairs of each kind."""
LOOK = 32
"""Starts between two looks of the ordinary test."""
METHOD = "reinflow"
"""Row of the table of fine-tuning whose clone is taken."""
TEST = PairedTest(POINTS / 100)

Outcomes = NDArray[np.float64]


def main(task: str, seed: int, out: Path) -> None:
    """Run one cell in this process.

    Raises:
        ConfigError: the task is unknown.
    """
    if task not in TASKS:
        raise unknown("task", task, TASKS)
    replace_file(out / "result.json", dump_json(run_cell(task, seed, out)))


def run_cell(task: str, seed: int, out: Path, starts: int = STARTS, pairs: int = PAIRS) -> dict[str, Any]:
    """Clone, drive, and judge planted pairs."""
    clone, again, expert = driven(task, seed, out, starts)
    rng = np.random.default_rng(seed)
    return {
        "clone": float(clone.mean()),
        "expert": float(expert.mean()),
        "starts": starts,
        "pairs": pairs,
        "kinds": {kind: verdicts_on(kind, (clone, again, expert), pairs, rng) for kind in KINDS},
    }


def driven(name: str, seed: int, out: Path, starts: int) -> tuple[Outcomes, Outcomes, Outcomes]:
    """Success (starts,) of the clone, of the clone with other noise, and of the expert, on the same starts."""
    task = TASKS[name]
    demos = demos_of(task, seed, out)
    train(base_cfg(METHODS[METHOD], task, seed, demos.path), out / "base")
    policy = load_policy(out / "base", "latest")
    sim = make_sim(task.sim, num_envs=min(64, starts), seed=seed)
    rows = [evaluate(policy, sim, episodes=starts, seed=noise) for noise in (seed, seed + 1)]
    rows.append(evaluate(expert_in(sim, task.sim, seed), sim, episodes=starts, seed=seed))
    clone, again, expert = (row.success.astype(np.float64) for row in rows)
    return clone, again, expert


def expert_in(sim: VecSim, name: str, seed: int) -> ExpertActor:
    """The sim's scripted expert as an actor.

    Raises:
        CapabilityError: it has none.
    """
    if not isinstance(sim, HasExpert):
        raise CapabilityError(f"sim {name!r} lacks HasExpert: no differences can be planted")
    return ExpertActor(sim.make_expert(seed=seed))


def verdicts_on(
    kind: str, outcomes: tuple[Outcomes, Outcomes, Outcomes], pairs: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Verdicts on planted pairs of one kind."""
    clone, again, expert = outcomes
    most = min(len(clone), math.ceil(MOST_OF_PLAN * fixed_plan(TEST)))
    # the share of the starts that raises the success by the planted difference, if the expert drives them
    ahead = float(expert.mean() - (clone.mean() + again.mean()) / 2)
    if ahead < POINTS / 100:
        raise ValueError(f"the expert is better by {100 * ahead:.0f} points: expected {POINTS} or more")
    share = POINTS / 100 / ahead
    differing = float((clone != again).mean())
    found, starts, naive = Counter[str](), list[int](), 0
    for _ in range(pairs):
        order = rng.permutation(len(clone))[:most]
        # which noise is which side's is drawn for each start: without the expert, the sides are alike
        swapped = rng.random(most) < 0.5
        one, other = (
            np.where(swapped, *sides) for sides in ((again[order], clone[order]), (clone[order], again[order]))
        )
        raised = np.where(rng.random(most) < share, expert[order], other)
        apart = {"same": other - one, "better": raised - one, "worse": one - raised}
        verdict = decide(apart[kind], TEST)
        found[verdict.outcome] += 1
        starts.append(verdict.starts)
        naive += looked_at_early(apart[kind])
    if kind != "same":
        differing = (1 - share) * differing + share * float(np.abs(expert - (clone + again) / 2).mean())
    return {
        "shares": {outcome: found[outcome] / pairs for outcome in OUTCOMES},
        "starts": float(np.mean(starts)),
        "differing": differing,
        "of_plan": float(np.mean(starts)) / fixed_plan(TEST, differing),
        "of_plan_before": float(np.mean(starts)) / fixed_plan(TEST),
        "naive": naive / pairs,
    }


def looked_at_early(apart: Outcomes) -> bool:
    """True if an ordinary one-sided test of the mean difference at 5 % says "better" at one of its looks."""
    n = np.arange(1, len(apart) + 1)
    mean = np.cumsum(apart) / n
    deviation = np.sqrt(np.maximum(np.cumsum(apart**2) / n - mean**2, 1e-12) / n)
    looks = slice(LOOK - 1, None, LOOK)
    return bool((mean[looks] / deviation[looks] > NormalDist().inv_cdf(1 - TEST.alpha)).any())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]).resolve())
