"""Sims as plain Gymnasium environments, held against Gymnasium's own code and checkers."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics
from stable_baselines3.common.env_checker import check_env as sb3_check_env

import robotrl
from robotrl.errors import CapabilityError, ConfigError
from robotrl.sims.interop import GymnasiumEnv, GymnasiumVectorEnv, space_of
from robotrl.spec import Spec
from tests.kits.refusals import raises_naming

SHORT = {"limit_s": 0.5}


def make(num_envs: int, **options: Any) -> Any:
    return robotrl.make_sim("mujoco/peg-insert", num_envs=num_envs, seed=0, **options)


def random_actions(env: GymnasiumVectorEnv, steps: int) -> np.ndarray:
    env.action_space.seed(0)
    return np.stack([env.action_space.sample() for _ in range(steps)])


def test_the_single_environment_passes_the_checkers_of_gymnasium_and_stable_baselines() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # unbounded velocities, and no entry in Gymnasium's registry
        warnings.filterwarnings("ignore", message="(?s).*(infinity|not having a spec)")
        check_env(GymnasiumEnv(make(1, **SHORT), render_mode="rgb_array", width=32, height=24))
        sb3_check_env(GymnasiumEnv(make(1, **SHORT)))


def test_the_vector_environment_is_what_gymnasium_makes_of_single_ones() -> None:
    """Gymnasium 1.4 has no checker for vector environments: its own same-step implementation serves as one."""
    n, episodes = 4, 8
    ids = np.arange(n * episodes).reshape(n, episodes) + (1 << 30)
    # the longest time that an expert takes here is about 1.6 s: most episodes succeed, some time out
    limit = {"limit_s": 1.0}

    def single(column: int) -> gym.Env[Any, Any]:
        sim = make(1, **limit)
        sim.queue_states(ids[column])
        return GymnasiumEnv(sim)

    theirs = SyncVectorEnv([lambda i=i: single(i) for i in range(n)], autoreset_mode=AutoresetMode.SAME_STEP)
    sim = make(n, **limit)
    ours = sim.as_gymnasium()
    assert isinstance(ours, GymnasiumVectorEnv)

    assert ours.metadata["autoreset_mode"] == theirs.metadata["autoreset_mode"]
    for name in ("observation_space", "action_space", "single_observation_space", "single_action_space", "num_envs"):
        assert getattr(ours, name) == getattr(theirs, name), name

    used = np.zeros(n, np.int64)

    def feed(ended: np.ndarray) -> None:
        """Queue for our envs that end in the coming step the starts that theirs will take."""
        sim.queue_states([ids[env, used[env]] for env in np.flatnonzero(ended)])
        used[ended] += 1

    feed(np.ones(n, bool))
    assert data_equivalence(ours.reset(), theirs.reset())
    expert = sim.make_expert(mode="left")
    started = np.ones(n, bool)
    wins = time_outs = mixed = 0
    for t in range(80):
        actions = expert.act(torch.from_numpy(started)).numpy()
        reference = theirs.step(actions)
        started = reference[2] | reference[3]
        feed(started)
        mine = ours.step(actions)
        assert data_equivalence(mine, reference), f"step {t}"
        assert mine[0] in ours.observation_space
        wins += int(mine[2].sum())
        time_outs += int(mine[3].sum())
        mixed += 0 < started.sum() < n
    assert wins
    assert time_outs
    assert mixed


def test_successes_and_time_outs_stay_apart() -> None:
    n = 32
    sim = make(n)
    sim.queue_states(range(1 << 30, (1 << 30) + n))
    env = sim.as_gymnasium()
    env.reset()
    expert = sim.make_expert(mode="left")
    started = np.ones(n, bool)
    wins = 0
    for _ in range(60):
        action = expert.act(torch.from_numpy(started)).numpy()
        if wins >= 8:
            action = np.zeros_like(action)
        _, rewards, terminations, truncations, infos = env.step(action)
        started = terminations | truncations
        assert not (terminations & truncations).any()
        if started.any():
            assert infos["_final_obs"].tolist() == started.tolist()
            assert infos["final_info"]["success"][terminations].all()
            assert all((value is not None) == flag for value, flag in zip(infos["final_obs"], started, strict=True))
        assert rewards.dtype == np.float64
        assert (rewards == terminations).all()
        wins += int(terminations.sum())
    assert wins >= 8


def test_gymnasiums_wrappers_work_on_it() -> None:
    env = DictInfoToList(RecordEpisodeStatistics(make(3, **SHORT).as_gymnasium()))
    env.reset(seed=1)
    lengths: list[int] = []
    for _ in range(21):
        infos = env.step(env.action_space.sample())[-1]
        lengths += [int(info["episode"]["l"]) for info in infos if "episode" in info]
    assert lengths == [10] * 6


def test_observations_are_copies() -> None:
    env = make(2, **SHORT).as_gymnasium()
    first, _ = env.reset(seed=0)
    kept = first["state"].copy()
    for actions in random_actions(env, 12):
        env.step(actions)
    assert np.array_equal(first["state"], kept)


def test_a_seed_repeats_and_a_list_of_seeds_is_refused() -> None:
    env = make(2).as_gymnasium()
    a, _ = env.reset(seed=5)
    b, _ = env.reset()
    c, _ = env.reset(seed=5)
    assert np.array_equal(a["state"], c["state"])
    assert not np.array_equal(a["state"], b["state"])
    with pytest.raises(ConfigError, match=r"seed is \[1, 2\]: expected one integer"):
        env.reset(seed=[1, 2])


def test_the_single_environment_skips_no_start() -> None:
    sim = make(1, **SHORT)
    ids = list(sim.state_ids("val")[:4])
    sim.queue_states(ids)
    env = GymnasiumEnv(sim)
    seen = []
    for _ in ids:
        env.reset()
        done = False
        while not done:
            obs, reward, terminated, truncated, info = env.step(np.zeros(4, np.float32))
            done = terminated or truncated
            assert isinstance(reward, float)
        assert obs in env.observation_space
        seen.append(info["state_id"])
        with pytest.raises(gym.error.ResetNeeded):
            env.step(np.zeros(4, np.float32))
    assert seen == ids


def test_pictures() -> None:
    env = GymnasiumVectorEnv(make(2), render_mode="rgb_array", camera="side", width=40, height=30)
    env.reset(seed=0)
    pictures = env.render()
    assert isinstance(pictures, tuple)
    assert [picture.shape for picture in pictures] == [(30, 40, 3)] * 2
    assert GymnasiumVectorEnv(make(2)).render() is None
    with pytest.raises(ConfigError, match="did you mean 'side'"):
        GymnasiumVectorEnv(make(2), render_mode="rgb_array", camera="sid")
    with raises_naming(ConfigError, "render_mode", "human"):
        GymnasiumVectorEnv(make(2), render_mode="human")


class Blind:
    """A sim that neither keeps last observations nor draws itself."""

    num_envs = 1


def test_missing_capabilities_are_named() -> None:
    for view in (GymnasiumVectorEnv, GymnasiumEnv):
        with pytest.raises(CapabilityError, match="HasFinalObs"):
            view(Blind())  # pyright: ignore[reportArgumentType]
    with raises_naming(ConfigError, "num_envs", 2, 1):
        GymnasiumEnv(make(2))


def test_spaces_follow_specs() -> None:
    spec = Spec((2, 3), ("a", "b", "c"), ("m",) * 3, (-1.0, 0.0, float("-inf")), (1.0, 2.0, float("inf")))
    space = space_of(spec)
    assert space.shape == (2, 3)
    assert space.dtype == np.float32
    assert space.low.tolist() == [[-1.0, 0.0, float("-inf")]] * 2
    assert space.high.tolist() == [[1.0, 2.0, float("inf")]] * 2
