"""Models of Stable-Baselines3 as policies of ours: equal actions and densities, and the way to a robot."""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import robotrl
from robotrl.cli.main import main
from robotrl.errors import ConfigError, DataError
from robotrl.importers.policy import ImportCfg, import_policy
from robotrl.importers.sb3 import load_sb3, write_statistics
from robotrl.sims.interop import as_sb3
from robotrl.spec import Spec
from tests.kits.refusals import raises_naming

OBS = {"state": Spec((3,), ("a", "b", "c"), ("1",) * 3, (-9.0,) * 3, (9.0,) * 3)}
ACTION = Spec((2,), ("x", "y"), ("1", "1"), (-1.0, -0.5), (1.0, 2.0))
HALF = torch.tensor([1.0, 1.25])
"""Half the distance of the action's bounds."""


class Plain(gym.Env[Any, Any]):
    observation_space = spaces.Box(-9, 9, (3,), np.float32)

    def __init__(self, action_space: gym.Space[Any] | None = None) -> None:
        self.action_space = action_space or spaces.Box(np.array([-1, -0.5]), np.array([1, 2]), dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(3, np.float32), 0.0, False, False, {}


@pytest.fixture(autouse=True)
def same_weights_each_time() -> None:
    torch.manual_seed(0)


def shaken(model: Any) -> Any:
    """A model whose weights are those of no fresh one."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in model.policy.parameters():
            value += 0.2 * torch.randn(value.shape, generator=generator)
    return model


def observations(rows: int = 64, width: int = 3) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 2, (rows, width)).astype(np.float32)


def actions_of(policy: Any, obs: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return policy.act({"state": torch.from_numpy(obs)}, mode="mean").chunk[:, 0].numpy()


MAKERS: dict[str, Callable[[], Any]] = {
    "PPO": lambda: PPO("MlpPolicy", Plain(), device="cpu"),
    "PPO of other widths": lambda: PPO(
        "MlpPolicy",
        Plain(),
        policy_kwargs={"net_arch": {"pi": [32, 16, 8], "vf": [4]}, "activation_fn": torch.nn.ELU},
        device="cpu",
    ),
    "A2C without hidden layers": lambda: A2C("MlpPolicy", Plain(), policy_kwargs={"net_arch": []}, device="cpu"),
    "SAC": lambda: SAC("MlpPolicy", Plain(), buffer_size=10, device="cpu"),
    "TD3": lambda: TD3("MlpPolicy", Plain(), buffer_size=10, policy_kwargs={"net_arch": [24, 8]}, device="cpu"),
    "DDPG": lambda: DDPG("MlpPolicy", Plain(), buffer_size=10, policy_kwargs={"net_arch": [8]}, device="cpu"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_actions_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    model = shaken(MAKERS[name]())
    model.save(tmp_path / "model.zip")
    obs = observations()
    policy = load_sb3(tmp_path / "model.zip", OBS, ACTION)
    expected = model.predict(obs, deterministic=True)[0]
    assert np.ptp(expected) > 1
    error = np.abs(actions_of(policy, obs) - expected) / (2 * HALF.numpy())
    assert error.max() < 1e-6, "of the action range"


def test_densities_of_a_gaussian_policy(tmp_path: Path) -> None:
    model = shaken(MAKERS["PPO"]())
    model.save(tmp_path / "model")
    policy = load_sb3(tmp_path / "model.zip", OBS, ACTION)
    obs = torch.from_numpy(observations())
    raw = torch.from_numpy(np.random.default_rng(1).normal(0, 1, (64, 2)).astype(np.float32))
    normalized = (raw - torch.tensor([0.0, 0.75])) / HALF
    with torch.no_grad():
        _, theirs, _ = model.policy.evaluate_actions(obs, raw)
        ours = policy.log_prob({"state": obs}, normalized[:, None]).sum((1, 2))
    # an action of half the size is as likely within half the interval
    assert torch.allclose(ours - HALF.log().sum(), theirs, atol=1e-5, rtol=1e-6)


def test_densities_of_a_squashed_policy(tmp_path: Path) -> None:
    model = shaken(MAKERS["SAC"]())
    model.save(tmp_path / "model")
    policy = load_sb3(tmp_path / "model.zip", OBS, ACTION)
    obs = torch.from_numpy(0.1 * observations(256))
    with torch.no_grad():
        mean, log_std, _ = model.actor.get_action_dist_params(obs)
        model.actor.action_dist.proba_distribution(mean, log_std)
        chosen = torch.rand(mean.shape) * 1.4 - 0.7  # it adds 1e-6 to the slope of tanh, which shows near the bounds
        theirs = model.actor.action_dist.log_prob(chosen)
        ours = policy.log_prob({"state": obs}, chosen[:, None]).sum((1, 2))
    assert torch.allclose(ours, theirs, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("space", [spaces.Discrete(4), spaces.MultiDiscrete([2, 3])])
def test_choices(space: Any, tmp_path: Path) -> None:
    counts = tuple(int(n) for n in np.atleast_1d(space.n if isinstance(space, spaces.Discrete) else space.nvec))
    model = shaken(PPO("MlpPolicy", Plain(space), device="cpu"))
    model.save(tmp_path / "model")
    names = tuple(f"c{i}" for i in range(len(counts)))
    spec = Spec(
        (len(counts),),
        names,
        ("1",) * len(counts),
        (0.0,) * len(counts),
        tuple(n - 1.0 for n in counts),
        choices=counts,
    )
    policy = load_sb3(tmp_path / "model.zip", OBS, spec)
    obs = observations(512)
    expected = model.predict(obs, deterministic=True)[0].reshape(512, -1)
    assert np.array_equal(actions_of(policy, obs), expected)
    assert len(np.unique(expected, axis=0)) > 2
    with torch.no_grad():
        _, theirs, _ = model.policy.evaluate_actions(torch.from_numpy(obs), torch.from_numpy(expected).squeeze(-1))
        ours = policy.log_prob({"state": torch.from_numpy(obs)}, torch.from_numpy(expected)[:, None].float())
    assert torch.allclose(ours.sum((1, 2)), theirs, atol=1e-5)


def test_arrays_of_a_dict_space_and_statistics(tmp_path: Path) -> None:
    """The order of the arrays is that of their names, whatever the sim's."""
    env = VecNormalize(as_sb3(robotrl.make_sim("mujoco/peg-insert", 2)), norm_reward=False, clip_obs=2.0)
    env.reset()
    for _ in range(30):
        env.step(np.random.default_rng(0).uniform(-1, 1, (2, 4)).astype(np.float32))
    model = shaken(PPO("MlpPolicy", env, device="cpu"))
    model.save(tmp_path / "model")
    write_statistics(env, tmp_path / "stats.json")
    sim = env.venv.sim  # pyright: ignore[reportAttributeAccessIssue]
    policy = load_sb3(tmp_path / "model.zip", sim.observation_spec, sim.action_spec, str(tmp_path / "stats.json"))
    raw = sim.reset(seed=4)["state"].numpy().copy()
    raw[1] += 3.0
    expected = model.predict(env.normalize_obs(raw), deterministic=True)[0]
    assert np.abs(actions_of(policy, raw) - expected).max() < 1e-5

    two = spaces.Dict({"b": spaces.Box(-1, 1, (2,)), "a": spaces.Box(-1, 1, (2, 2))})

    class Two(Plain):
        observation_space = two

    model = shaken(PPO("MultiInputPolicy", Two(), device="cpu"))
    model.save(tmp_path / "two")
    one = {"low": (-1.0,) * 2, "high": (1.0,) * 2, "units": ("1",) * 2}
    specs = {"b": Spec((2,), ("p", "q"), **one), "a": Spec((2, 2), ("r", "s"), **one)}
    policy = load_sb3(tmp_path / "two.zip", specs, ACTION)
    rows = {"b": observations(5, 2), "a": observations(10, 2).reshape(5, 2, 2)}
    with torch.no_grad():
        found = policy.act({key: torch.from_numpy(value) for key, value in rows.items()}, mode="mean").chunk[:, 0]
    assert np.abs(found.numpy() - model.predict(rows, deterministic=True)[0]).max() < 1e-6


def test_statistics_that_were_left_out_are_asked_for(tmp_path: Path) -> None:
    """Without them every action is another one, and nothing else in the file would tell."""
    for normalizes in (False, True):
        env: Any = DummyVecEnv([Plain])
        env = VecNormalize(env) if normalizes else env
        model = PPO("MlpPolicy", env, n_steps=4, batch_size=4, device="cpu").learn(4)
        model.save(tmp_path / "model.zip")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            load_sb3(tmp_path / "model.zip", OBS, ACTION)
        assert ["VecNormalize" in str(one.message) for one in caught] == [True] * normalizes


def test_from_the_model_to_the_robot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Learn by Stable-Baselines3; then import, evaluate, export and drive by our commands."""
    sim = robotrl.make_sim("mujoco/peg-insert", num_envs=4, limit_s=0.5, reward="shaped")
    model = PPO("MlpPolicy", as_sb3(sim), n_steps=16, batch_size=32, n_epochs=1, seed=0, device="cpu")
    model.learn(64)
    model.save(tmp_path / "model")
    named = ["--sim", "mujoco/peg-insert"]
    limit = ["--sim.limit-s", "0.5"]
    assert main(["import", "sb3", str(tmp_path / "model.zip"), *named, *limit, "--out", str(tmp_path / "policy")]) == 0
    assert "fingerprint" in capsys.readouterr().out
    assert main(["eval", str(tmp_path / "policy"), *named, *limit, "--episodes", "4"]) == 0
    bundle = tmp_path / "policy.bundle"
    assert main(["export", str(tmp_path / "policy"), *named, "--out", str(bundle)]) == 0
    assert main(["deploy", str(bundle), "--robot", "sim:mujoco/peg-insert", "--episodes", "1"]) == 0
    policy = robotrl.load_policy(tmp_path / "policy")
    obs = sim.reset(seed=0)["state"].numpy().copy()
    assert np.abs(actions_of(policy, obs) - model.predict(obs, deterministic=True)[0]).max() < 1e-6


# refusals


def changed(source: Path, out: Path, data: Callable[[dict[str, Any]], None] | None = None, **members: bytes) -> Path:
    """A copy of a model file with other JSON, or other members ("policy_pth" is policy.pth)."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            content = members.get(name.replace(".", "_"), old.read(name))
            if name == "data" and data is not None:
                fields = json.loads(content)
                data(fields)
                content = json.dumps(fields).encode()
            if content != b"absent":
                new.writestr(name, content)
    return out


def stored(weights: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(weights, buffer)
    return buffer.getvalue()


class Runs:
    """An object whose unpickling would run code."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("was_run"),))


def test_no_code_of_the_file_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shaken(MAKERS["PPO"]()).save("model")
    bad = changed(Path("model.zip"), Path("bad.zip"), policy_pth=stored({"log_std": Runs()}))
    with raises_naming(DataError, "bad.zip", "policy.pth"):
        load_sb3(bad, OBS, ACTION)

    def poison(fields: dict[str, Any]) -> None:
        fields["policy_class"][":serialized:"] = fields["action_space"][":serialized:"] = "gASVBAAAAAAAAACMAB5zLg=="

    load_sb3(changed(Path("model.zip"), Path("same.zip"), poison), OBS, ACTION)
    assert not Path("was_run").exists()


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    model = MAKERS["PPO"]()
    model.save(path)
    weights = model.policy.state_dict()
    other = tmp_path / "other.zip"

    def with_weights(**more: torch.Tensor) -> Path:
        return changed(
            path, other, policy_pth=stored({**weights, **{k.replace("__", "."): v for k, v in more.items()}})
        )

    with raises_naming(DataError, "model.zip", "action", 2, 3):
        wide = Spec((3,), ("x", "y", "z"), ("1",) * 3, (-1.0,) * 3, (1.0,) * 3)
        load_sb3(path, OBS, wide)
    with raises_naming(DataError, "model.zip", "observation", 3, 5):
        load_sb3(path, {"state": Spec((5,), tuple("abcde"), ("1",) * 5, (-1.0,) * 5, (1.0,) * 5)}, ACTION)
    with raises_naming(DataError, "model.zip", "action_space.low"):
        load_sb3(path, OBS, Spec((2,), ("x", "y"), ("1",) * 2, (-1.0, -1.0), (1.0, 2.0)))
    with raises_naming(DataError, "model.zip", "numbers", "choices"):
        load_sb3(path, OBS, Spec((1,), ("x",), ("1",), (0.0,), (1.0,), choices=(2,)))
    with raises_naming(DataError, "other.zip", "features_extractor.cnn.0.weight"):
        load_sb3(with_weights(features_extractor__cnn__0__weight=torch.ones(1)), OBS, ACTION)
    with raises_naming(DataError, "other.zip", "use_sde"):
        load_sb3(with_weights(log_std=torch.zeros(64, 2)), OBS, ACTION)
    with raises_naming(DataError, "other.zip", "log_std"):
        load_sb3(with_weights(log_std=torch.full((2,), float("nan"))), OBS, ACTION)
    with raises_naming(DataError, "other.zip", "policy.pth"):
        load_sb3(changed(path, other, policy_pth=b"absent"), OBS, ACTION)
    for field, value in (("lstm_hidden_size", 8), ("features_extractor_class", "<class 'a.NatureCNN'>")):

        def set_kwarg(fields: dict[str, Any], field: str = field, value: Any = value) -> None:
            fields["policy_kwargs"] = {field: value}

        with raises_naming(DataError, "other.zip", "policy_kwargs", field):
            load_sb3(changed(path, other, set_kwarg), OBS, ACTION)

    def odd(fields: dict[str, Any]) -> None:
        fields["policy_kwargs"] = {"activation_fn": "<class 'torch.nn.modules.activation.Mish'>"}

    with raises_naming(DataError, "other.zip", "activation_fn", "Mish"):
        load_sb3(changed(path, other, odd), OBS, ACTION)
    (tmp_path / "text.zip").write_text("no zip")
    with raises_naming(DataError, "text.zip"):
        load_sb3(tmp_path / "text.zip", OBS, ACTION)
    picture = {"image": Spec((8, 8, 3), tuple("rgb"), ("1",) * 3, (0.0,) * 3, (255.0,) * 3, "uint8")}
    with raises_naming(ConfigError, "image", "uint8"):
        load_sb3(path, picture, ACTION)
    DQN("MlpPolicy", Plain(spaces.Discrete(3)), buffer_size=10, device="cpu").save(other)
    with raises_naming(DataError, "other.zip", "PPO"):
        load_sb3(other, OBS, ACTION)


def test_statistics_that_do_not_fit_are_named(tmp_path: Path) -> None:
    MAKERS["PPO"]().save(tmp_path / "model")
    stats = tmp_path / "stats.json"
    good = {"schema_version": 1, "clip": 10.0, "epsilon": 1e-8, "observations": {"": {"mean": [0] * 3, "var": [1] * 3}}}
    for change, parts in (
        ({"schema_version": 7}, ("schema_version", 1)),
        ({"observations": {"": {"mean": [0], "var": [1]}}}, ("state",)),
        ({"observations": {"pose": {"mean": [0], "var": [1]}}}, ("pose", "state")),
        ({"observations": {"": {"mean": [0] * 3, "var": [-1] * 3}}}, ("state",)),
        ({"clip": None}, ("write_statistics",)),
    ):
        stats.write_text(json.dumps(good | change))
        with np.errstate(invalid="ignore"), raises_naming(DataError, "stats.json", *parts):
            load_sb3(tmp_path / "model.zip", OBS, ACTION, str(stats))
    stats.write_bytes(b"\x80\x04pickle")
    with raises_naming(DataError, "stats.json", "robotrl.importers.sb3.write_statistics"):
        load_sb3(tmp_path / "model.zip", OBS, ACTION, str(stats))
    with raises_naming(ConfigError, "env", "VecNormalize"):
        write_statistics(Plain(), stats)
    sim = robotrl.make_sim("mujoco/peg-insert", 1)
    with raises_naming(ConfigError, "horizon", 4):
        import_policy("sb3", tmp_path / "model.zip", sim, tmp_path / "out", ImportCfg(horizon=4))
