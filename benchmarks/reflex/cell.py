"""One cell of the reflex table: `python -m benchmarks.reflex.cell SEED OUT`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.reflex.bench import MARGIN, TASK, THRESHOLDS
from robotrl.algos.bc import BcCfg
from robotrl.algos.reflex import ReflexCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.policies.gaussian import GaussianCfg
from robotrl.policies.guarded import GuardedCfg, GuardedPolicy, RiskReflex
from robotrl.registry import make_sim
from robotrl.rollout.demos import collect_demos
from robotrl.rollout.evaluate import PolicyActor, run_episodes
from robotrl.run.policy_checkpoint import load_policy
from robotrl.spec import Split
from robotrl.spec.actuation import Reflex, ServoTick
from robotrl.training import train
from robotrl.utils.files import dump_json, replace_file

DEMOS, CLONE_UPDATES = 300, 3_000
ALGO = ReflexCfg(env_steps=100_000)
VAL_EPISODES, EPISODES = 256, 512
NO_EVAL = EvalCfg(every=0, episodes=64, animation=0)

Numbers = dict[str, float]


def main(seed: int, out: Path) -> None:
    """Run one cell in this process."""
    replace_file(out / "result.json", dump_json(run_cell(seed, out)))


def run_cell(
    seed: int,
    out: Path,
    demos: int = DEMOS,
    clone_updates: int = CLONE_UPDATES,
    algo: ReflexCfg = ALGO,
    episodes: tuple[int, int] = (VAL_EPISODES, EPISODES),
) -> dict[str, Numbers]:
    """Numbers of each arm on held-out starts; `episodes` are those of validation and of the result."""
    policy = trained(seed, out, demos, clone_updates, algo)
    alone = driven(policy, None, "val", episodes[0], seed)
    chosen = {rate: best_threshold(policy, rate, alone, episodes[0], seed) for rate in ("servo", "policy")}
    arms: dict[str, RiskReflex | None] = {
        "none": None,
        "policy": RiskReflex(policy, chosen["policy"], "policy"),
        "policy_same": RiskReflex(policy, chosen["servo"], "policy"),
        "servo": RiskReflex(policy, chosen["servo"], "servo"),
    }
    used = {"none": 1.0, "policy": chosen["policy"], "policy_same": chosen["servo"], "servo": chosen["servo"]}
    return {
        arm: driven(policy, reflex, "test", episodes[1], seed) | {"threshold": used[arm]}
        for arm, reflex in arms.items()
    }


def trained(seed: int, out: Path, demos: int, clone_updates: int, algo: ReflexCfg) -> GuardedPolicy:
    """A clone of the expert, with a risk critic trained beside it."""
    data = out / "demos"
    collect_demos(TASK, data, episodes=demos, seed=seed, noise=0.05, mode="along", labels="intended")
    clone = TrainCfg(
        sim=SimCfg(TASK),
        algo=BcCfg(updates=clone_updates),
        policy=GaussianCfg(horizon=1, hidden=(128, 128)),
        evaluation=NO_EVAL,
        seed=seed,
        dataset=str(data),
    )
    train(clone, out / "clone")
    reflex = TrainCfg(
        sim=SimCfg(TASK, num_envs=64),
        algo=algo,
        policy=GuardedCfg(),
        evaluation=NO_EVAL,
        seed=seed,
        init_from=str(out / "clone"),
    )
    train(reflex, out / "reflex")
    return load_policy(out / "reflex", "latest")


def best_threshold(policy: GuardedPolicy, rate: Any, alone: Mapping[str, float], episodes: int, seed: int) -> float:
    """The threshold of fewest violations on validation starts among those that keep the success of the policy alone.

    If none does, the one of most success.
    """
    found = {t: driven(policy, RiskReflex(policy, t, rate), "val", episodes, seed) for t in THRESHOLDS}
    good = [t for t, one in found.items() if one["success"] >= alone["success"] - MARGIN]
    if good:
        return min(good, key=lambda t: found[t]["violations"])
    return max(found, key=lambda t: found[t]["success"])


def driven(policy: Any, reflex: RiskReflex | None, split: Split, episodes: int, seed: int) -> Numbers:
    """Violations and success of the policy with a reflex on the first starts of a split, each in an env of its own."""
    sim: Any = make_sim(TASK, episodes, seed)
    log = HazardLog(reflex, episodes, sim.hazard_limit)
    sim.set_reflex(log)
    try:
        actor = PolicyActor(policy, episodes, sim.device, None, seed)
        found = run_episodes(actor, sim, sim.state_ids(split)[:episodes], description=split)
    finally:
        sim.close()
    lengths = np.array([one.length for one in found])
    return {
        "violations": float(log.violations.mean()),
        "violated": float((log.violations > 0).mean()),
        "peak": float(np.quantile(log.peak, 0.95)),
        "success": float(np.mean([one.success for one in found])),
        "length_s": float(lengths.mean() * sim.control_dt_s),
        "fired": float(log.fired.sum() / (lengths.sum() * sim.servo_ticks)),
    }


class HazardLog:
    """Counts what the first episode of each env led to; implements `Reflex`.

    A violation is a rise of the hazard above its limit, however long it stays there.

    Args:
        reflex: the reflex that acts; None for none.
        num_envs: N.
        limit: the sim's limit of the hazard.
    """

    def __init__(self, reflex: Reflex | None, num_envs: int, limit: float) -> None:
        self._reflex, self._limit = reflex, limit
        self._episodes = np.zeros(num_envs, np.int64)
        self._above = np.zeros(num_envs, bool)
        self.violations = np.zeros(num_envs, np.int64)
        """(N,) violations."""
        self.peak = np.zeros(num_envs)
        """(N,) largest hazard."""
        self.fired = np.zeros(num_envs, np.int64)
        """(N,) ticks whose action was not the policy's."""

    def act(self, tick: ServoTick) -> Tensor:
        """See `Reflex`."""
        self._episodes += tick.started.numpy()
        sent = tick.action if self._reflex is None else self._reflex.act(tick)
        other = (sent != tick.action).any(dim=1).numpy()
        self.fired += other & (self._episodes == 1)
        return sent

    def felt(self, obs: Tensor, hazard: Tensor) -> None:
        """See `Reflex`."""
        if self._reflex is not None:
            self._reflex.felt(obs, hazard)
        counted = self._episodes == 1
        above = hazard.numpy() > self._limit
        self.violations += above & ~self._above & counted
        self._above = above & counted
        self.peak = np.where(counted, np.maximum(self.peak, hazard.numpy()), self.peak)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), Path(sys.argv[2]).resolve())
