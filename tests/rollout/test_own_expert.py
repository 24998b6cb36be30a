"""One's own experts: on a Gymnasium environment and on the walk, whose every number can be worked out by hand."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from robotrl.cli.main import main
from robotrl.datasets.lerobot import read_dataset
from robotrl.errors import CapabilityError, ConfigError, NumericsError
from robotrl.registry import make_sim
from robotrl.rollout.demos import collect_demos
from robotrl.rollout.evaluate import Turn
from robotrl.rollout.own_expert import OwnExpert, checked_actions
from robotrl.spec import Spec
from tests.kits.walk_sim import Walk

CARTPOLE = "gym/CartPole-v1"
OWN = """
import numpy as np

def balance(obs):
    state = obs["state"]
    return (state[:, 2] + 0.5 * state[:, 3] + 0.02 * state[:, 1] > 0).astype(int)

class Nervous:
    def __init__(self, seed, sim):
        self.random, self.n = np.random.default_rng(seed), sim.num_envs

    def act(self, obs, started):
        assert started.shape == (self.n,)
        return self.random.integers(2, size=(self.n, 1))

class Idle:
    def act(self, obs, started):
        return np.zeros((len(started), 1))

class Needy:
    def __init__(self, robot): ...

class Lazy: ...

class Broken:
    def __init__(self):
        raise OSError("no such arm")

def misspelt(obs):
    return obs["sate"]

def two(obs, started):
    return 0

NUMBER = 3
"""
ARM = Spec((2,), ("step_x_w", "grip"), ("m", "1"), (-0.5, 0.0), (0.5, 1.0))


@pytest.fixture
def own(tmp_path, monkeypatch) -> Path:
    """A working directory with a module of the user's; its name is new in each test."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"own_{abs(hash(tmp_path))}.py"
    path.write_text(OWN)
    return path


def test_a_function_records_demonstrations_of_a_gymnasium_environment(own, tmp_path, capsys):
    asked = ["demos", CARTPOLE, "--expert", f"{own.stem}:balance", "--episodes", "3", "--sim.limit-steps", "40"]
    assert main([*asked, "--out", "d"]) == 0
    assert "3 episodes, 120 frames; the expert solved 100.0 % of the 3 starts" in capsys.readouterr().out
    dataset = read_dataset(tmp_path / "d")
    state, action = dataset.frames("observation.state"), dataset.frames("action")
    by_hand = state[:, 2] + 0.5 * state[:, 3] + 0.02 * state[:, 1] > 0
    assert action.ravel().tolist() == by_hand.astype(float).tolist()
    assert 0 < by_hand.mean() < 1
    digest = hashlib.sha256(own.read_bytes()).hexdigest()
    assert dataset.provenance["expert"] == {"name": f"{own.stem}:balance", "file": own.name, "sha256": digest}
    assert "mode" not in dataset.episodes
    assert dataset.tasks == ("CartPole v1",)


def test_a_class_gets_the_sim_and_the_seed_that_it_asks_for(own, tmp_path):
    def recorded(out: str, seed: int) -> np.ndarray:
        report = collect_demos(
            CARTPOLE, tmp_path / out, episodes=2, expert=f"{own.stem}:Nervous", keep="all", seed=seed, num_envs=2
        )
        return read_dataset(report.path).frames("action")

    first = recorded("a", 5)
    assert set(first.ravel()) == {0.0, 1.0}
    np.testing.assert_array_equal(first, recorded("b", 5))
    assert first.tolist() != recorded("c", 6).tolist()


def test_a_class_is_told_where_episodes_start():
    class Counting:
        def __init__(self) -> None:
            self.steps = np.zeros(2)

        def act(self, obs, started):
            self.steps = np.where(started, 0, self.steps + 1)
            obs["walk"][:] = 7.0  # a copy: what is recorded is the sim's
            return self.steps[:, None] / 10

    sim = Walk(2)
    expert = OwnExpert(Counting, sim, 0)
    obs = sim.reset(seed=0)
    counted = torch.zeros(2, dtype=torch.int64)
    instruction_of = [
        expert.act(obs, Turn(torch.tensor(started), counted)).ravel().tolist()
        for started in ([True, True], [False, False], [False, True])
    ]
    assert [[round(x, 4) for x in row] for row in instruction_of] == [[0.0, 0.0], [0.1, 0.1], [0.2, 0.0]]
    assert obs["walk"].max() < 7


