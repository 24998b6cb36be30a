"""Preset of `gym/ID`: PPO on any Gymnasium environment, `robotrl train gym-ppo --sim gym/Hopper-v5`."""

from __future__ import annotations

from robotrl.algos.ppo import PpoCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.configs.env_steps import in_env_steps
from robotrl.policies.by_action import ByActionCfg


@in_env_steps
def ppo() -> TrainCfg[PpoCfg, ByActionCfg]:
    """PPO from scratch, one action at a time: categorical for discrete actions, Gaussian otherwise."""
    return TrainCfg(
        sim=SimCfg("gym/Pendulum-v1", num_envs=16),
        algo=PpoCfg(
            env_steps=300_000, num_steps=128, epochs=10, minibatch=256, critic_warmup_env_steps=0, normalize_reward=True
        ),
        policy=ByActionCfg(),
        evaluation=EvalCfg(every=5, episodes=32, num_envs=32, animation=0, score="return"),
        stop_at_return="solved",
    )
