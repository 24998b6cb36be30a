"""Presets of the manipulation tasks: behavior cloning of the experts, and PPO from scratch."""

from __future__ import annotations

from typing import TypeVar

from robotrl.algos.bc import BcCfg
from robotrl.algos.ppo import PpoCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.configs.env_steps import in_env_steps
from robotrl.policies.diffusion import DiffusionCfg
from robotrl.policies.flow import FlowCfg
from robotrl.policies.gaussian import GaussianCfg
from robotrl.policies.shortcut import ShortcutCfg

REACH, PUSH, PICK_PLACE = "mujoco/reach", "mujoco/push", "mujoco/pick-place"
P = TypeVar("P")


def reach_bc_flow() -> TrainCfg[BcCfg, FlowCfg]:
    """Clone demonstrations of reaching with a flow policy."""
    return _clone(REACH, FlowCfg(), updates=800)


def push_bc_flow() -> TrainCfg[BcCfg, FlowCfg]:
    """Clone demonstrations of pushing with a flow policy."""
    return _clone(PUSH, FlowCfg(), updates=2000)


def push_bc_diffusion() -> TrainCfg[BcCfg, DiffusionCfg]:
    """Clone demonstrations of pushing with a diffusion policy."""
    return _clone(PUSH, DiffusionCfg(), updates=2000)


def push_bc_shortcut() -> TrainCfg[BcCfg, ShortcutCfg]:
    """Clone demonstrations of pushing with a shortcut policy, which runs on 4, 2 or 1 steps."""
    return _clone(PUSH, ShortcutCfg(), updates=2000)


def pick_place_bc_flow() -> TrainCfg[BcCfg, FlowCfg]:
    """Clone demonstrations of picking and placing with a flow policy."""
    return _clone(PICK_PLACE, FlowCfg(), updates=2000)


def pick_place_bc_diffusion() -> TrainCfg[BcCfg, DiffusionCfg]:
    """Clone demonstrations of picking and placing with a diffusion policy."""
    return _clone(PICK_PLACE, DiffusionCfg(), updates=2000)


def pick_place_bc_shortcut() -> TrainCfg[BcCfg, ShortcutCfg]:
    """Clone demonstrations of picking and placing with a shortcut policy, which runs on 4, 2 or 1 steps."""
    return _clone(PICK_PLACE, ShortcutCfg(), updates=2000)


def reach_ppo() -> TrainCfg[PpoCfg, GaussianCfg]:
    """Learn to reach from scratch, on the shaped reward."""
    return _from_scratch(REACH)


def push_ppo() -> TrainCfg[PpoCfg, GaussianCfg]:
    """Learn to push from scratch, on the shaped reward; or from a pretrained policy with `--init-from`."""
    return _from_scratch(PUSH)


def _clone(sim: str, policy: P, updates: int) -> TrainCfg[BcCfg, P]:
    return TrainCfg(
        sim=SimCfg(sim),
        algo=BcCfg(updates=updates, updates_per_iteration=100),
        policy=policy,
        evaluation=EvalCfg(every=0),
        checkpoint_every=4,
    )


@in_env_steps
def _from_scratch(sim: str) -> TrainCfg[PpoCfg, GaussianCfg]:
    return TrainCfg(
        sim=SimCfg(sim, num_envs=96, options={"reward": "shaped"}),
        algo=PpoCfg(critic_warmup_env_steps=15_360),
        policy=GaussianCfg(),
        evaluation=EvalCfg(every=10, episodes=128),
    )
