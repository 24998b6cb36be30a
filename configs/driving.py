"""Driving presets: CaRL's PPO planner on vectors or on a raster image."""

from __future__ import annotations

from dataclasses import replace

from robotrl.algos.ppo import PpoCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.configs.env_steps import in_env_steps
from robotrl.policies.beta import BetaCfg
from robotrl.sims.bev.sim import DriveCfg

SIM = "bev/drive"
VECTORS = DriveCfg(polylines=0, hold=3, end_penalty=10.0)
"""No lane polylines: the route and its traffic rules are observed in any case. Each action lasts 0.3 s, for consistent
exploration."""
RASTER = DriveCfg(obs="raster", raster_pixels=48, pixels_per_m=1.0, hold=3, end_penalty=10.0)


@in_env_steps
def drive_ppo() -> TrainCfg[PpoCfg, BetaCfg]:
    """PPO on all driving scenarios from vectors: Beta policy, asymmetric critic, CaRL's reward.

    The critic also observes the state of the penalties. Unlike in CaRL, an action lasts 0.3 s, a collision costs 10 of
    a route's 100, the discount horizon is 100 s, and the learning rate is three times as high, because the budget is a
    few million samples, not hundreds. Road users are encoded as a set (shared weights). The sim's page has ablations.
    """
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=512, options=VECTORS),
        algo=PpoCfg(
            env_steps=25_000_000,
            num_steps=64,
            epochs=3,
            minibatch=2048,
            lr=7e-4,
            critic_lr=1e-3,
            lr_schedule="linear",
            gamma=0.997,
            gae_lambda=0.95,
            clip_coef=0.2,
            entropy_coef=0.01,
            target_kl=0.03,
            critic_warmup_env_steps=0,
            max_grad_norm=0.5,
            critic_hidden=(128, 128),
            critic_activation="relu",
            normalize_reward=True,
        ),
        policy=BetaCfg(horizon=1, hidden=(256, 256), activation="relu", set_features=32),
        evaluation=EvalCfg(every=0, episodes=256, num_envs=256),
        checkpoint_every=50,
    )


def drive_ppo_raster() -> TrainCfg[PpoCfg, BetaCfg]:
    """`drive_ppo` on CaRL's ten-channel raster image: small CNN with LayerNorm; 48 m wide to run on a CPU."""
    vectors = drive_ppo()
    return replace(
        vectors,
        sim=SimCfg(SIM, num_envs=128, options=RASTER),
        checkpoint_every_env_steps=204_800,
        algo=replace(vectors.algo, env_steps=1_000_000, num_steps=32, minibatch=512, lr=5e-4, critic_lr=5e-4),
        policy=replace(
            vectors.policy, image_channels=(16, 32, 32), image_features=128, image_pool="flatten", image_norm="layer"
        ),
    )
