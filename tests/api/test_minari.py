"""Minari's datasets, made by Minari, as ours and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import robotrl
from robotrl.datasets.lerobot import read_dataset
from robotrl.errors import ConfigError
from tests.kits import gym_toys  # noqa: F401  # registers the toy environments
from tests.kits.refusals import raises_naming

pytest.importorskip("minari")
pytest.importorskip("h5py")
import minari

from robotrl.api.minari import export_minari, import_minari


@pytest.fixture(autouse=True)
def local_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def collected(env: gym.Env[Any, Any], name: str, lengths: tuple[int, ...]) -> Any:
    """A Minari dataset of random actions."""
    from minari.data_collector import EpisodeBuffer

    buffers: list[Any] = []
    for number, length in enumerate(lengths):
        obs, _ = env.reset(seed=number)
        env.action_space.seed(number)
        seen, steps = [obs], []
        for _ in range(length):
            action = env.action_space.sample()
            obs, reward, terminated, truncated, _ = env.step(action)
            seen.append(obs)
            steps.append((action, reward, terminated, truncated, bool(number % 2)))
        actions, rewards, ended, cut, won = zip(*steps, strict=True)
        nested = (
            {key: np.stack([row[key] for row in seen]) for key in ("pos", "side", "image")}
            if isinstance(obs, dict)
            else np.stack(seen)
        )
        infos = {"success": np.array([False, *won])}
        buffers.append(
            EpisodeBuffer(number, None, None, nested, np.stack(actions), list(rewards), list(ended), list(cut), infos)
        )
    spaces = env.observation_space
    if isinstance(spaces, gym.spaces.Dict):
        spaces = gym.spaces.Dict({key: spaces[key] for key in ("pos", "side", "image")})
    return minari.create_dataset_from_buffers(
        name, buffers, observation_space=spaces, action_space=env.action_space, jpeg_encoding=False
    )


def test_a_round_trip_keeps_every_number(tmp_path: Path) -> None:
    env = gym.make("Pendulum-v1", max_episode_steps=6)
    theirs = collected(env, "pendulum/random-v0", (6, 4))
    root = import_minari("pendulum/random-v0", tmp_path / "ours", env=env)
    ours = read_dataset(root)
    assert ours.verified and ours.num_episodes == 2 and ours.num_frames == 10
    assert ours.tasks == ("pendulum/random-v0",) and ours.provenance["minari"] == "pendulum/random-v0"
    for number, episode in enumerate(theirs.iterate_episodes()):
        rows = ours.episode(number)
        assert np.array_equal(rows["observation.state"], episode.observations[:-1])
        assert np.array_equal(rows["action"].reshape(-1, 1), episode.actions)
        assert np.allclose(rows["next.reward"], episode.rewards, rtol=1e-6)
    assert ours.frames("next.truncated").nonzero()[0].tolist() == [5]
    assert ours.episodes["success"].tolist() == [False, True]

    back = export_minari(root, "pendulum/back-v0")
    assert back.total_episodes == 2 and back.total_steps == 10
    assert back.action_space == env.action_space
    for mine, episode in zip(back.iterate_episodes(), theirs.iterate_episodes(), strict=True):
        assert np.array_equal(mine.observations[:-1], episode.observations[:-1])
        assert np.array_equal(mine.observations[-1], mine.observations[-2])
        assert np.array_equal(mine.actions, episode.actions)
        assert np.allclose(mine.rewards, episode.rewards, rtol=1e-6)
        assert np.array_equal(mine.truncations, episode.truncations)
        assert np.asarray(mine.infos["success"])[-1] == np.asarray(episode.infos["success"])[-1]
    again = read_dataset(import_minari("pendulum/back-v0", tmp_path / "again", env=env))
    assert np.array_equal(again.frames("observation.state"), ours.frames("observation.state"))


def test_parts_pictures_and_choices(tmp_path: Path) -> None:
    theirs = collected(gym.make("Toy-v0"), "toy/random-v0", (3,))
    ours = read_dataset(import_minari(theirs, tmp_path / "toy", fps=10, success=True))
    (episode,) = theirs.iterate_episodes()
    assert np.array_equal(ours.frames("observation.image"), episode.observations["image"][:-1])
    assert np.allclose(ours.frames("observation.pos"), episode.observations["pos"][:-1])
    assert np.array_equal(ours.frames("observation.side").argmax(1) + 1, episode.observations["side"][:-1])
    back = export_minari(ours, "toy/back-v0")
    assert set(back.observation_space) == {"pos", "side", "image"}
    assert np.array_equal(next(back.iterate_episodes()).observations["image"][:-1], episode.observations["image"][:-1])
    cart = collected(gym.make("CartPole-v1"), "cart/random-v0", (5,))
    found = read_dataset(import_minari(cart, tmp_path / "cart", env=gym.make("CartPole-v1")))
    (episode,) = cart.iterate_episodes()
    assert np.array_equal(found.frames("action").reshape(-1), episode.actions)


def test_what_is_imported_is_cloned(tmp_path: Path) -> None:
    env = gym.make("Pendulum-v1")
    collected(env, "pendulum/random-v0", (20, 20))
    import_minari("pendulum/random-v0", tmp_path / "ours", env=env, success=True)
    from robotrl.cli.main import main

    run = ["--run-dir", str(tmp_path / "run"), "--dataset", str(tmp_path / "ours"), "--accept-data"]
    assert main(["train", "--sim", "gym/Pendulum-v1", "--algo", "bc", "--algo.updates", "2", *run]) == 0
    assert robotrl.load_policy(tmp_path / "run").action_width == 1


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    env = gym.make("Pendulum-v1")
    theirs = collected(env, "pendulum/random-v0", (2,))
    with raises_naming(ConfigError, "source", "pendulum/random-v0"):
        import_minari("pendulum/rndom-v0", tmp_path / "x", fps=10)
    with raises_naming(ConfigError, "fps", "None", "env"):
        import_minari(theirs, tmp_path / "x")
    with raises_naming(ConfigError, "success", "won", "True"):
        import_minari(theirs, tmp_path / "x", env=env, success="won")
    assert not (tmp_path / "x").exists()
    root = import_minari(theirs, tmp_path / "x", env=env, success=lambda episode: len(episode) == 2)
    assert read_dataset(root).episodes["success"].tolist() == [True]
    with raises_naming(ConfigError, "dataset_id", "pendulum/random-v0"):
        export_minari(root, "pendulum/random-v0")
