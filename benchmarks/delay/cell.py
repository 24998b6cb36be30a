"""One cell of the delay table: `python -m benchmarks.delay.cell CLONE TASK SEED OUT`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.delay.bench import CLONES, DELAYS, HORIZON, OVERLAP, TASKS
from benchmarks.delay.joining import JoinedPolicy
from robotrl.algos.bc import BcCfg
from robotrl.api.evaluation import latency_options, make_sim_of
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.errors import CapabilityError, unknown
from robotrl.policies.flow import FlowCfg
from robotrl.policies.guided import GuidedCfg
from robotrl.rollout.demos import collect_demos
from robotrl.rollout.evaluate import PolicyActor, run_episodes
from robotrl.run.policy_checkpoint import load_policy
from robotrl.spec import HasStateIds
from robotrl.spec.sim_options import PerturbCfg
from robotrl.training import train
from robotrl.utils.files import dump_json, replace_file

DEMOS, UPDATES, EPISODES = 500, 4_000, 512


def main(clone: str, task: str, seed: int, out: Path) -> None:
    """Run one cell in this process.

    Raises:
        ConfigError: the clone is unknown.
    """
    if clone not in CLONES:
        raise unknown("clone", clone, CLONES)
    replace_file(out / "result.json", dump_json(run_cell(clone, task, seed, out)))


def run_cell(
    clone: str,
    task: str,
    seed: int,
    out: Path,
    demos: int = DEMOS,
    updates: int = UPDATES,
    episodes: int = EPISODES,
) -> dict[str, Any]:
    """Success and jumps of the clone by arm and delay."""
    run = cloned(clone, task, seed, out, demos, updates)
    return {arm: {str(d): driven(arm, run, d, seed, episodes) for d in DELAYS} for arm in CLONES[clone]}


def cloned(clone: str, task: str, seed: int, out: Path, demos: int, updates: int) -> Path:
    """Run of a clone; both of a seed learn from the same demonstrations."""
    data = out / "demos"
    collect_demos(task, data, episodes=demos, noise=TASKS[task], seed=seed)
    perturb = PerturbCfg(committed_steps=OVERLAP if clone == "trained" else 0)
    cfg = TrainCfg(
        sim=SimCfg(task),
        algo=BcCfg(updates=updates),
        policy=FlowCfg(horizon=HORIZON),
        evaluation=EvalCfg(every=0, episodes=64, animation=0),
    )
    options = {"perturb": perturb} if clone == "trained" else {}
    cfg = replace(cfg, seed=seed, dataset=str(data), sim=replace(cfg.sim, options=options))
    train(cfg, out / "run")
    return out / "run"


def driven(arm: str, run: Path, delay: int, seed: int, episodes: int) -> dict[str, float]:
    """Success on held-out starts with a delay of so many control periods, and changes of the actions."""
    policy = load_policy(run)
    overlap = 0 if arm in ("late", "trained") else OVERLAP
    latency_ms = 1000.0 * delay * float(policy.control_dt_s or 0.0)
    options = latency_options(run, None, {}, latency_ms, overlap)
    sim = make_sim_of(run, None, num_envs=64, seed=seed, options=options)
    try:
        if not isinstance(sim, HasStateIds):
            raise CapabilityError(f"sim {type(sim).__name__} lacks HasStateIds: expected one with numbered starts")
        actor = PolicyActor(joined(arm, policy, overlap), sim.num_envs, sim.device, None, seed)
        found = run_episodes(actor, sim, sim.state_ids("test")[:episodes], record=True, description=f"{arm} {delay}")
    finally:
        sim.close()
    spread = np.asarray(policy.action_spec.high) - np.asarray(policy.action_spec.low)
    seams, inside = changes([one.actions / spread for one in found], HORIZON - overlap)
    return {
        "success": float(np.mean([one.success for one in found])),
        "seam": float(np.quantile(seams, 0.95)),
        "inside": float(np.quantile(inside, 0.99)),
    }


def joined(arm: str, policy: Any, overlap: int) -> Any:
    """The policy with its chunks joined as the arm says."""
    if arm == "guided":
        return GuidedCfg(overlap=overlap).build(policy)
    if arm == "aligned" or arm == "averaged":
        return JoinedPolicy(policy, overlap, arm)
    return policy


def changes(actions: list[np.ndarray], executed: int) -> tuple[np.ndarray, np.ndarray]:
    """Largest change of an element from one action to the next, where a chunk begins and elsewhere.

    Args:
        actions: (T, A) of each episode, as decided; the first chunk begins with the first one.
        executed: actions of a chunk that are executed.
    """
    seams, inside = [np.zeros(0)], [np.zeros(0)]
    for one in actions:
        change = np.abs(np.diff(one, axis=0)).max(axis=1)
        begins = np.arange(1, len(one)) % executed == 0
        seams.append(change[begins])
        inside.append(change[~begins])
    return np.concatenate(seams), np.concatenate(inside)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]).resolve())
