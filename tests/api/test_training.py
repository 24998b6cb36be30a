"""`robotrl.train`: names, configs, one's own environment and network, and the run that it leaves."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import robotrl
from robotrl.algos.ppo import PpoCfg
from robotrl.errors import ConfigError
from robotrl.policies.gaussian import GaussianCfg, GaussianPolicy
from robotrl.registry import make_sim, sim_options
from tests.kits.paths_kit import ROOT

TINY = {
    "algo.env_steps": 64,
    "algo.num_steps": 8,
    "algo.minibatch": 16,
    "algo.epochs": 1,
    "algo.engine": "eager",
    "sim.num_envs": 4,
    "evaluation.episodes": 4,
    "evaluation.num_envs": 4,
    "evaluation.animation": 0,
}


class Line(gym.Env):
    observation_space = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, step_m: float = 0.1) -> None:
        self.step_m = step_m

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.pos, self.steps = self.np_random.uniform(-1, 1), 0
        return np.array([self.pos, self.step_m], np.float32), {}

    def step(self, action):
        self.pos, self.steps = float(np.clip(self.pos + self.step_m * action[0], -2, 2)), self.steps + 1
        return np.array([self.pos, self.step_m], np.float32), -abs(self.pos), False, self.steps >= 5, {"success": True}


class Net(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Narrow(Net):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs + 1)


class Dropping(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.layer(x), 0.5, self.training)


class ByBatch(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) - self.layer(x).mean(0)


def test_names_and_settings(tmp_path: Path) -> None:
    run = robotrl.train("mujoco/reach", "ppo", run_dir=tmp_path / "run", settings={**TINY, "sim.limit_s": 0.5}, seed=3)
    assert run.config["sim"]["options"]["limit_s"] == 0.5 and run.config["seed"] == 3
    assert run.scalars["env_steps"] == [32.0, 64.0]
    assert run.policy.action_spec.shape == (4,)
    again = robotrl.TrainedRun(tmp_path / "run")
    assert again.scalars["env_steps"] == run.scalars["env_steps"]
    assert again.evaluate(4).rate.value in (0.0, 0.25, 0.5, 0.75, 1.0)


def test_configs_of_all_parts(tmp_path: Path) -> None:
    sim = sim_options("mujoco/reach", {"reward": "shaped", "limit_s": 0.5})
    algo = PpoCfg(env_steps=32, num_steps=8, minibatch=16, epochs=1, engine="eager")
    small = {"sim.num_envs": 4, "evaluation.episodes": 4, "evaluation.animation": 0}
    run = robotrl.train(sim, algo, GaussianCfg(hidden=(8,)), run_dir=tmp_path / "run", settings=small)
    assert run.config["sim"]["name"] == "mujoco/reach" and run.config["sim"]["options"]["reward"] == "shaped"
    assert run.config["policy"]["hidden"] == [8]


@pytest.mark.parametrize("env", [Line, Line(0.3), lambda: Line(0.2)], ids=["class", "instance", "function"])
def test_ones_own_environment_and_network(env, tmp_path: Path) -> None:
    run = robotrl.train(env, "ppo", Net, run_dir=tmp_path / "run", settings=TINY)
    assert isinstance(run.policy, GaussianPolicy) and isinstance(run.policy.net, Net)
    # the second number that an env shows is its own step
    step_m = 0.3 if isinstance(env, Line) else 0.1 if env is Line else 0.2
    sim = robotrl.make_sim(run.config["sim"]["name"], num_envs=2)
    assert [float(x) for x in torch.cat(list(sim.reset(seed=0).values()), 1)[:, 1]] == pytest.approx([step_m] * 2)
    assert run.evaluate(2).rate.value == 1.0
    bundle = run.export(tmp_path / "bundle", control_dt_s=0.1)
    assert (bundle / "manifest.json").exists()


def test_reward_sources_by_name_and_weight(tmp_path: Path) -> None:
    reward = {"task": 1.0, "action-rate": 0.5}
    run = robotrl.train("mujoco/reach", "ppo", reward=reward, run_dir=tmp_path / "run", settings=TINY)
    assert [(one["name"], one["weight"]) for one in run.config["rewards"]] == [("task", 1.0), ("action-rate", 0.5)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sim": "mujoco/rech", "algo": "ppo"}, "sim 'mujoco/rech' is unknown: did you mean 'mujoco/reach'"),
        ({"sim": "mujoco/reach"}, "algo is None: expected a sim and an algorithm, or a preset"),
        ({"sim": "mujoco/reach", "algo": "pppo"}, "algorithm 'pppo' is unknown: did you mean 'ppo'"),
        ({"sim": 3, "algo": "ppo"}, "sim is 3: expected a name, a gymnasium.Env"),
        (
            {"sim": "mujoco/reach", "algo": "ppo", "settings": {"algo.env_step": 3}},
            r"setting 'algo.env_step' is unknown: did you mean 'algo.env_steps'",
        ),
        ({"sim": "mujoco/reach", "algo": "ppo", "sede": 3}, "setting 'sede' is unknown: did you mean 'seed'"),
        ({"sim": Line, "algo": "ppo", "policy": Narrow}, r"policy.net .* maps \(2, 2\) to \(2, 2\): expected \(2, 1\)"),
        ({"sim": Line, "algo": "ppo", "policy": Dropping}, "gives other outputs for equal inputs: expected none of"),
        ({"sim": Line, "algo": "ppo", "policy": ByBatch}, "gives a row other outputs beside other rows"),
        ({"sim": "mujoco/reach", "algo": "sac", "policy": Net}, "SquashedCfg takes no network of one's own"),
        ({"sim": "mujoco/reach", "algo": "ppo", "reward": "success"}, "reward 'success' needs path"),
    ],
)
def test_mistakes_are_named(arguments, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        robotrl.train(**arguments, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_old_module_path_still_gives_both(tmp_path: Path) -> None:
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "import robotrl\n"
        "from robotrl.train import train, resume\n"
        "import robotrl.training\n"
        "assert train is robotrl.training.train and resume is robotrl.training.resume\n"
        "try:\n    robotrl.train(sim='no/sim', algo='ppo')\n"
        "except robotrl.errors.ConfigError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert "sim 'no/sim' is unknown" in done.stdout, done.stderr


def test_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "own-environment.md").read_text(), re.DOTALL)
    smaller = code.replace('{"algo.env_steps": 16_000}', '{"algo.env_steps": 16_000, "algo.engine": "eager"}')
    (tmp_path / "point.py").write_text(smaller)
    done = subprocess.run([sys.executable, "point.py"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "value=1.0" in done.stdout
    assert (tmp_path / "point.bundle" / "manifest.json").exists()


def test_an_environment_of_another_program_is_named_as_such() -> None:
    """A run stores names: in a process that registers no such environment, the remedy is a module."""
    with pytest.raises(ConfigError, match=r"gym/own/Elsewhere-v0.*gym/MODULE:ID.*own-environment\.md"):
        make_sim("gym/own/Elsewhere-v0", num_envs=1, seed=0)
