"""The real rsl_rl and skrl train on the stand-ins: what they need of Isaac's surface is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.kits.isaac_standins import lab, vec_task


def rsl_rl_cfg(critic: str) -> dict[str, Any]:
    actor = {
        "class_name": "MLPModel",
        "hidden_dims": [16],
        "activation": "elu",
        "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0},
    }
    return {
        "num_steps_per_env": 30,
        "save_interval": 1000,
        "logger": "tensorboard",
        "obs_groups": {"actor": ["policy"], "critic": [critic]},
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 1, "num_mini_batches": 2, "rnd_cfg": None},
        "actor": actor,
        "critic": {"class_name": "MLPModel", "hidden_dims": [16], "activation": "elu"},
    }


def rsl_rl_env(env: Any, is_task: bool) -> Any:
    """The environment as rsl_rl's `VecEnv`, as Isaac Lab's and mjlab's own wrappers do it, without their type check."""
    from rsl_rl.env import VecEnv
    from tensordict import TensorDict

    class Env(VecEnv):
        num_envs, device, cfg = env.num_envs, "cpu", {}
        max_episode_length, num_actions = env.max_episode_length, 3

        def __init__(self) -> None:
            found = env.reset()
            self.obs = self.packed(found if is_task else found[0])
            self.failures = self.time_outs = 0

        def packed(self, obs: dict[str, torch.Tensor]) -> TensorDict:
            names = {"obs": "policy", "states": "critic"}
            return TensorDict({names.get(k, k): v.clone() for k, v in obs.items()}, batch_size=[env.num_envs])

        @property
        def episode_length_buf(self) -> torch.Tensor:
            return env.progress_buf if is_task else env.episode_length_buf

        @episode_length_buf.setter
        def episode_length_buf(self, value: torch.Tensor) -> None:
            self.episode_length_buf[:] = value

        def get_observations(self) -> TensorDict:
            return self.obs

        def step(self, actions: torch.Tensor) -> Any:
            if is_task:
                obs, reward, dones, extras = env.step(actions)
            else:
                obs, reward, terminated, time_outs, extras = env.step(actions)
                dones = (terminated | time_outs).long()
                extras["time_outs"] = time_outs.clone()
            self.obs = self.packed(obs)
            self.time_outs += int(extras["time_outs"].sum())
            self.failures += int((dones.bool() & ~extras["time_outs"]).sum())
            return self.obs, reward.clone(), dones.clone(), extras

    return Env()


@pytest.mark.parametrize("is_task", [False, True], ids=["lab", "vec_task"])
def test_rsl_rl_trains_on_the_stand_in(is_task):
    pytest.importorskip("rsl_rl")
    from rsl_rl.runners import OnPolicyRunner

    torch.manual_seed(0)
    env = rsl_rl_env((vec_task if is_task else lab)(num_envs=8, seed=0, limit=80), is_task)
    runner = OnPolicyRunner(env, rsl_rl_cfg("critic"), log_dir=None, device="cpu")
    before = [p.clone() for p in runner.alg.actor.parameters()]
    runner.learn(num_learning_iterations=4, init_at_random_ep_len=True)
    assert any(not torch.equal(a, b) for a, b in zip(before, runner.alg.actor.parameters(), strict=True))
    assert all(p.isfinite().all() for p in runner.alg.actor.parameters())
    assert env.failures > 0 and env.time_outs > 0


def test_skrl_trains_on_the_stand_in(tmp_path):
    pytest.importorskip("skrl")
    from skrl.envs.wrappers.torch import wrap_env

    wrapped = wrap_env(lab(num_envs=4, seed=0, limit=6), wrapper="isaaclab", verbose=False)
    assert wrapped.observation_space.shape == (11,) and wrapped.state_space.shape == (13,)
    obs, _ = wrapped.reset()
    ended = 0
    for _ in range(20):
        obs, reward, terminated, truncated, _ = wrapped.step(torch.zeros(4, 3))
        assert obs.shape == (4, 11) and wrapped.state().shape == (4, 13) and reward.shape == (4, 1)
        ended += int((terminated | truncated).sum())
    assert ended == 12
    _train_with_skrl(wrapped, tmp_path)


def _train_with_skrl(wrapped: Any, tmp_path: Path) -> None:
    from skrl.agents.torch.ppo import PPO, PPO_CFG
    from skrl.memories.torch import RandomMemory
    from skrl.trainers.torch import SequentialTrainer
    from skrl.utils.model_instantiators.torch import deterministic_model, gaussian_model

    network = [{"name": "net", "input": "OBSERVATIONS", "layers": [16], "activations": "elu"}]
    spaces = {
        "observation_space": wrapped.observation_space,
        "state_space": wrapped.state_space,
        "action_space": wrapped.action_space,
        "device": "cpu",
    }
    models = {
        "policy": gaussian_model(**spaces, network=network, output="ACTIONS"),
        "value": deterministic_model(**spaces, network=network, output="ONE"),
    }
    cfg = PPO_CFG()
    cfg.rollouts, cfg.learning_epochs, cfg.mini_batches = 8, 1, 2
    cfg.experiment.directory, cfg.experiment.write_interval, cfg.experiment.checkpoint_interval = str(tmp_path), 0, 0
    agent = PPO(
        models=models,
        memory=RandomMemory(memory_size=8, num_envs=4, device="cpu"),
        cfg=cfg,
        observation_space=wrapped.observation_space,
        state_space=wrapped.state_space,
        action_space=wrapped.action_space,
        device="cpu",
    )
    for model in models.values():  # lazy layers get their width here
        model.init_state_dict()
    before = [p.clone() for p in models["policy"].parameters()]
    trainer = SequentialTrainer(
        env=wrapped, agents=agent, cfg={"timesteps": 24, "headless": True, "disable_progressbar": True}
    )
    trainer.train()
    after = list(models["policy"].parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(p.isfinite().all() for p in after)
