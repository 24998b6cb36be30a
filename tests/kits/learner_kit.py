"""Learners on the walk, small enough for tests."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robotrl.algos.ppo import PpoCfg
from robotrl.algos.reinflow import ReinFlowCfg
from robotrl.datasets.writer import DatasetWriter
from robotrl.learners.collection.older_policy import WEIGHT
from robotrl.learners.learner import Setup
from robotrl.learners.on_policy import OnPolicyBatch
from robotrl.policies.beta import BetaCfg, BetaPolicy
from robotrl.policies.diffusion import DiffusionCfg, DiffusionPolicy
from robotrl.policies.flow import FlowCfg, FlowPolicy
from robotrl.policies.gaussian import GaussianCfg, GaussianPolicy
from robotrl.policies.shortcut import ShortcutCfg
from robotrl.transforms import Clip, TransformGroup, bounds_to_unit, inverse, normalize
from tests.kits.walk_sim import Walk

SPECS, ACTION = Walk(1).observation_spec, Walk(1).action_spec
TRANSFORMS = TransformGroup(
    (normalize("walk", [0.0, 3.0], [1.0, 2.0]),),
    (inverse(bounds_to_unit("action", ACTION.low, ACTION.high)), Clip("action", ACTION.low, ACTION.high)),
)
FLOW = FlowCfg(horizon=2, denoising_steps=3, hidden=(32, 32))
SHORTCUT = ShortcutCfg(horizon=2, denoising_steps=4, hidden=(32, 32))
DIFFUSION = DiffusionCfg(horizon=2, levels=10, denoising_steps=5, hidden=(32, 32))
GAUSSIAN = GaussianCfg(horizon=2, hidden=(32, 32))
BETA = BetaCfg(horizon=2, hidden=(32, 32))
SMALL: dict[str, Any] = {
    "env_steps": 32 * 16 * 4,
    "num_steps": 16,
    "epochs": 2,
    "minibatch": 64,
    "critic_warmup_env_steps": 1,
    "critic_hidden": (64, 64),
    "engine": "eager",
}
REINFLOW = ReinFlowCfg(**SMALL)
PPO = PpoCfg(**SMALL)


def flow(seed: int = 0) -> FlowPolicy:
    torch.manual_seed(seed)
    return FLOW.build(SPECS, ACTION, TRANSFORMS)


def diffusion(seed: int = 0) -> DiffusionPolicy:
    torch.manual_seed(seed)
    return DIFFUSION.build(SPECS, ACTION, TRANSFORMS)


def gaussian(seed: int = 0) -> GaussianPolicy:
    torch.manual_seed(seed)
    return GAUSSIAN.build(SPECS, ACTION, TRANSFORMS)


def beta(seed: int = 0) -> BetaPolicy:
    torch.manual_seed(seed)
    return BETA.build(SPECS, ACTION, TRANSFORMS)


def setup(init_policy: Any = None, policy_cfg: Any = None, dataset: Path | None = None, num_envs: int = 32) -> Setup:
    return Setup(lambda: Walk(num_envs), policy_cfg, init_policy, dataset, 0)


def snapshot(state: Any) -> Any:
    """A learner's state as a checkpoint would hold it: no longer connected to the learner."""
    return copy.deepcopy(state)


def same(a: Any, b: Any) -> bool:
    """Whether two states are equal to the last bit."""
    if isinstance(a, Tensor):
        exact = {"rtol": 0.0, "atol": 0.0, "equal_nan": True}
        return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, **exact)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def write_walks(path: Path, episodes: int = 12) -> Path:
    """Demonstrations whose action is -0.4 x, of lengths 3 to 8."""
    draw = np.random.default_rng(0)
    with DatasetWriter(
        path, fps=10, observation_spec=SPECS, action_spec=ACTION, robot_type="walk", provenance={}
    ) as writer:
        for _ in range(episodes):
            x, rows, actions = draw.uniform(-1.5, 1.5), [], []
            for t in range(int(draw.integers(3, 9))):
                rows.append([x, t])
                actions.append([-0.4 * x])
                x += actions[-1][0]
            writer.add_episode(
                {"walk": np.array(rows, np.float32)},
                np.array(actions, np.float32),
                np.zeros(len(rows), np.float32),
                success=True,
                truncated=False,
                task="walk",
            )
        return writer.finish()


def of_the_acting_policy(batch: OnPolicyBatch) -> OnPolicyBatch:
    """The batch with the weights of a policy that learns from its own decisions: all 1."""
    return batch._replace(record=batch.record | {WEIGHT: torch.ones_like(batch.record["log_prob"])})
