"""Off-policy learners on the walk, small enough for tests, and walks of random steps to learn from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import tests.kits.learner_kit as kit
from robotrl.algos.distill import DistillCfg
from robotrl.algos.fql import FqlCfg
from robotrl.algos.iql import IqlCfg
from robotrl.algos.pa_rl import PaRlCfg
from robotrl.algos.qc import QcCfg
from robotrl.algos.recap import RecapCfg
from robotrl.algos.residual import ResidualCfg
from robotrl.algos.residual_forms.per_step import PerStepCfg
from robotrl.algos.rl100 import Rl100Cfg
from robotrl.algos.rlpd import RlpdCfg
from robotrl.algos.sac import SacCfg
from robotrl.algos.td3_bc import Td3BcCfg
from robotrl.datasets.writer import DatasetWriter
from robotrl.learners.dynamics.cfg import DynamicsCfg
from robotrl.learners.learner import Setup
from robotrl.policies.squashed import SquashedCfg
from tests.kits.walk_sim import GOAL, PIT, Walk

POLICY = SquashedCfg(horizon=1, hidden=(32, 32))
CHUNKS = replace(POLICY, horizon=2)
ENVS = 4
SAC = SacCfg(
    env_steps=4000,
    num_steps=8,
    warmup=64,
    batch=32,
    capacity=2000,
    lr=3e-3,
    critic_lr=3e-3,
    alpha_lr=3e-3,
    initial_alpha=0.1,
    tau=0.02,
    gamma=0.9,
    critic_hidden=(32, 32),
    engine="eager",
)
RLPD = RlpdCfg(
    env_steps=400,
    num_steps=4,
    warmup=32,
    utd_ratio=3,
    batch=32,
    capacity=400,
    lr=3e-3,
    critic_lr=3e-3,
    gamma=0.9,
    num_critics=3,
    critic_hidden=(32, 32),
    engine="eager",
)
IQL = IqlCfg(
    updates=40,
    updates_per_iteration=10,
    batch=32,
    capacity=400,
    num_steps=4,
    lr=3e-3,
    critic_lr=3e-3,
    value_lr=3e-3,
    gamma=0.9,
    tau=0.02,
    critic_hidden=(32, 32),
    ema=0.0,
    engine="eager",
)
FQL = FqlCfg(
    updates=40,
    updates_per_iteration=10,
    num_steps=4,
    warmup=16,
    batch=32,
    capacity=2000,
    flow_steps=3,
    lr=3e-3,
    gamma=0.9,
    tau=0.02,
    critic_hidden=(32, 32),
    engine="eager",
)
PA_RL = PaRlCfg(
    critic_updates=20,
    updates=30,
    updates_per_iteration=10,
    batch=32,
    candidates=4,
    target_candidates=2,
    critic_lr=3e-3,
    gamma=0.9,
    tau=0.02,
    critic_hidden=(32, 32),
    engine="eager",
)
QC = QcCfg(
    updates=20,
    updates_per_iteration=10,
    env_steps=64,
    num_steps=4,
    warmup=16,
    utd_ratio=0.5,
    batch=32,
    capacity=2000,
    candidates=4,
    target_candidates=2,
    lr=3e-3,
    critic_lr=3e-3,
    gamma=0.9,
    tau=0.02,
    critic_hidden=(32, 32),
    engine="eager",
)
RECAP = RecapCfg(
    value_updates=20,
    updates=30,
    updates_per_iteration=10,
    batch=32,
    advantage_steps=2,
    condition_hidden=(16,),
    bins=21,
    value_hidden=(32, 32),
    value_lr=3e-3,
    # a value of so few updates is no good
    least_rank=-1.0,
    engine="eager",
)
RL100 = Rl100Cfg(
    critic_updates=20,
    updates=30,
    updates_per_iteration=10,
    batch=32,
    # any rise is enough for updates so small
    margin=0.0,
    lr=1e-3,
    critic_lr=3e-3,
    gamma=0.9,
    tau=0.02,
    critic_hidden=(32, 32),
    engine="eager",
)
ALONG = replace(
    RL100, gate_steps=3, dynamics=DynamicsCfg(nets=3, elites=2, hidden=(16, 16), updates=20, batch=32, lr=3e-3)
)
"""RL-100 with a gate along the steps of a model."""
RESIDUAL = ResidualCfg(
    updates=10,
    updates_per_iteration=5,
    env_steps=96,
    num_steps=4,
    warmup=16,
    utd_ratio=0.5,
    demo_decay=16,
    batch=32,
    capacity=2000,
    hidden=(32, 32),
    noises=3,
    candidates=4,
    target_noises=2,
    lr=3e-3,
    critic_lr=3e-3,
    gamma=0.9,
    tau=0.02,
    num_critics=2,
    critic_hidden=(32, 32),
    engine="eager",
)
RESIDUAL_STEP = ResidualCfg(
    updates=10,
    updates_per_iteration=5,
    env_steps=96,
    num_steps=4,
    warmup=16,
    utd_ratio=0.5,
    demo_decay=16,
    batch=32,
    capacity=2000,
    hidden=(32, 32),
    per_step=PerStepCfg(on=True, scale=0.3, n_step=3, critic_updates=3, actor_every=2),
    lr=3e-3,
    critic_lr=3e-3,
    gamma=0.9,
    tau=0.02,
    num_critics=2,
    critic_hidden=(32, 32),
    engine="eager",
)
DISTILL = DistillCfg(
    updates=20,
    updates_per_iteration=10,
    env_steps=64,
    num_steps=4,
    utd_ratio=0.5,
    batch=32,
    capacity=2000,
    lr=3e-3,
    engine="eager",
)
TD3_BC = Td3BcCfg(
    updates=40,
    updates_per_iteration=10,
    batch=32,
    lr=3e-3,
    gamma=0.9,
    tau=0.02,
    critic_hidden=(32, 32),
    engine="eager",
)


def setup(policy_cfg: Any = POLICY, dataset: Path | None = None, init_policy: Any = None, seed: int = 0) -> Setup:
    return Setup(lambda: Walk(ENVS), policy_cfg, init_policy, dataset, seed)


def write_random_walks(path: Path, episodes: int = 40, fps: int = 10, seed: int = 0) -> Path:
    """Walks of random steps, their rewards and ends those of the sim, of which `write_walks` has none."""
    draw = np.random.default_rng(seed)
    with DatasetWriter(path, fps=fps, observation_spec=kit.SPECS, action_spec=kit.ACTION, provenance={}) as writer:
        for _ in range(episodes):
            x, rows, actions, rewards = float(draw.integers(-2, 3)) / 2, [], [], []
            for t in range(6):
                rows.append([x, t])
                actions.append([draw.uniform(-1, 1)])
                x += actions[-1][0]
                rewards.append(x)
                if not PIT < x < GOAL:
                    break
            writer.add_episode(
                {"walk": np.array(rows, np.float32)},
                np.array(actions, np.float32),
                np.array(rewards, np.float32),
                success=x >= GOAL,
                truncated=PIT < x < GOAL,
                task="walk",
            )
        return writer.finish()


class Watcher:
    """Whoever watches, from a function."""

    def __init__(self, corrector: Any) -> None:
        self._corrector = corrector

    def __call__(self, obs: Any, action: Any, started: Any) -> Any:
        return self._corrector(obs, action, started)

    def close(self) -> None:
        """Nothing is held."""


def run(learner: Any, iterations: int) -> list[dict[str, float]]:
    return [learner.iterate() for _ in range(iterations)]
