"""The simulated robot: the same task without torch, driven at the physics rate."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

import robotrl
from robotrl.errors import ConfigError, NumericsError
from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.engine.robot import SimulatedRobot
from robotrl.sims.mujoco.manipulation.peg_insert import PegInsert, make_robot
from tests.kits.refusals import raises_naming

WITHOUT_TORCH = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "gymnasium", "onnxruntime", "stable_baselines3"):
            raise ImportError(f"{name} must not be imported")

sys.meta_path.insert(0, Block())
import numpy as np
from robotrl.sims.mujoco.manipulation.peg_insert import make_robot

robot = make_robot(0)
obs = robot.reset(robot.state_ids("test").start)
for _ in range(3):
    robot.command(np.full(robot.action_spec.shape, 0.3, np.float32))
    robot.advance(10)
assert "torch" not in sys.modules
print(robot.observe()["state"].tobytes().hex(), robot.success())
"""


def test_it_runs_where_torch_is_not_installed() -> None:
    shown = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=True).stdout
    robot = make_robot(5)
    robot.reset(robot.state_ids("test").start)
    for _ in range(3):
        robot.command(np.full(4, 0.3, np.float32))
        robot.advance(10)
    assert shown.split() == [robot.observe()["state"].tobytes().hex(), "False"]


def test_it_moves_as_the_batched_sim_does() -> None:
    n = 3
    sim = robotrl.make_sim("mujoco/peg-insert", num_envs=n, seed=0, limit_s=60.0)
    ids = list(sim.state_ids("test")[:n])
    sim.queue_states(ids)
    starts = sim.reset()["state"].clone()
    actions = torch.rand((40, n, 4), generator=torch.Generator().manual_seed(1)) * 3 - 1.5  # some beyond the bounds
    trajectory = [sim.step(action).obs["state"].clone() for action in actions]
    for i, state_id in enumerate(ids):
        robot = make_robot(seed=99)
        assert robot.control_dt_s == pytest.approx(sim.control_dt_s)
        inner = round(robot.control_dt_s / robot.inner_dt_s)
        assert np.array_equal(robot.reset(state_id)["state"], starts[i].numpy())
        for action, expected in zip(actions, trajectory, strict=True):
            robot.command(action[i].numpy())
            # in pieces, as a driver on its own clock does it
            for _ in range(inner // 2):
                robot.advance(2)
            assert np.array_equal(robot.observe()["state"], expected[i].numpy())


def test_it_feels_success() -> None:
    sim = robotrl.make_sim("mujoco/peg-insert", num_envs=1, seed=0)
    state_id = sim.state_ids("test").start
    sim.queue_states([state_id])
    sim.reset()
    expert = sim.make_expert(mode="left")
    started = torch.ones(1, dtype=torch.bool)
    robot = make_robot(0)
    robot.reset(state_id)
    for _ in range(80):
        assert not robot.success()
        action = expert.act(started)
        out = sim.step(action)
        started[:] = False
        robot.command(action[0].numpy())
        robot.advance(10)
        if out.terminated[0]:
            break
    assert robot.success()
    robot.reset(state_id)
    assert not robot.success()


def test_observations_are_copies() -> None:
    robot = make_robot(0)
    first = robot.reset(0)["state"]
    kept = first.copy()
    robot.command(np.ones(4, np.float32))
    robot.advance(10)
    assert np.array_equal(first, kept)


def test_bad_input_is_refused() -> None:
    robot = make_robot(0)
    with pytest.raises(ConfigError, match=r"state id -1 is out of range: expected 0 to"):
        robot.reset(-1)
    robot.reset(0)
    with pytest.raises(ConfigError, match=r"action has shape \(1,\): expected \(4,\)"):
        robot.command(np.zeros(1, np.float32))
    with pytest.raises(NumericsError, match="action 'tip_step_z_w' is nan: expected a finite number"):
        robot.command(np.array([0, 0, np.nan, 0], np.float32))
    with pytest.raises(ConfigError, match="did you mean 'test'"):
        robot.state_ids("tst")  # pyright: ignore[reportArgumentType]
    with raises_naming(ConfigError, "num_envs", 2, 1):
        SimulatedRobot(MujocoCore(PegInsert("sparse", 0.002, 4.0), 2, 0, threads=1))


def test_where_success_means_to_last_it_comes_with_the_last_control_step_and_never_after_a_fall() -> None:
    """A hopper stands for ten control steps; another one is thrown down by its own motors long before 400."""
    patient = SimulatedRobot(robotrl.make_sim("mujoco/hopper", num_envs=1, limit_steps=10).core)
    patient.reset(patient.state_ids("test").start)
    seen = []
    for _ in range(10):
        patient.command(np.zeros(3, np.float32))
        patient.advance(4)
        seen.append(patient.success())
    assert seen == [False] * 8 + [True] * 2
    wild = SimulatedRobot(robotrl.make_sim("mujoco/hopper", num_envs=1, limit_steps=400).core)
    wild.reset(wild.state_ids("test").start)
    for _ in range(400):
        wild.command(np.ones(3, np.float32))
        wild.advance(4)
        assert not wild.success()
    wild.reset(wild.state_ids("test").start + 1)
    assert not wild.success()
