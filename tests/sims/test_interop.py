"""Every sim of ours as Gymnasium environments and as a `VecEnv`, held against the checkers and code of both."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv

import robotrl
from robotrl.errors import CapabilityError, ConfigError
from robotrl.registry import SIMS, sim_options
from robotrl.sims.interop import GymnasiumEnv, GymnasiumVectorEnv, as_sb3, gymnasium_id
from robotrl.sims.mujoco.render.views import Raster
from tests.kits.warp_kit import small_log

SIM = "mujoco/peg-insert"
ARRAY_OPTIONS: dict[str, dict[str, Any]] = {"dtype": {"dtype": "float64"}}
"""Option to the options that a variant is made with; pictures have a camera of each sim's own."""


def variants() -> list[tuple[str, dict[str, Any]]]:
    """Every sim with its own options, and again with what changes the type of its arrays, where it has such options."""
    found: list[tuple[str, dict[str, Any]]] = []
    for name in SIMS.names():
        options = vars(sim_options(name))
        if "log" in options:
            log = {"log": small_log(), "raster_pixels": 36}
            found += [(name, log), (name, {**log, "obs": "both", "packed": True})]
            continue
        found.append((name, {}))
        found += [(name, extra) for option, extra in ARRAY_OPTIONS.items() if option in options]
        if "image" in options:
            views = robotrl.make_sim(name, 1).core.task.views
            raster = next(camera for camera, view in views.items() if isinstance(view, Raster))
            found.append((name, {"image": raster, "image_size": 36}))
        if "raster_pixels" in options:
            found += [(name, {"obs": "raster", "raster_pixels": 36}), (name, {"obs": "both", "packed": True})]
    return found


every_sim = pytest.mark.parametrize(
    ("name", "options"), variants(), ids=lambda value: value if isinstance(value, str) else ",".join(value) or "plain"
)


def quiet() -> None:
    """Warnings are errors, but for those about bounds that are infinite by nature."""
    warnings.simplefilter("error")
    warnings.filterwarnings(
        "ignore", message="(?s).*(infinity|not having a spec|We recommend|symmetric and normalized)"
    )


