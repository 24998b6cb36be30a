"""Presets of the driving world: CaRL's planner, from scratch."""

from __future__ import annotations

from robotrl.algos.ppo import PpoCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.policies.beta import BetaCfg


def drive_ppo() -> TrainCfg[PpoCfg, BetaCfg]:
    """Drive every scenario from vectors: Beta policy, a critic that knows the penalties' state, CaRL's reward.

    Large minibatches and few epochs, as CaRL; a longer horizon than its 0.99, since what a collision costs is the rest
    of the route.
    """
    return TrainCfg(
        sim=SimCfg("bev/drive", num_envs=512, options=("polylines=0",)),
        algo=PpoCfg(
            env_steps=20_000_000,
            steps_per_env=64,
            epochs=3,
            minibatch=4096,
            lr=5e-4,
            critic_lr=5e-4,
            lr_schedule="linear",
            gamma=0.995,
            lam=0.95,
            clip_coef=0.2,
            entropy_coef=0.002,
            target_kl=0.03,
            critic_warmup=0,
            grad_norm=0.5,
            critic_hidden=(128, 128),
            critic_activation="relu",
            normalise_reward=True,
        ),
        policy=BetaCfg(horizon=1, hidden=(128, 128), activation="relu"),
        evaluation=EvalCfg(every=0, episodes=256, num_envs=256),
        checkpoint_every=50,
    )