def test_an_expert_that_cannot_is_reported(own, tmp_path):
    with pytest.raises(Exception, match=r"solved 0 of 2[0-9]* starts: expected 1 successes; expected a better expert"):
        collect_demos(CARTPOLE, tmp_path / "d", episodes=1, expert=f"{own.stem}:Idle")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module_here:f", "expert is 'no_such_module_here:f' needs the module 'no_such_module_here'"),
        ("balance", "expert is 'balance': expected MODULE:FUNCTION or MODULE:CLASS"),
        ("OWN:balanse", "has no 'balanse': did you mean 'OWN:balance'"),
        ("OWN:NUMBER", "of type int: expected a callable"),
        ("OWN:Needy", "its argument 'robot' is unknown: expected sim and seed"),
        ("OWN:Lazy", r"the class has no method 'act': expected act\(self, obs, started\)"),
        ("OWN:Broken", "it raised OSError: no such arm"),
        ("OWN:misspelt", "it raised KeyError: 'sate': did you mean 'state'"),
        ("OWN:two", r"it cannot be called with the observations alone .*: expected expert\(obs\), or a class"),
    ],
)
def test_experts_that_cannot_be_used(own, tmp_path, name, message):
    with pytest.raises(ConfigError, match=message.replace("OWN", own.stem)):
        collect_demos(CARTPOLE, tmp_path / "d", episodes=1, expert=name.replace("OWN", own.stem))
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([0.1, 0.2], ConfigError, r"returned actions \(2,\): expected \(2, 2\), one row for each env"),
        ([[0.1, 0.2]], ConfigError, r"returned actions \(1, 2\)"),
        ("left", ConfigError, r"returned str: expected an array of actions \(2, 2\)"),
        ([[0, 0], [np.nan, 0]], NumericsError, "action 'step_x_w' of env 1 is nan: expected a finite number"),
        ([[0, 1.5], [0, 0]], ConfigError, "action 'grip' of env 0 is 1.5: expected 0 to 1 1, the sim's bounds"),
        ([[0, 0], [-2, 0]], ConfigError, "action 'step_x_w' of env 1 is -2: expected -0.5 to 0.5 m"),
    ],
)
def test_actions_that_cannot_be(given, error, message):
    with pytest.raises(error, match=message):
        checked_actions(given, ARM, 2, "expert is 'own:f'")


def test_rounding_at_a_bound_is_clipped_and_choices_are_whole():
    out = checked_actions([[0.5 + 1e-8, 1.0], [-0.5, 0.0]], ARM, 2, "x")
    assert out.dtype == np.float32
    assert out.tolist() == [[0.5, 1.0], [-0.5, 0.0]]
    button = Spec((1,), ("push",), ("1",), (0.0,), (2.0,), choices=(3,))
    assert checked_actions(np.array([2, 0, 1]), button, 3, "x").tolist() == [[2.0], [0.0], [1.0]]
    with pytest.raises(ConfigError, match=r"action .push. of env 1 is 0\.5: expected a whole number"):
        checked_actions([1, 0.5], button, 2, "x")


def test_what_belongs_to_a_sims_expert_is_refused(own, tmp_path):
    for settings, message in (({"noise": 0.1}, "noise is 0.1"), ({"mode": "left"}, "mode is 'left'")):
        with pytest.raises(ConfigError, match=rf"{message} and expert is .*: expected .*it is a setting of the sim's"):
            collect_demos(CARTPOLE, tmp_path / "d", episodes=1, expert=f"{own.stem}:balance", **settings)
    with pytest.raises(CapabilityError, match=r"lacks HasExpert: .* --expert MODULE:FUNCTION"):
        collect_demos(CARTPOLE, tmp_path / "d", episodes=1)


def test_a_function_itself_and_a_sim_of_ours(tmp_path):
    def hold(obs):
        return np.zeros((len(obs["state"]), 4))

    report = collect_demos(
        "mujoco/reach", tmp_path / "d", episodes=2, expert=hold, keep="all", sim_options={"limit_s": 0.5}
    )
    dataset = read_dataset(report.path)
    assert not dataset.frames("action").any()
    assert dataset.provenance["expert"]["file"] == Path(__file__).name
    starts = make_sim("mujoco/reach", 1).state_ids("train")
    assert all(int(start) in starts for start in dataset.episodes["state_id"])
