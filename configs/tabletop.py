"""Presets of the tabletop: a vision-language-action policy from nothing, cloned from the scripted expert."""

from __future__ import annotations

from robotrl.algos.bc import BcCfg
from robotrl.algos.grpo import GrpoCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.policies.vla.token import TokenVlaCfg

SIM = "mujoco/tabletop"
OPTIONS = ("image=flat_near", "image_size=64", "families=point,lift,push", "limit_s=5.0")


def bc_token() -> TrainCfg[BcCfg, TokenVlaCfg]:
    """Clone pointing, lifting and pushing into a small policy that sees, reads, and says its actions as tokens.

    Demonstrations: `robotrl demos mujoco/tabletop --options image=flat_near image_size=64 families=point,lift,push`.
    """
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=64, options=OPTIONS),
        algo=BcCfg(updates=4000, batch=64, lr=1e-3, ema=0.99, image_shift=0),
        policy=TokenVlaCfg(horizon=4, label_bins=3.0),
        evaluation=EvalCfg(every=0, episodes=192, num_envs=96),
    )


def grpo() -> TrainCfg[GrpoCfg, TokenVlaCfg]:
    """Fine-tune what `tabletop-bc-token` cloned by group-relative reinforcement learning: `--init-from RUN`."""
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=64, options=OPTIONS),
        algo=GrpoCfg(),
        policy=TokenVlaCfg(),
        evaluation=EvalCfg(every=10, episodes=192, num_envs=96),
        checkpoint_every=5,
    )