@every_sim
def test_single_environments_pass_the_checkers(name: str, options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        quiet()
        env = gym.make(gymnasium_id(name), **options)
        check_env(env.unwrapped)
        sb3_check_env(GymnasiumEnv(robotrl.make_sim(name, 1, **options)))
        env.close()


@every_sim
def test_vector_environments_are_what_gymnasium_makes_of_single_ones(name: str, options: dict[str, Any]) -> None:
    """Gymnasium has no checker for vector environments: its own same-step implementation serves as one."""
    n, steps = 3, 12
    ours = gym.make_vec(gymnasium_id(name), num_envs=n, **options)
    sim = ours.unwrapped.sim
    ids = [int(sim.state_ids("val")[i]) for i in range(n)]

    def single(row: int) -> gym.Env[Any, Any]:
        alone = robotrl.make_sim(name, 1, **options)
        alone.queue_states([ids[row]])
        return GymnasiumEnv(alone)

    theirs = SyncVectorEnv([lambda i=i: single(i) for i in range(n)], autoreset_mode=AutoresetMode.SAME_STEP)
    assert ours.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    for space in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
        assert getattr(ours, space) == getattr(theirs, space), space
    sim.queue_states(ids)
    assert data_equivalence(ours.reset(), theirs.reset())
    ours.action_space.seed(1)
    for t in range(steps):
        action = ours.action_space.sample()
        mine, reference = ours.step(action), theirs.step(action)
        if (mine[2] | mine[3]).any():  # what follows starts from ids that the two draw apart
            assert np.array_equal(mine[2], reference[2])
            assert data_equivalence(mine[4]["final_obs"].tolist(), reference[4]["final_obs"].tolist())
            break
        assert data_equivalence(mine, reference), f"step {t}"
        assert mine[0] in ours.observation_space


def test_ids_work_in_a_fresh_process_without_an_import_of_ours() -> None:
    code = (
        "import gymnasium as gym\n"
        f"env = gym.make('robotrl.sims.interop:{gymnasium_id(SIM)}', limit_s=0.5)\n"
        "env.reset(seed=0)\n"
        "print([env.step(env.action_space.sample())[3] for _ in range(10)][-1], env.spec.id)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True", gymnasium_id(SIM)]


def test_ids_follow_the_registry() -> None:
    assert gymnasium_id(SIM) == "robotrl/peg-insert-v0"
    ids = [gymnasium_id(name) for name in SIMS.names()]
    assert len(set(ids)) == len(ids)
    assert set(ids) <= set(gym.registry)


def test_options_reach_the_sim_and_the_view() -> None:
    env = gym.make_vec(gymnasium_id(SIM), num_envs=2, limit_s=1.0, render_mode="rgb_array", width=20, height=10)
    assert isinstance(env, GymnasiumVectorEnv)
    assert env.sim.core.task.limit_steps == 20  # pyright: ignore[reportAttributeAccessIssue]
    env.reset(seed=0)
    pictures = env.render()
    assert pictures is not None
    assert pictures[0].shape == (10, 20, 3)
    with pytest.raises(ConfigError, match="option 'limits' of sim 'mujoco/peg-insert' is unknown: did you mean"):
        gym.make(gymnasium_id(SIM), limits=1.0)


# Stable-Baselines3


def test_stable_baselines_learns_on_a_sim_and_evaluates() -> None:
    env = as_sb3(robotrl.make_sim(SIM, num_envs=8, limit_s=0.5, reward="shaped"))
    assert isinstance(env, VecEnv)
    model = PPO("MlpPolicy", env, n_steps=32, batch_size=64, n_epochs=2, seed=0, device="cpu")
    before = [value.clone() for value in model.policy.parameters()]
    model.learn(512)
    assert model.num_timesteps == 512
    assert any(not torch.equal(a, b) for a, b in zip(before, model.policy.parameters(), strict=True))
    assert len(model.ep_info_buffer or ()) >= 8
    assert {info["l"] for info in model.ep_info_buffer or ()} == {10}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it would warn of an env without Monitor's statistics
        returns, lengths = evaluate_policy(model, env, n_eval_episodes=8, return_episode_rewards=True)
    assert lengths == [10] * 8
    assert all(isinstance(value, float) for value in returns)


def test_time_outs_and_successes_are_told_apart_and_the_last_observation_is_kept() -> None:
    n, ids = 6, range(1 << 30, (1 << 30) + 6)
    sims = [robotrl.make_sim(SIM, num_envs=n, limit_s=1.2) for _ in range(2)]
    for sim in sims:
        sim.queue_states(ids)
    env = as_sb3(sims[0])
    obs = env.reset()
    assert np.array_equal(obs, sims[1].reset()["state"].numpy())
    expert, started = sims[1].make_expert(mode="left"), torch.ones(n, dtype=torch.bool)
    returns, lengths = np.zeros(n), np.zeros(n, int)
    seen = {True: 0, False: 0}
    for _ in range(24):
        action = expert.act(started)
        obs, rewards, dones, infos = env.step(action.numpy())
        reference = sims[1].step(action)
        started = reference.terminated | reference.truncated
        returns += rewards
        lengths += 1
        assert np.array_equal(dones, started.numpy())
        for row, i in enumerate(reference.final_ids.tolist()):
            info = infos[i]
            assert np.array_equal(info["terminal_observation"], reference.final_obs["state"][row].numpy())
            assert info["TimeLimit.truncated"] == bool(reference.truncated[i])
            assert info["is_success"] == bool(reference.info["success"][i])
            assert info["state_id"] == int(reference.info["state_id"][i])
            assert (info["episode"]["r"], info["episode"]["l"]) == (returns[i], lengths[i])
            seen[info["TimeLimit.truncated"]] += 1
            returns[i], lengths[i] = 0, 0
        assert all(infos[i] == {} for i in np.flatnonzero(~dones))
    assert min(seen.values()) > 0


def test_observations_for_stable_baselines_are_copies_and_seeds_repeat() -> None:
    env = as_sb3(robotrl.make_sim(SIM, num_envs=2))
    env.seed(3)
    first = env.reset()
    kept = first.copy()
    env.step(np.ones((2, 4), np.float32))
    assert np.array_equal(first, kept)
    assert not np.array_equal(env.reset(), kept)
    env.seed(3)
    assert np.array_equal(env.reset(), kept)
    assert env.get_attr("control_dt_s") == [0.05, 0.05]
    assert env.get_images()[1].shape == (240, 320, 3)
    for call in (lambda: env.set_attr("x", 1), lambda: env.env_method("x")):
        with pytest.raises(CapabilityError, match="no object for each env"):
            call()


def test_several_arrays_become_a_dict_space() -> None:
    env = as_sb3(robotrl.make_sim("gym/tests.kits.gym_toys:Toy-v0", num_envs=3, limit_steps=4))
    model = PPO("MultiInputPolicy", env, n_steps=8, batch_size=8, n_epochs=1, device="cpu")
    model.learn(24)
    env.reset()
    for _ in range(4):
        _, _, dones, infos = env.step(np.zeros((3, 2), np.float32))
    assert dones.all()
    last = infos[1]["terminal_observation"]
    assert {key: value.shape for key, value in last.items()} == {
        key: space.shape for key, space in env.observation_space.spaces.items()
    }


def test_a_sim_without_last_observations_is_refused() -> None:
    class Blind:
        num_envs = 1

    with pytest.raises(CapabilityError, match="HasFinalObs"):
        as_sb3(Blind())
