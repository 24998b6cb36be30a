"""RAD-2: first ratios, rows by hand, relabeled plans, ablations, resume, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import robotrl
from robotrl.algos.rad2 import Rad2Cfg, Rad2Learner
from robotrl.learners.learner import Setup
from robotrl.policies.flow import FlowCfg
from robotrl.policies.reranked import RerankedCfg
from robotrl.testing.algorithms import fresh_policy
from tests.kits import warp_kit

CFG = Rad2Cfg(
    iterations=4,
    buffer=2,
    minibatch=16,
    updates=2,
    lr=1e-3,
    generator_every=1,
    generator_updates=2,
    generator_lr=1e-3,
)
RANKED = RerankedCfg(candidates=4, width=16, rounds=1)
FLOW = FlowCfg(horizon=1, denoising_steps=2, hidden=(32,), set_features=8, set_attention=1)


def sim(**options: Any) -> Any:
    """Clips of 9 s, each plan followed for 0.8 s."""
    given = {"log": warp_kit.small_log(None), "reward": "sequence", "actions": "trajectory", "hold": 8} | options
    return robotrl.make_sim("bev/warp", num_envs=8, seed=0, **given)


def planner() -> Any:
    return fresh_policy(FLOW, sim())


def learner(cfg: Rad2Cfg = CFG, ranked: Any = RANKED, seed: int = 0, **options: Any) -> Rad2Learner:
    return cfg.build(Setup(lambda: sim(**options), ranked, planner(), None, seed))
