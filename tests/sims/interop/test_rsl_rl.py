"""Our sims as rsl_rl's `VecEnv`: numbers worked by hand, and its own runner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import robotrl
from robotrl.errors import CapabilityError, ConfigError
from robotrl.sims.interop import as_rsl_rl
from tests.kits.door_sims import RestartWalk, SeenWalk
from tests.kits.refusals import raises_naming
from tests.kits.walk_sim import Walk

pytest.importorskip("rsl_rl")


def test_flags_observations_and_the_log_of_episodes() -> None:
    sim = RestartWalk(2, limit=3)
    sim.queue_states([2, 2, 4, 0])  # both begin at 0; the next two at 1 and -1
    env = as_rsl_rl(sim, seed=None)
    first = env.get_observations()["policy"]
    kept = first.clone()
    assert (env.num_envs, env.num_actions, env.max_episode_length) == (2, 1, 3)

    _, reward, dones, extras = env.step(torch.tensor([[1.0], [0.25]]))
    assert reward.tolist() == [1.0, 0.25] and dones.tolist() == [0, 0] and dones.dtype == torch.long
    assert "log" not in extras and env.episode_length_buf.tolist() == [1, 1]

    # 5 is clipped to 1: env 0 reaches the goal, which is no time-out
    obs, reward, dones, extras = env.step(torch.tensor([[5.0], [0.25]]))
    assert reward.tolist() == [2.0, 0.5] and dones.tolist() == [1, 0]
    assert extras["time_outs"].tolist() == [False, False]
    assert {key: value.tolist() for key, value in extras["log"].items()} == {
        "Episode/success": [1.0],
        "Episode/return": [3.0],
        "Episode/length": [2.0],
    }
    assert extras["final_ids"].tolist() == [0] and extras["final_obs"]["policy"].tolist() == [[2.0, 2.0]]
    assert obs["policy"].tolist() == [[1.0, 0.0], [0.5, 2.0]]

    _, _, dones, extras = env.step(torch.tensor([[0.0], [0.25]]))
    assert dones.tolist() == [0, 1] and extras["time_outs"].tolist() == [False, True]
    assert extras["log"]["Episode/return"].tolist() == [1.5]
    assert extras["log"]["Episode/success"].tolist() == [0.0]
    assert extras["final_obs"]["policy"].tolist() == [[0.75, 3.0]]
    assert env.episode_length_buf.tolist() == [1, 0]
    assert torch.equal(first, kept), "an observation that was handed out must not change"


def test_groups_of_privileged_arrays_and_pictures() -> None:
    sim = SeenWalk(2)
    sim.queue_states([3, 4])
    env = as_rsl_rl(sim, seed=None, max_episode_length=6)
    obs, *_ = env.step(torch.zeros(2, 1))
    assert obs["policy"].tolist() == [[0.5, 1.0], [1.0, 1.0]]
    assert obs["critic"].tolist() == [[0.5, 1.0, 1.0], [1.0, 1.0, 2.0]]
    assert obs["image"].shape == (2, 3, 4, 6) and bool((obs["image"] == 51 / 255).all())
    assert set(obs.keys()) == {"policy", "critic", "image"}


def test_assigned_counters_are_a_request_for_staggered_episodes() -> None:
    env = as_rsl_rl(robotrl.make_sim("mujoco/peg-insert", num_envs=4))
    assert env.max_episode_length == 80 and env.episode_length_buf.tolist() == [0] * 4
    env.episode_length_buf = torch.tensor([7, 3, 50, 2])
    assert env.episode_length_buf.tolist() == [0, 20, 40, 60]
    env.episode_length_buf = torch.zeros(4, dtype=torch.long)
    assert env.episode_length_buf.tolist() == [0] * 4
    assert as_rsl_rl(env.sim, stagger=True).episode_length_buf.tolist() == [0, 20, 40, 60]


def test_a_sim_that_knows_no_time_limit() -> None:
    with raises_naming(ConfigError, "max_episode_length", "None"):
        as_rsl_rl(Walk(2))
    env = as_rsl_rl(Walk(2), max_episode_length=6)
    env.step(torch.zeros(2, 1))
    assert env.episode_length_buf.tolist() == [1, 1]
    with raises_naming(CapabilityError, "episode_length_buf", "HasTimeLimit", "init_at_random_ep_len=False"):
        env.episode_length_buf = torch.tensor([1, 2])


def test_choices_are_refused() -> None:
    with raises_naming(CapabilityError, "action_0", "2", "as_torchrl"):
        as_rsl_rl(robotrl.make_sim("gym/CartPole-v1", 2))


def test_the_runner_learns_on_a_sim(tmp_path: Path) -> None:
    from rsl_rl.runners import OnPolicyRunner
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    env = as_rsl_rl(robotrl.make_sim("mujoco/peg-insert", num_envs=8, limit_s=0.5, reward="shaped"))
    net = {"class_name": "MLPModel", "hidden_dims": [16], "activation": "tanh"}
    cfg: dict[str, Any] = {
        "num_steps_per_env": 12,
        "save_interval": 100,
        "obs_groups": {"actor": ["policy"], "critic": ["critic"]},
        "actor": {**net, "distribution_cfg": {"class_name": "GaussianDistribution"}},
        "critic": net,
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 2, "num_mini_batches": 2},
    }
    runner = OnPolicyRunner(env, cfg, log_dir=str(tmp_path), device="cpu")
    before = [value.clone() for value in runner.alg.actor.parameters()]
    runner.learn(3, init_at_random_ep_len=True)
    assert any(not torch.equal(a, b) for a, b in zip(before, runner.alg.actor.parameters(), strict=True))
    logged = EventAccumulator(str(tmp_path)).Reload()
    assert {"Episode/success", "Episode/return"} <= set(logged.Tags()["scalars"])
